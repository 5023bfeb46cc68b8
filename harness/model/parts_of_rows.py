"""How a large answer is checked whose rows attend to keys: in how many parts, and of how many rows."""

from __future__ import annotations

ROWS_PER_PART = 32
FEWEST_PARTS, MOST_PARTS = 3, 12


def oracle_flops(flops: float, q_len: int) -> float:
    """What a whole answer costs the oracle, in flops of a kernel: with fewer rows than a part has it is the keys' cost.

    `flops`: a kernel's, for the same answer.
    """
    return flops * max(1.0, ROWS_PER_PART / q_len)


def part_flops(kv_len: int, head_dim: int) -> float:
    """What one part costs the oracle, in flops of a kernel."""
    return 4.0 * ROWS_PER_PART * kv_len * head_dim


def count_of_parts(wanted: int, flops_per_part: float, whole_flops: float) -> int:
    """So many as `whole_flops` pay for, but not fewer than a first, a last and one between."""
    return max(2, min(wanted, MOST_PARTS, max(FEWEST_PARTS, int(whole_flops // flops_per_part))))
