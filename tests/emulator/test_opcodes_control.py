"""Branches, tables, calls, returns and traps in code where lanes part: each lane's own result, and where they meet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from operands import Array
from single_opcode import HEADER, run_body, run_ptx

from harness.errors import CompileError, KernelFault, UnsupportedInstruction

LANES = np.arange(32)
STORE = "mul.wide.u32 q30, tid, 4; add.u64 q30, q30, out;"


def each_lane(function: Callable[[int], int], threads: int = 32) -> Array:
    return np.array([function(lane) & 0xFFFFFFFF for lane in range(threads)], dtype=np.uint32)


def run(body: str, rows: int = 1, declarations: str = "", threads: int = 32) -> Array:
    """The rows that the kernel stores at q30, q30+128 and so on."""
    out = np.full((rows, threads), 0xDEAD, dtype=np.uint32)
    run_body(f"{STORE}\n{body}", {"out": out}, declarations, block=threads)
    return out


def test_continue_and_break_and_what_stands_behind_the_loop():
    """Lanes leave at different turns and cut other ones short; behind the loop all are together again."""
    out = run(
        """
        mov.b32 r1, 0; mov.b32 r2, 0; mov.b32 r9, 0;
        LOOP:
        add.u32 r1, r1, 1;
        activemask.b32 r8; popc.b32 r8, r8; add.u32 r9, r9, r8;
        setp.gt.u32 p1, r1, tid; @p1 bra OUT;
        add.u32 r3, r1, tid; and.b32 r3, r3, 1; setp.eq.u32 p2, r3, 0; @p2 bra LOOP;
        add.u32 r2, r2, r1;
        setp.gt.u32 p3, r2, 50; @p3 bra OUT;
        setp.lt.u32 p4, r1, 100; @p4 bra LOOP;
        OUT:
        activemask.b32 r7; redux.sync.add.u32 r6, r2, -1; vote.sync.ballot.b32 r5, p3, -1;
        st.global.u32 [q30], r2; st.global.u32 [q30+128], r7; st.global.u32 [q30+256], r6; st.global.u32 [q30+384], r9;
        """,
        rows=4,
    )

    def walk(lane: int) -> tuple[int, int]:
        turn = total = 0
        while True:
            turn += 1
            if turn > lane:
                return total, turn
            if (turn + lane) % 2 == 0:
                continue
            total += turn
            if total > 50:
                return total, turn

    sums, turns = zip(*(walk(lane) for lane in range(32)))
    assert out[0].tolist() == list(sums)
    assert set(out[1].tolist()) == {0xFFFFFFFF}
    assert set(out[2].tolist()) == {sum(sums)}
    # In each turn exactly those lanes run together that are still in the loop.
    in_turn = [sum(t >= turn for t in turns) for turn in range(1, max(turns) + 1)]
    assert out[3].tolist() == [sum(in_turn[:t]) for t in turns]


def test_nested_loops_with_exits_from_within():
    out = run(
        """
        mov.b32 r1, 0; mov.b32 r2, 0;
        OUTER:
        mov.b32 r3, 0;
        INNER:
        add.u32 r2, r2, 1;
        mad.lo.u32 r4, r1, 5, r3; setp.eq.u32 p1, r4, tid; @p1 bra FOUND;
        add.u32 r3, r3, 1; rem.u32 r5, tid, 5; add.u32 r5, r5, 1; setp.lt.u32 p2, r3, r5; @p2 bra INNER;
        activemask.b32 r6;
        add.u32 r1, r1, 1; setp.lt.u32 p3, r1, 7; @p3 bra OUTER;
        mov.b32 r2, 1000;
        FOUND:
        activemask.b32 r7;
        st.global.u32 [q30], r2; st.global.u32 [q30+128], r7;
        """,
        rows=2,
    )

    def steps(lane: int) -> int:
        count = 0
        for i in range(7):
            for j in range(lane % 5 + 1):
                count += 1
                if 5 * i + j == lane:
                    return count
        return 1000

    assert out[0].tolist() == each_lane(steps).tolist()
    assert set(out[1].tolist()) == {0xFFFFFFFF}


def test_branches_within_branches_meet_at_the_end():
    out = run(
        """
        mov.b32 r1, 0; and.b32 r2, tid, 1; setp.eq.u32 p1, r2, 0; and.b32 r2, tid, 2; setp.eq.u32 p2, r2, 0;
        @p1 bra EVEN;
        @p2 bra ODD_LOW;
        activemask.b32 r1; bra.uni MEET_ODD;
        ODD_LOW: activemask.b32 r1;
        MEET_ODD: activemask.b32 r3; bra.uni MEET;
        EVEN: @!p2 bra EVEN_HIGH; activemask.b32 r1; bra.uni MEET_EVEN;
        EVEN_HIGH: activemask.b32 r1;
        MEET_EVEN: activemask.b32 r3;
        MEET: activemask.b32 r4;
        st.global.u32 [q30], r1; st.global.u32 [q30+128], r3; st.global.u32 [q30+256], r4;
        """,
        rows=3,
    )
    of_four = 0x11111111
    assert out[0].tolist() == [of_four << lane % 4 for lane in range(32)]
    assert out[1].tolist() == [(of_four | of_four << 2) << lane % 2 for lane in range(32)]
    assert set(out[2].tolist()) == {0xFFFFFFFF}


def test_a_table_of_branches():
    """A switch with a case that falls through, one that is met twice, and a default; all meet behind it."""
    out = run(
        """
        rem.u32 r1, tid, 6; mov.b32 r2, 0;
        setp.gt.u32 p1, r1, 4; @p1 bra DEFAULT;
        TABLE: .branchtargets ZERO, ONE, TWO, ONE, FOUR;
        brx.idx r1, TABLE;
        ZERO: add.u32 r2, r2, 10;
        ONE: add.u32 r2, r2, 100; bra.uni MEET;
        TWO: mul.lo.u32 r2, tid, 7; bra.uni MEET;
        FOUR: mov.b32 r2, 4;
        st.global.u32 [q30], r2; ret;
        DEFAULT: mov.b32 r2, 5;
        MEET: activemask.b32 r3; add.u32 r2, r2, r3;
        st.global.u32 [q30], r2;
        """
    )
    together = sum(1 << lane for lane in range(32) if lane % 6 != 4)
    results = {
        0: lambda lane: 110,
        1: lambda lane: 100,
        2: lambda lane: 7 * lane,
        3: lambda lane: 100,
        5: lambda lane: 5,
    }
    expected = each_lane(lambda lane: 4 if lane % 6 == 4 else results[lane % 6](lane) + together)
    assert out[0].tolist() == expected.tolist()


def test_predicated_instructions_and_returns():
    out = run(
        """
        setp.lt.u32 p1, tid, 8; setp.ge.u32 p2, tid, 24;
        mov.b32 r1, 1; @p1 mov.b32 r1, 2; @!p1 add.u32 r1, r1, tid; @p2 mul.lo.u32 r1, r1, 10;
        st.global.u32 [q30], r1;
        @p1 ret;
        @p2 exit;
        activemask.b32 r2; st.global.u32 [q30+128], r2;
        """,
        rows=2,
    )
    first = each_lane(lambda lane: 2 if lane < 8 else (1 + lane) * (10 if lane >= 24 else 1))
    assert out[0].tolist() == first.tolist()
    assert out[1].tolist() == [0xDEAD] * 8 + [0x00FFFF00] * 16 + [0xDEAD] * 8


def test_lanes_that_have_returned_are_not_waited_for():
    """A mask may name them: only what has not returned takes part."""
    out = run(
        """
        rem.u32 r1, tid, 3; setp.eq.u32 p1, r1, 0; @p1 ret;
        redux.sync.add.u32 r2, tid, -1; st.global.u32 [q30], r2;
        """
    )
    total = sum(lane for lane in range(32) if lane % 3)
    assert out[0].tolist() == [total if lane % 3 else 0xDEAD for lane in range(32)]


def test_labels_belong_to_their_block():
    """The same label in several blocks, as inline assembly writes it: each branch stays in its own."""
    block = "{{ .reg .pred p; setp.gt.u32 p, tid, {0}; @p bra SKIP; add.u32 r1, r1, {1}; SKIP: add.u32 r1, r1, 1; }}"
    out = run("mov.b32 r1, 0;" + block.format(10, 100) + block.format(20, 1000) + "st.global.u32 [q30], r1;")
    assert out[0].tolist() == [2 + (100 if lane <= 10 else 0) + (1000 if lane <= 20 else 0) for lane in range(32)]


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


def test_recursion_is_refused():
    loop = ".func f(.param .b32 a) { { .param .b32 x; st.param.b32 [x], 1; call.uni f, (x); } ret; }"
    with pytest.raises(UnsupportedInstruction, match=r"recursion \(kernel -> f -> f\)"):
        run("{ .param .b32 x; st.param.b32 [x], 1; call.uni f, (x); }", declarations=loop)


ASSERT_FAILS = "{ .param .b64 a; st.param.b64 [a], out; call.uni __assertfail, (a); }"


@pytest.mark.parametrize(
    "body",
    [
        "setp.eq.u32 p1, tid, 3; @p1 trap;",
        f"setp.ne.u32 p1, tid, 3; @p1 bra FINE; {ASSERT_FAILS} FINE:",
    ],
)
def test_traps_and_failed_assertions_name_the_thread(body: str):
    with pytest.raises(KernelFault, match=r"thread \(3, 0, 0\)") as caught:
        run(body, declarations=".extern .func __assertfail (.param .b64 a);")
    assert caught.value.kind == "trap"


def test_assertions_that_hold_change_nothing():
    out = run(
        f"setp.lt.u32 p1, tid, 99; @p1 bra FINE; {ASSERT_FAILS} FINE: st.global.u32 [q30], tid;",
        declarations=".extern .func __assertfail (.param .b64 a);",
    )
    assert out[0].tolist() == list(range(32))


def test_coordinates_and_sizes():
    out = np.zeros((2 * 3 * 2 * 24, 12), dtype=np.uint32)
    names = [f"%{word}.{axis}" for word in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    text = f"""{HEADER}
    .visible .entry kernel(.param .u64 out) {{
        .reg .b32 r, s, t; .reg .b64 q, p;
        mov.u32 r, %ctaid.z; mov.u32 s, %nctaid.y; mov.u32 t, %ctaid.y; mad.lo.u32 r, r, s, t;
        mov.u32 s, %nctaid.x; mov.u32 t, %ctaid.x; mad.lo.u32 r, r, s, t;
        mov.u32 s, %ntid.z; mov.u32 t, %tid.z; mad.lo.u32 r, r, s, t;
        mov.u32 s, %ntid.y; mov.u32 t, %tid.y; mad.lo.u32 r, r, s, t;
        mov.u32 s, %ntid.x; mov.u32 t, %tid.x; mad.lo.u32 r, r, s, t;
        ld.param.u64 p, [out]; mul.wide.u32 q, r, 48; add.u64 q, q, p;
        {" ".join(f"mov.u32 r, {name}; st.global.u32 [q+{4 * i}], r;" for i, name in enumerate(names))}
        ret;
    }}"""
    run_ptx(text, {"out": out}, grid=(2, 3, 2), block=(4, 3, 2))
    thread = np.arange(out.shape[0])
    tid, block = thread % 24, thread // 24
    columns = [tid % 4, tid // 4 % 3, tid // 12, 4, 3, 2, block % 2, block // 2 % 3, block // 6, 2, 3, 2]
    for index, (name, wanted) in enumerate(zip(names, columns)):
        np.testing.assert_array_equal(out[:, index], np.broadcast_to(wanted, thread.shape), err_msg=name)


def test_clocks_tick_once_per_instruction():
    out = run(
        """
        mov.u32 r1, %clock; mov.u64 q1, %clock64; mov.u64 q2, %globaltimer; sub.u64 q2, q2, q1; cvt.u32.u64 r5, q2;
        mov.b32 r2, 0; AGAIN: add.u32 r2, r2, 1; setp.lt.u32 p1, r2, 9; @p1 bra AGAIN;
        mov.u32 r3, %clock; sub.u32 r3, r3, r1; mov.u64 q3, %globaltimer; setp.gt.u64 p2, q3, q1; selp.u32 r4, 1, 0, p2;
        st.global.u32 [q30], r3; st.global.u32 [q30+128], r4; st.global.u32 [q30+256], r5;
        """,
        rows=3,
    )
    assert set(out[0].tolist()) == {5 + 9 * 3 + 1}
    assert set(out[1].tolist()) == set(out[2].tolist()) == {1}


def test_broken_branches_are_refused():
    with pytest.raises(CompileError, match="NOWHERE"):
        run("bra NOWHERE;")
    with pytest.raises(UnsupportedInstruction, match=r"initialised with an address \('counter' at PTX line 5\)"):
        run("", declarations=".global .u64 pointer = counter;")
    with pytest.raises(UnsupportedInstruction, match=r"'brx.idx' at PTX line \d+"):
        run("brx.idx tid, NOTABLE; NOTABLE:")
