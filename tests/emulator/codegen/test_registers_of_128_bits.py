"""Registers of 128 bits that live through a loop which each lane leaves at another time (PTX ISA, section 9.7.9.4)."""

from __future__ import annotations

import numpy as np
from single_opcode import case, check

TEXT = """{ .reg .b128 w, v; .reg .pred p, q; .reg .b32 i; .reg .b64 x, y;
mov.b128 w, {a, b}; mov.b128 v, {b, a}; mov.u32 i, 0; setp.eq.u32 q, c, 3;
AGAIN: setp.ge.u32 p, i, c; @p bra OVER;
mov.b128 {x, y}, w; add.u64 x, x, 1; mov.b128 w, {y, x}; @q mov.b128 v, {x, x};
add.u32 i, i, 1; bra AGAIN;
OVER: mov.b128 {x, _}, v; mov.b128 {d, y}, w; xor.b64 d, d, x; }"""


def after(a: int, b: int, turns: int) -> int:
    """What one lane computes."""
    low, high, other = a, b, b
    for _ in range(turns):
        low, high = high, (low + 1) % (1 << 64)
        if turns == 3:
            other = high
    return low ^ other


def test_a_loop_of_different_lengths():
    """A predicated move changes the lanes of its predicate alone."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 64, 64, dtype=np.uint64) for _ in range(2))
    turns = rng.integers(0, 9, 64).astype(np.uint32)
    expected = np.array([after(*each) for each in zip(a.tolist(), b.tolist(), turns.tolist())], np.uint64)
    check([(case(TEXT, "b64", a, b, turns), (expected,))])
