"""Memory layout, in bytes, of copies in flight (`cp.async`), shared by Python and the runtime.

Each warp has a queue, which is a ring of requests in order of issue.
"""

from __future__ import annotations

from harness.emulator.abi.layout import LANES

# A queue ----------------------------------------------------------------------------------------------------------
REQUESTS, CAPACITY, HEAD, TAIL = 0, 8, 16, 24
"""Address of the ring; its capacity, a power of two; numbers of the oldest request and of the next."""
COMMITTED = 32
"""Per lane, 8 bytes: number of committed groups."""
QUEUE_BYTES = COMMITTED + 8 * LANES

# A request: one cp.async of one warp --------------------------------------------------------------------------------
IN_FLIGHT = 0
"""Mask of the lanes whose copies have not landed."""
SIZE = 8
"""Bytes that each lane writes."""
ISSUED = 16
"""Time of issue, for the sanitizer."""
GROUP = 64
"""Per lane, 4 bytes: number of the group in which the copy will be committed."""
DESTINATION = GROUP + 4 * LANES
"""Per lane, 4 bytes: destination in shared memory, see `cluster_memory.py`."""
SOURCE_BYTES = DESTINATION + 4 * LANES
"""Per lane, 4 bytes: number of bytes that it reads; the rest of what it writes is zero."""
SOURCE = SOURCE_BYTES + 4 * LANES
"""Per lane, 8 bytes: host address of the source."""
SOURCE_CELL = SOURCE + 8 * LANES
"""Per lane, 8 bytes: the sanitizer's first shadow cell of the source; 0 if it has none."""
REQUEST_BYTES = SOURCE_CELL + 8 * LANES
