"""Copies in flight (`cp.async`): where Python and the runtime keep them, in bytes.

Each warp has a queue, a ring of requests in the order in which they were issued.
"""

from __future__ import annotations

from harness.emulator.abi.layout import LANES

# A queue ----------------------------------------------------------------------------------------------------------
REQUESTS, CAPACITY, HEAD, TAIL = 0, 8, 16, 24
"""Address of the ring; how many requests fit, a power of two; numbers of the oldest one and of the next."""
COMMITTED = 32
"""Per lane, 8 bytes: how many groups it has committed."""
QUEUE_BYTES = COMMITTED + 8 * LANES

# A request: one cp.async of one warp --------------------------------------------------------------------------------
IN_FLIGHT = 0
"""The lanes whose copies have not landed, as bits."""
SIZE = 8
"""Bytes that each lane writes."""
ISSUED = 16
"""When, for the sanitizer."""
GROUP = 64
"""Per lane, 4 bytes: the number of the group that the copy will be committed in."""
DESTINATION = GROUP + 4 * LANES
"""Per lane, 4 bytes: place in shared memory, see `cluster_memory.py`."""
SOURCE_BYTES = DESTINATION + 4 * LANES
"""Per lane, 4 bytes: how many it reads; the rest of what it writes is zero."""
SOURCE = SOURCE_BYTES + 4 * LANES
"""Per lane, 8 bytes: host address."""
SOURCE_CELL = SOURCE + 8 * LANES
"""Per lane, 8 bytes: the sanitizer's first cell of the source, 0 where it keeps none."""
REQUEST_BYTES = SOURCE_CELL + 8 * LANES
