"""Calls of device functions: within calls, in divergent code, with structures, bytes and addresses as parameters."""

from __future__ import annotations

import numpy as np
import pytest
from operands import Array
from single_opcode import HEADER, run_body, run_ptx

from harness.support.errors import CompileError, KernelFault, UnsupportedInstruction

LANES = np.arange(32)


def run(body: str, rows: int = 1, declarations: str = "") -> Array:
    """The rows that the kernel stores at q30, q30+128 and so on."""
    out = np.full((rows, 32), 0xDEAD, dtype=np.uint32)
    run_body(f"mul.wide.u32 q30, tid, 4; add.u64 q30, q30, out;\n{body}", {"out": out}, declarations)
    return out


FUNCTIONS = """
.func (.param .b32 result) collatz(.param .b32 start) {
    .reg .b32 n, steps, odd; .reg .pred p, q;
    ld.param.u32 n, [start]; mov.b32 steps, 0;
    NEXT: setp.le.u32 p, n, 1; @p bra DONE;
    add.u32 steps, steps, 1; and.b32 odd, n, 1; setp.eq.u32 q, odd, 0;
    @q bra HALF; mad.lo.u32 n, n, 3, 1; bra.uni NEXT;
    HALF: shr.u32 n, n, 1; bra.uni NEXT;
    DONE: st.param.b32 [result], steps; ret;
}
.func (.param .b32 result) clamped(.param .b32 value, .param .b32 limit) {
    .reg .b32 v, l; .reg .pred p;
    ld.param.u32 v, [value]; ld.param.u32 l, [limit];
    st.param.b32 [result], l; setp.gt.u32 p, v, l; @p ret;
    st.param.b32 [result], v;
}
.func (.param .b32 result) steps_within(.param .b32 start, .param .b32 limit) {
    .reg .b32 a;
    { .param .b32 one; .param .b32 answer; ld.param.u32 a, [start]; st.param.b32 [one], a;
      call.uni (answer), collatz, (one); ld.param.b32 a, [answer]; }
    { .param .b32 one; .param .b32 two; .param .b32 answer; st.param.b32 [one], a; ld.param.u32 a, [limit];
      st.param.b32 [two], a; call.uni (answer), clamped, (one, two); ld.param.b32 a, [answer]; }
    st.param.b32 [result], a; ret;
}
.func (.param .align 8 .b8 result[24]) rotate(.param .align 8 .b8 triple[24]) {
    .reg .b64 x, y, z;
    ld.param.b64 x, [triple]; ld.param.v2.b64 {y, z}, [triple+8];
    st.param.b64 [result], y; st.param.b64 [result+8], z; st.param.b64 [result+16], x; ret;
}
.func bump(.param .b64 place) {
    .reg .b64 p; .reg .b32 old;
    ld.param.u64 p, [place]; atom.global.add.u32 old, [p], 1; ret;
}
.func (.param .b32 result) tickets() {
    .shared .b32 counter; .reg .b32 n; .reg .pred p;
    mov.u32 n, %laneid; setp.ne.u32 p, n, 0; @!p st.shared.u32 [counter], 7; bar.warp.sync -1;
    atom.shared.add.u32 n, [counter], 1; bar.warp.sync -1; st.param.b32 [result], n; ret;
}
"""


def collatz(n: int) -> int:
    steps = 0
    while n > 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


def test_calls_within_calls_in_divergent_code():
    out = run(
        """
        mov.b32 r1, 77; setp.lt.u32 p1, tid, 5; @p1 bra SKIP;
        { .param .b32 a; .param .b32 b; .param .b32 c;
          st.param.b32 [a], tid; st.param.b32 [b], 15; call.uni (c), steps_within, (a, b); ld.param.b32 r1, [c]; }
        SKIP:
        activemask.b32 r2;
        setp.gt.u32 p2, tid, 29; mov.b32 r3, 0;
        { .param .b32 a; .param .b32 c; st.param.b32 [a], 27; @p2 call (c), collatz, (a); ld.param.b32 r4, [c]; }
        @p2 mov.b32 r3, r4;
        st.global.u32 [q30], r1; st.global.u32 [q30+128], r2; st.global.u32 [q30+256], r3;
        """,
        rows=3,
        declarations=FUNCTIONS,
    )
    assert out[0].tolist() == [77 if lane < 5 else min(collatz(lane), 15) for lane in range(32)]
    assert set(out[1].tolist()) == {0xFFFFFFFF}
    assert out[2].tolist() == [collatz(27) if lane > 29 else 0 for lane in range(32)]


def test_structures_by_value_and_calls_without_a_result():
    counter = np.zeros(1, dtype=np.uint32)
    out = np.zeros((32, 3), dtype=np.uint64)
    run_body(
        """
        mul.wide.u32 q1, tid, 24; add.u64 q1, q1, out;
        cvt.u64.u32 q2, tid; add.u64 q3, q2, 1000; shl.b64 q4, q2, 40;
        { .param .align 8 .b8 a[24]; .param .align 8 .b8 b[24];
          st.param.v2.b64 [a], {q2, q3}; st.param.b64 [a+16], q4; call.uni (b), rotate, (a);
          ld.param.b64 q5, [b]; ld.param.b64 q6, [b+8]; ld.param.b64 q7, [b+16]; }
        st.global.b64 [q1], q5; st.global.b64 [q1+8], q6; st.global.b64 [q1+16], q7;
        { .param .b64 a; st.param.b64 [a], counter; call.uni bump, (a); }
        """,
        {"out": out, "counter": counter},
        FUNCTIONS,
    )
    lane = LANES.astype(np.uint64)
    np.testing.assert_array_equal(out, np.stack([lane + np.uint64(1000), lane << np.uint64(40), lane], axis=1))
    assert counter[0] == 32


def test_parameters_of_bytes_of_mixed_widths_and_by_address():
    """Pieces that overlap, signed bytes, and a structure that the callee indexes with what only it knows."""
    functions = """
    .func (.param .align 8 .b8 result[16]) mix(.param .align 8 .b8 given[16]) {
        .reg .b32 a, b; .reg .b64 c; .reg .b16 h;
        ld.param.s8 a, [given+3]; ld.param.u16 b, [given+4]; add.u32 a, a, b; st.param.b32 [result], a;
        ld.param.u8 h, [given+7]; st.param.b8 [result+4], h;
        ld.param.v2.b8 {h, _}, [given+8]; st.param.b8 [result+5], h;
        ld.param.b64 c, [given]; st.param.b64 [result+8], c; ret;
    }
    .func (.param .b32 result) pick(.param .align 8 .b8 given[16], .param .b32 index) {
        .reg .b64 base, place; .reg .b32 n;
        mov.b64 base, given; ld.param.u32 n, [index]; mul.wide.u32 place, n, 4; add.u64 place, place, base;
        ld.param.u32 n, [place]; st.param.b32 [result], n; ret;
    }
    """
    out = np.zeros((32, 5), dtype=np.uint32)
    run_body(
        """
        mul.wide.u32 q1, tid, 20; add.u64 q1, q1, out; mul.wide.u32 q2, tid, 0x9E3779B1; not.b64 q3, q2;
        { .param .align 8 .b8 g[16]; .param .align 8 .b8 r[16]; st.param.b64 [g], q2; st.param.v2.b32 [g+8], {tid, tid};
          call.uni (r), mix, (g); ld.param.b32 r1, [r]; ld.param.u16 r2, [r+4];
          ld.param.b32 r4, [r+8]; ld.param.b32 r5, [r+12]; }
        { .param .align 8 .b8 g[16]; .param .b32 i; .param .b32 r; st.param.b64 [g], q2; st.param.b64 [g+8], q3;
          and.b32 r3, tid, 3; st.param.b32 [i], r3; call.uni (r), pick, (g, i); ld.param.b32 r3, [r]; }
        st.global.u32 [q1], r1; st.global.u32 [q1+4], r2; st.global.u32 [q1+8], r4;
        st.global.u32 [q1+12], r5; st.global.u32 [q1+16], r3;
        """,
        {"out": out},
        functions,
    )
    for lane in range(32):
        word = lane * 0x9E3779B1
        given = word.to_bytes(8, "little") + lane.to_bytes(4, "little") * 2
        wide = given[:8] + (word ^ (1 << 64) - 1).to_bytes(8, "little")
        total = (given[3] - 256 * (given[3] > 127) + int.from_bytes(given[4:6], "little")) % (1 << 32)
        picked = int.from_bytes(wide[4 * (lane % 4) :][:4], "little")
        assert out[lane].tolist() == [total, given[7] | given[8] << 8, word % (1 << 32), word >> 32, picked], lane


def test_a_function_has_one_shared_variable_however_often_it_is_called():
    """And it is not the caller's, though that has the same name."""
    out = run(
        """
        .shared .b32 counter;
        st.shared.u32 [counter], 500;
        { .param .b32 a; call.uni (a), tickets, (); ld.param.b32 r1, [a]; }
        { .param .b32 a; call.uni (a), tickets, (); ld.param.b32 r2, [a]; }
        ld.shared.u32 r3, [counter];
        st.global.u32 [q30], r1; st.global.u32 [q30+128], r2; st.global.u32 [q30+256], r3;
        """,
        rows=3,
        declarations=FUNCTIONS,
    )
    assert out[0].tolist() == out[1].tolist() == list(range(7, 39))
    assert set(out[2].tolist()) == {500}


def test_endless_recursion_fills_the_stack():
    loop = ".func f(.param .b32 a) { { .param .b32 x; st.param.b32 [x], 1; call.uni f, (x); } ret; }"
    with pytest.raises(KernelFault, match="recursive calls need more than"):
        run("{ .param .b32 x; st.param.b32 [x], 1; call.uni f, (x); }", declarations=loop)


def test_recursion_with_parameters_in_registers_is_refused():
    loop = ".func f(.reg .b32 a) { call.uni f, (a); ret; }"
    with pytest.raises(UnsupportedInstruction, match="recursion with parameters in registers"):
        run("call.uni f, (1);", declarations=loop)


def test_parameters_in_registers():
    """Values, numbers and predicates go to `.reg` parameters and come back; a register may go to a `.param` one."""
    functions = """
    .func (.reg .u32 sum, .reg .pred odd) combine(.reg .u32 a, .reg .u32 b, .reg .pred twice) {
        .reg .u32 t; add.u32 sum, a, b; @twice add.u32 sum, sum, sum;
        and.b32 t, sum, 1; setp.ne.u32 odd, t, 0;
        @odd ret; add.u32 a, a, 100; add.u32 sum, sum, 1000; }
    .func (.param .b32 result) doubled(.param .b32 value) {
        .reg .b32 v; ld.param.b32 v, [value]; add.u32 v, v, v; st.param.b32 [result], v; ret; }
    """
    out = np.zeros(64, np.uint32)
    body = """
        setp.gt.u32 p1, tid, 9; mov.u32 r1, tid; mov.u32 r2, 7; setp.ne.u32 p2, tid, tid;
        call (r2, p2), combine, (r1, 3, p1);
        selp.u32 r3, 1, 0, p2;
        setp.lt.u32 p3, tid, 20; mov.u32 r4, r2;
        @p3 call.uni (r4), doubled, (r2);
        mul.wide.u32 q1, tid, 8; add.u64 q1, q1, out;
        shl.b32 r5, r1, 16; shl.b32 r3, r3, 31; or.b32 r5, r5, r3; or.b32 r5, r5, r4;
        st.global.u32 [q1], r5; st.global.u32 [q1+4], r1;
    """
    run_body(body, {"out": out}, functions)
    for thread in range(32):
        total = (thread + 3) * (2 if thread > 9 else 1)
        odd = total & 1
        total += 0 if odd else 1000
        doubled = 2 * total if thread < 20 else total
        assert out[2 * thread] == (odd << 31 | thread << 16 | doubled), thread
        assert out[2 * thread + 1] == thread, "the callee's copy of a parameter is its own"


def test_what_a_register_parameter_cannot_take_is_refused():
    function = ".func f(.reg .u32 a) { ret; } .func g(.param .align 8 .b8 a[24]) { ret; }"
    for call in ("call f, (out);", "{ .param .b32 x; call f, (x); }", "call g, (r1);"):
        with pytest.raises(
            UnsupportedInstruction, match=r"'call' at PTX line \d+: what it passes for the parameter 'a'"
        ):
            run_body(call, {}, function + " .shared .b32 out;")
    with pytest.raises(CompileError, match=r"parameter 'a' of a kernel lies in '.reg'"):
        run_ptx(f"{HEADER}.visible .entry kernel(.reg .u32 a) {{ ret; }}", {})
