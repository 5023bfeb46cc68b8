"""Limits on the number of instructions, beyond which a kernel is considered to be in an endless loop."""

from __future__ import annotations

FEWEST = 1 << 24
"""Minimum limit of a warp, for any problem: a second of a small loop."""
MOST = 1_000_000_000
STEPS_PER_FLOP = 16
"""Instructions per FLOP. A single warp that does all of a problem's operations needs a tenth of an instruction for
each."""
WARPS = 2
"""All warps of a cluster together may run this many times a warp's limit, since they share the work."""


def step_limits(chosen: int | None, flops: int) -> tuple[int, int]:
    """The maximum instructions of a warp, and of all warps of a cluster together (0 for no limit).

    `chosen` overrides the first; by default the problem's `flops` determine both.
    """
    if chosen is not None:
        return chosen, 0
    limit = max(FEWEST, min(MOST, STEPS_PER_FLOP * flops))
    return limit, WARPS * limit
