"""How much a kernel may run until it is taken to be in an endless loop."""

from __future__ import annotations

FEWEST = 1 << 24
"""Instructions of a warp, however small the problem is: a second of a loop that does little."""
MOST = 1_000_000_000
STEPS_PER_FLOP = 16
"""One warp that does all of a problem's operations needs a tenth of an instruction for each."""
WARPS = 2
"""All warps of a cluster may run as much as so many that meet their limit: they share the work."""


def step_limits(chosen: int | None, flops: int) -> tuple[int, int]:
    """Instructions that a warp may run, and that all warps of a cluster may run together, where 0 is any number.

    `chosen` is the first of the two where somebody chose it; else the problem's `flops` decide.
    """
    if chosen is not None:
        return chosen, 0
    limit = max(FEWEST, min(MOST, STEPS_PER_FLOP * flops))
    return limit, WARPS * limit
