"""Determines into how many parts a large answer is divided for checking, if its rows attend to keys."""

from __future__ import annotations

ROWS_PER_PART = 32
FEWEST_PARTS, MOST_PARTS = 3, 12


def oracle_flops(flops: float, q_len: int) -> float:
    """Return the cost of a whole answer for the oracle, in flops of a kernel.

    `flops` is a kernel's count for the same answer. With fewer rows than a part has, the cost of the keys dominates.
    """
    return flops * max(1.0, ROWS_PER_PART / q_len)


def part_flops(kv_len: int, head_dim: int) -> float:
    """Return the cost of one part for the oracle, in flops of a kernel."""
    return 4.0 * ROWS_PER_PART * kv_len * head_dim


def count_of_parts(wanted: int, flops_per_part: float, whole_flops: float) -> int:
    """Return how many of the `wanted` parts can be checked for `whole_flops`, at most `MOST_PARTS`.

    The result is at least `FEWEST_PARTS` (a first, a middle and a last part), unless fewer are wanted, and at least 2.
    """
    return max(2, min(wanted, MOST_PARTS, max(FEWEST_PARTS, int(whole_flops // flops_per_part))))
