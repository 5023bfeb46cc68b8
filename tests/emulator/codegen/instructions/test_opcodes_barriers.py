"""Barriers of a block: votes, names and counts, arrivals without waiting, and turns that a warp gives away."""

from __future__ import annotations

import numpy as np
import pytest
from single_opcode import run_body

from harness.support.errors import KernelFault

SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "form", ["bar.sync 0", "barrier.sync 3", "barrier.cta.sync.aligned 0, 128", "bar.cta.sync r9, r8"]
)
def test_every_warp_sees_what_was_written_before(form: str, seed: int):
    """Each thread reads what the thread opposite wrote, three rounds."""
    out = np.zeros((3, 128), dtype=np.uint32)
    lines = [".shared .b32 ours[128]; mov.b32 r9, 5; mov.b32 r8, 128;"]
    lines.append("shl.b32 r1, tid, 2; mov.u32 r2, ours; add.u32 r2, r2, r1; sub.u32 r3, 508, r1; mov.u32 r4, ours;")
    lines.append("add.u32 r3, r3, r4; mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out;")
    for turn in range(3):
        lines.append(f"mad.lo.u32 r5, tid, 3, {turn}; st.shared.u32 [r2], r5; {form};")
        lines.append(f"ld.shared.u32 r5, [r3]; st.global.u32 [q1+{512 * turn}], r5; {form};")
    run_body("\n".join(lines), {"out": out}, block=128, seed=seed)
    tid = np.arange(128)
    for turn in range(3):
        np.testing.assert_array_equal(out[turn], (127 - tid) * 3 + turn)


@pytest.mark.parametrize("threads", [96, 75])
def test_votes_of_a_block(threads: int):
    """popc, and, or; with a negated predicate; with a count; the last warp may be short."""
    out = np.zeros((7, threads), dtype=np.uint32)
    row = 4 * threads
    run_body(
        f"""
        mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out;
        setp.lt.u32 p1, tid, 40; setp.lt.u32 p2, tid, 1000; setp.gt.u32 p3, tid, 1000;
        bar.red.popc.u32 r1, 0, p1; st.global.u32 [q1], r1;
        bar.red.popc.u32 r1, 1, !p1; st.global.u32 [q1+{row}], r1;
        barrier.cta.red.popc.aligned.u32 r1, 2, 96, p2; st.global.u32 [q1+{2 * row}], r1;
        bar.red.and.pred p4, 0, p2; selp.u32 r1, 1, 0, p4; st.global.u32 [q1+{3 * row}], r1;
        bar.red.and.pred p4, 0, p1; selp.u32 r1, 1, 0, p4; st.global.u32 [q1+{4 * row}], r1;
        bar.red.or.pred p4, 0, p1; selp.u32 r1, 1, 0, p4; st.global.u32 [q1+{5 * row}], r1;
        bar.red.or.pred p4, 0, p3; selp.u32 r1, 1, 0, p4; st.global.u32 [q1+{6 * row}], r1;
        """,
        {"out": out},
        block=threads,
    )
    for got, wanted in zip(out, (40, threads - 40, threads, 1, 0, 1, 0)):
        assert set(got.tolist()) == {wanted}


@pytest.mark.parametrize("seed", SEEDS)
def test_named_barriers_keep_pairs_of_warps_apart(seed: int):
    """Warps 0 and 1 meet twice as often as warps 2 and 3, each pair at a barrier of its own."""
    out = np.zeros(128, dtype=np.uint32)
    run_body(
        """
        .shared .b32 ours[128];
        shl.b32 r1, tid, 2; mov.u32 r2, ours; add.u32 r2, r2, r1;
        xor.b32 r3, r1, 128; mov.u32 r4, ours; add.u32 r3, r3, r4;
        shr.u32 r5, tid, 6; add.u32 r6, r5, 1; setp.eq.u32 p1, r5, 0; selp.u32 r7, 8, 4, p1;
        mov.u32 r8, tid; mov.b32 r9, 64;
        AGAIN:
        st.shared.u32 [r2], r8;
        barrier.sync r6, r9;
        ld.shared.u32 r8, [r3]; add.u32 r8, r8, 1;
        barrier.sync r6, 64;
        sub.u32 r7, r7, 1; setp.ne.u32 p1, r7, 0; @p1 bra AGAIN;
        mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out; st.global.u32 [q1], r8;
        """,
        {"out": out},
        block=128,
        seed=seed,
    )
    tid = np.arange(128)
    np.testing.assert_array_equal(out, tid + np.where(tid < 64, 8, 4))


@pytest.mark.parametrize("seed", SEEDS)
def test_producers_arrive_and_consumers_wait(seed: int):
    """Warp 0 fills one word at a time, warp 1 takes it: barrier 1 says full, barrier 2 says empty."""
    out = np.zeros((5, 32), dtype=np.uint32)
    run_body(
        """
        .shared .b32 ours[32];
        and.b32 r1, tid, 31; shl.b32 r2, r1, 2; mov.u32 r3, ours; add.u32 r2, r2, r3;
        mul.wide.u32 q1, r1, 4; add.u64 q1, q1, out;
        mov.b32 r4, 0; setp.lt.u32 p1, tid, 32;
        @!p1 bra CONSUMER;
        PRODUCER:
        mad.lo.u32 r5, r4, 100, tid; st.shared.u32 [r2], r5;
        bar.arrive 1, 64; bar.sync 2, 64;
        add.u32 r4, r4, 1; setp.lt.u32 p2, r4, 5; @p2 bra PRODUCER;
        ret;
        CONSUMER:
        bar.sync 1, 64; ld.shared.u32 r5, [r2]; bar.arrive 2, 64;
        st.global.u32 [q1], r5; add.u64 q1, q1, 128;
        add.u32 r4, r4, 1; setp.lt.u32 p2, r4, 5; @p2 bra CONSUMER;
        """,
        {"out": out},
        block=64,
        seed=seed,
    )
    np.testing.assert_array_equal(out, np.arange(5)[:, None] * 100 + np.arange(32))


@pytest.mark.parametrize("seed", SEEDS)
def test_who_arrives_goes_on_at_once(seed: int):
    """Warp 0 arrives at barrier 1 and then at 2, warp 1 waits at 2 and then at 1: if arrivals waited, both would."""
    out = np.zeros(64, dtype=np.uint32)
    run_body(
        """
        .shared .b32 ours;
        mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out; mov.b32 r1, 1;
        setp.lt.u32 p1, tid, 32; @!p1 bra WAIT;
        bar.arrive 1, 64; st.shared.u32 [ours], 77; bar.arrive 2, 64; bra.uni DONE;
        WAIT: bar.sync 2, 64; ld.shared.u32 r1, [ours]; bar.sync 1, 64;
        DONE: st.global.u32 [q1], r1;
        """,
        {"out": out},
        block=64,
        seed=seed,
    )
    assert out.tolist() == [1] * 32 + [77] * 32


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("space", ["volatile.shared", "volatile", "acquire.cta.shared"])
def test_a_warp_sleeps_until_another_one_has_written(space: str, seed: int):
    """A token goes round four warps five times; each sleeps until it is its turn."""
    out = np.zeros(1, dtype=np.uint32)
    address = "r3" if space.endswith("shared") else "q3"
    store = space.replace("acquire", "release")
    run_body(
        f"""
        .shared .b32 token; .shared .b32 sum;
        mov.u32 r3, token; mov.u64 q2, token; cvta.shared.u64 q3, q2; shr.u32 r4, tid, 5;
        setp.ne.u32 p1, tid, 0; @!p1 st.shared.u32 [token], 0; @!p1 st.shared.u32 [sum], 0; bar.sync 0;
        mov.b32 r5, 0;
        TURN: shl.b32 r6, r5, 2; add.u32 r6, r6, r4;
        WAIT: ld.{space}.u32 r7, [{address}]; setp.eq.u32 p2, r7, r6; @p2 bra MINE; nanosleep.u32 20; bra WAIT;
        MINE: mov.u32 r8, %laneid; setp.eq.u32 p3, r8, 0;
        @p3 ld.shared.u32 r9, [sum]; @p3 mad.lo.u32 r9, r9, 3, r6; @p3 st.shared.u32 [sum], r9;
        bar.warp.sync -1; add.u32 r7, r7, 1; @p3 st.{store}.u32 [{address}], r7;
        add.u32 r5, r5, 1; setp.lt.u32 p2, r5, 5; @p2 bra TURN;
        bar.sync 0;
        @!p1 ld.shared.u32 r9, [sum]; @!p1 st.global.u32 [out], r9;
        """,
        {"out": out},
        block=128,
        seed=seed,
    )
    total = 0
    for turn in range(20):
        total = (total * 3 + turn) % 2**32
    assert out[0] == total


def test_a_count_that_is_never_reached_is_a_deadlock():
    with pytest.raises(KernelFault, match="wait at a barrier") as caught:
        run_body("bar.sync 1, 96;", {"out": np.zeros(1, np.uint32)}, block=64)
    assert caught.value.kind == "barrier deadlock"


def test_a_sleep_that_nobody_ends_meets_the_step_limit():
    body = ".shared .b32 flag; st.shared.u32 [flag], 0; WAIT: ld.volatile.shared.u32 r1, [flag]; setp.eq.u32 p1, r1, 0;"
    with pytest.raises(KernelFault) as caught:
        run_body(f"{body} nanosleep.u32 r1; @p1 bra WAIT;", {"out": np.zeros(1, np.uint32)})
    assert caught.value.kind == "step limit"
