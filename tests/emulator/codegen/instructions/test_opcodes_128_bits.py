"""Registers of 128 bits: packed from parts, unpacked, loaded, stored and carried across blocks and predicates."""

from __future__ import annotations

import numpy as np
import pytest
from single_opcode import case, check, run_body

from harness.support.errors import KernelFault

RNG = np.random.default_rng(7)
WORDS = RNG.integers(0, 1 << 32, (4, 70), dtype=np.uint32)
QUADS = RNG.integers(0, 1 << 64, (2, 70), dtype=np.uint64)


def test_parts_are_packed_from_the_lowest_on() -> None:
    low, high = (WORDS[i].astype(np.uint64) | WORDS[i + 1].astype(np.uint64) << np.uint64(32) for i in (0, 2))
    check([
        (case("{.reg .b128 w; mov.b128 w, {a, b}; mov.b128 {d, e}, w;}", "b64 b64", *QUADS), (QUADS[0], QUADS[1])),
        (case("{.reg .b128 w, v; mov.b128 v, {a, b}; mov.b128 w, v; mov.b128 {_, d}, w;}", "b64", *QUADS), (QUADS[1],)),
        (case("{.reg .b128 w; mov.b128 w, {a, b, c, f}; mov.b128 {d, e}, w;}", "b64 b64", *WORDS), (low, high)),
        (
            case("{.reg .b128 w; mov.b128 w, {a, b}; mov.b128 {_, d, e, _}, w;}", "b32 b32", *QUADS),
            ((QUADS[0] >> np.uint64(32)).astype(np.uint32), QUADS[1].astype(np.uint32)),
        ),
    ])  # fmt: skip


def test_a_predicate_keeps_what_other_lanes_have() -> None:
    chosen = RNG.integers(0, 2, 70).astype(bool)
    text = "{.reg .b128 w; mov.b128 w, {a, b}; @c mov.b128 w, {b, a}; mov.b128 {d, e}, w;}"
    low, high = np.where(chosen, QUADS[::-1], QUADS)
    check([(case(text, "b64 b64", *QUADS, chosen), (low, high))])


MOVES = """
.shared .align 16 .b8 s[512]; .local .align 16 .b8 l[16]; .reg .b128 w<4>;
mul.wide.u32 q1, tid, 16; add.u64 q2, q1, x; add.u64 q3, q1, y; mul.lo.u32 r1, tid, 16;
mov.u32 r2, s; add.u32 r1, r1, r2;
ld.global.b128 w0, [q2];
st.shared.b128 [r1], w0;
setp.lt.u32 p0, tid, 7;
@p0 bra few;
ld.shared.b128 w1, [r1];
bra met;
few: ld.relaxed.gpu.global.b128 w1, [q2]; mov.b128 {q4, q5}, w1; mov.b128 w1, {q5, q4};
met: mov.u32 r3, l;
st.local.b128 [r3], w1;
ld.local.b128 w2, [r3];
st.b128 [q3], w2;
"""


def test_loads_and_stores_in_every_space() -> None:
    """And through a join of two blocks."""
    x, y = RNG.integers(0, 1 << 64, (32, 2), dtype=np.uint64), np.zeros((32, 2), np.uint64)
    run_body(MOVES, {"x": x, "y": y})
    x[:7] = x[:7, ::-1]
    assert np.array_equal(y, x)


@pytest.mark.parametrize("access", ["ld.global.b128 w0, [q1+8];", "st.global.b128 [q1+8], w0;"])
def test_an_access_is_aligned_to_its_16_bytes(access: str) -> None:
    body = f".reg .b128 w0; mov.u64 q1, x; mov.b128 w0, {{q1, q1}}; {access}"
    with pytest.raises(KernelFault, match="16 bytes at byte offset 8 of buffer x") as caught:
        run_body(body, {"x": np.zeros(16, np.uint64)})
    assert caught.value.kind == "misaligned"
