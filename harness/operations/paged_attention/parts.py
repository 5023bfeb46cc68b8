"""Which sequences of a large answer are worked out: some of every length, and one head of each group."""

from __future__ import annotations

from harness.model.operation import WHOLE, Part
from harness.model.parts_of_rows import ROWS_PER_PART, count_of_parts, oracle_flops, part_flops
from harness.operations.paged_attention.problem import PagedProblem


def choose_parts(problem: PagedProblem, whole_flops: float) -> tuple[Part, ...]:
    """The whole of a problem of up to `whole_flops`; of a larger one the last rows of single heads of some sequences.

    The shortest, the longest and some between, the first and the last head among those looked at.
    """
    p = problem
    if oracle_flops(p.flops, p.q_len) <= whole_flops:
        return (WHOLE,)
    ordered = sorted(range(p.sequences), key=lambda sequence: p.lengths[sequence])
    count = count_of_parts(p.sequences, part_flops(max(p.lengths), p.head_dim), whole_flops)
    rows = slice(max(0, p.q_len - ROWS_PER_PART), p.q_len)
    parts = {}
    for number in range(count):
        sequence = ordered[number * (p.sequences - 1) // (count - 1)]
        head = number * (p.heads - 1) // (count - 1)
        where = (slice(sequence, sequence + 1), slice(head, head + 1), rows)
        parts[sequence, head] = Part(where, f"sequence {sequence}, head {head}")
    return tuple(parts.values())
