"""Which rows and keys of large gradients are worked out: runs of both, from the first to the last, over the heads."""

from __future__ import annotations

from harness.model.operation import WHOLE, Part
from harness.operations.attention_backward.problem import BackwardProblem

ROWS_PER_PART = 16
MOST_PARTS = 8


def choose_parts(problem: BackwardProblem, whole_flops: float) -> tuple[Part, ...]:
    """The whole of a problem of up to `whole_flops`, masks left out; of a larger one runs of rows and of keys."""
    p = problem
    if 10.0 * p.batch * p.heads * p.q_len * p.kv_len * p.head_dim <= whole_flops:
        return (WHOLE,)
    heads, parts = p.batch * p.heads, []
    count = min(MOST_PARTS, max(2, heads))
    for number in range(count):
        batch, head = divmod(number * (heads - 1) // (count - 1), p.heads)
        rows, keys = (_run(length, number, count) for length in (p.q_len, p.kv_len))
        one, kv = slice(batch, batch + 1), head // p.group
        where = (one, slice(head, head + 1), rows)
        of_keys = (one, slice(kv, kv + 1), keys)
        name = f"batch {batch}, head {head}, rows {rows.start} to {rows.stop - 1}, keys {keys.start} to {keys.stop - 1}"
        parts.append(Part(where, name, {"dK": of_keys, "dV": of_keys}))
    return tuple(parts)


def _run(length: int, number: int, count: int) -> slice:
    """The `number`th of `count` runs at equal distances."""
    start = number * max(0, length - ROWS_PER_PART) // (count - 1)
    return slice(start, min(length, start + ROWS_PER_PART))
