"""Branches, tables, returns and traps in code where lanes part: each lane's own result, and where they meet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from operands import Array
from single_opcode import HEADER, run_body, run_ptx

from harness.support.errors import CompileError, KernelFault, UnsupportedInstruction

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


ASSERT_FAILS = """{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    mov.u64 q1, text; st.param.b64 [a], q1; add.u64 q1, q1, 4; st.param.b64 [b], q1; st.param.b32 [c], 12;
    add.u64 q1, q1, 5; st.param.b64 [d], q1; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }"""
ASSERTION = """.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
    .global .b8 text[] = {120, 60, 51, 0, 97, 46, 99, 117, 0, 107, 0};"""
"""The texts `x<3`, `a.cu` and `k`."""


def test_a_trap_names_the_thread() -> None:
    with pytest.raises(KernelFault, match=r"thread \(3, 0, 0\)") as caught:
        run("setp.eq.u32 p1, tid, 3; @p1 trap;")
    assert caught.value.kind == "trap"


def test_a_failed_assertion_tells_its_place_and_condition() -> None:
    body = f"setp.lt.u32 p1, tid, 3; @p1 bra FINE; {ASSERT_FAILS} FINE:"
    with pytest.raises(KernelFault, match=r"thread \(3, 0, 0\): a\.cu:12: k: Assertion `x<3` failed$") as caught:
        run(body, declarations=ASSERTION)
    assert caught.value.kind == "assertion"


def test_assertions_that_hold_change_nothing():
    out = run(
        f"setp.lt.u32 p1, tid, 99; @p1 bra FINE; {ASSERT_FAILS} FINE: st.global.u32 [q30], tid;",
        declarations=ASSERTION,
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
    with pytest.raises(UnsupportedInstruction, match=r"'brx.idx' at PTX line \d+"):
        run("brx.idx tid, NOTABLE; NOTABLE:")
