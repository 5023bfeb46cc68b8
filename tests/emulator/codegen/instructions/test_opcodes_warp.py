"""Shuffles, votes, matches, reductions and elections: whole warps, parts of warps, and groups side by side."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest
from operands import Array, floats, signed
from single_opcode import Case, case, run_body, run_cases

from harness.support.errors import KernelFault

RNG = np.random.default_rng(17)
LANE = np.arange(128, dtype=np.uint32) % 32
FULL = np.full(128, 0xFFFFFFFF, dtype=np.uint32)
MODES = ("up", "down", "bfly", "idx")


def source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """PTX ISA 9.7.9.6, semantics."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    highest = (lane & segment) | (clamp & ~segment & 31)
    source = {
        "up": lane - b,
        "down": lane + b,
        "bfly": lane ^ b,
        "idx": (lane & segment) | (b & ~segment & 31),
    }[mode]
    valid = source >= highest if mode == "up" else source <= highest
    return (source, True) if valid else (lane, False)


def shuffled(mode: str, a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    places = [source_lane(mode, int(lane), int(x), int(y)) for lane, x, y in zip(LANE, b, c)]
    first = np.arange(a.size) // 32 * 32
    return a[first + np.array([p for p, _ in places])], np.array([valid for _, valid in places])


@pytest.mark.parametrize("mode", MODES)
def test_shuffles(mode: str):
    a = RNG.integers(0, 1 << 32, 128, dtype=np.uint32)
    odd = [(5, 0x1C1F), (1, 0), (3, 0x1803), (31, 31), (40, 0x1E1F), (7, 12), (16, 0x1015), (2, 0x0A0A), (0, 0x1F00)]
    cases: list[Case] = []
    expected = []
    for b, c in odd:
        cases.append(case(f"shfl.sync.{mode}.b32 d|e, a, {b}, {c}, -1;", "b32 pred", a))
        expected.append(shuffled(mode, a, np.full(128, b), np.full(128, c)))
    for seed in range(3):
        # Each lane asks for its own source; the segments differ only from warp to warp.
        b = RNG.integers(0, 1 << (32 if seed else 5), 128, dtype=np.uint32)
        c = np.repeat(RNG.integers(0, 1 << 13, 4, dtype=np.uint32), 32) if seed else np.full(128, 31, np.uint32)
        cases.append(case(f"shfl.sync.{mode}.b32 d|e, a, b, c, -1;", "b32 pred", a, b, c))
        expected.append(shuffled(mode, a, b, c))
        cases.append(case(f"shfl.sync.{mode}.b32 d, a, b, 0x181f, 0xFFFFFFFF;", "b32", a, b))
        expected.append(shuffled(mode, a, b, np.full(128, 0x181F))[:1])
        cases.append(case(f"shfl.sync.{mode}.b32 d|e, a, 9, b, c;", "b32 pred", a, c, FULL))
        expected.append(shuffled(mode, a, np.full(128, 9), c))
    for single, found, wanted in zip(cases, run_cases(cases), expected):
        for got, value in zip(found, wanted):
            np.testing.assert_array_equal(got, value, err_msg=single.text)


def groups_of(masks: Array) -> list[list[int]]:
    """For each thread the threads that its mask names."""
    return [[i // 32 * 32 + lane for lane in range(32) if int(mask) >> lane & 1] for i, mask in enumerate(masks)]


def bits_of(threads: list[int]) -> int:
    return sum(1 << (t % 32) for t in threads)


TILES = {
    "all": FULL,
    "tiles of 16": np.where(LANE < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32),
    "tiles of 4": (np.uint32(15) << (LANE // 4 * 4)).astype(np.uint32),
    "odd and even": np.where(LANE % 2, 0xAAAAAAAA, 0x55555555).astype(np.uint32),
    "each alone": (np.uint32(1) << LANE).astype(np.uint32),
}


@pytest.mark.parametrize("masks", TILES.values(), ids=TILES.keys())
def test_votes_of_groups_that_run_together(masks: Array):
    groups = groups_of(masks)
    cases: list[Case] = []
    expected: list[Array] = []
    for likely in (0.0, 0.5, 0.95, 1.0):
        p = RNG.random(128) < likely
        votes = [[bool(p[t]) for t in group] for group in groups]
        cases.append(case("vote.sync.ballot.b32 d, a, b;", "b32", p, masks))
        expected.append(np.array([bits_of([t for t in g if p[t]]) for g in groups], np.uint32))
        cases.append(case("vote.sync.all.pred d, a, b;", "pred", p, masks))
        expected.append(np.array([all(v) for v in votes]))
        cases.append(case("vote.sync.any.pred d, a, b;", "pred", p, masks))
        expected.append(np.array([any(v) for v in votes]))
        cases.append(case("vote.sync.uni.pred d, a, b;", "pred", p, masks))
        expected.append(np.array([len(set(v)) == 1 for v in votes]))
        cases.append(case("vote.sync.any.pred d, !a, b;", "pred", p, masks))
        expected.append(np.array([not all(v) for v in votes]))
    for single, (found,), wanted in zip(cases, run_cases(cases), expected):
        np.testing.assert_array_equal(found, wanted, err_msg=single.text)


@pytest.mark.parametrize("masks", TILES.values(), ids=TILES.keys())
def test_matches_of_groups_that_run_together(masks: Array):
    groups = groups_of(masks)
    cases: list[Case] = []
    expected: list[tuple[Array, ...]] = []
    for bits, dtype in ((32, np.uint32), (64, np.uint64)):
        for values in (LANE % 3, LANE // 4, LANE * 0 + 7, RNG.integers(0, 4, 128)):
            a = values.astype(dtype) * dtype(0x1000000010000001 & (1 << bits) - 1)
            cases.append(case(f"match.any.sync.b{bits} d, a, b;", "b32", a, masks))
            expected.append(
                (np.array([bits_of([t for t in g if a[t] == a[i]]) for i, g in enumerate(groups)], np.uint32),)
            )
            agree = np.array([len({int(a[t]) for t in g}) == 1 for g in groups])
            everyone = np.where(agree, masks, 0).astype(np.uint32)
            cases.append(case(f"match.all.sync.b{bits} d|e, a, b;", "b32 pred", a, masks))
            expected.append((everyone, agree))
            cases.append(case(f"match.all.sync.b{bits} d, a, b;", "b32", a, masks))
            expected.append((everyone,))
    for single, found, wanted in zip(cases, run_cases(cases), expected):
        for got, value in zip(found, wanted):
            np.testing.assert_array_equal(got, value, err_msg=single.text)


REDUCTIONS: dict[str, Callable[[list[int]], int]] = {
    "add.u32": sum,
    "add.s32": sum,
    "min.u32": min,
    "max.u32": max,
    "min.s32": lambda v: min(v, key=lambda x: signed(x, 32)),
    "max.s32": lambda v: max(v, key=lambda x: signed(x, 32)),
    "and.b32": lambda v: reduce(operator.and_, v),
    "or.b32": lambda v: reduce(operator.or_, v),
    "xor.b32": lambda v: reduce(operator.xor, v),
}


@pytest.mark.parametrize("masks", TILES.values(), ids=TILES.keys())
def test_reductions_and_elections_of_groups(masks: Array):
    groups = groups_of(masks)
    a = RNG.integers(0, 1 << 32, 128, dtype=np.uint32)
    cases = [case(f"redux.sync.{name} d, a, b;", "b32", a, masks) for name in REDUCTIONS]
    cases.append(case("elect.sync d|e, b;", "b32 pred", a, masks))
    *reductions, election = run_cases(cases)
    for (name, model), (found,) in zip(REDUCTIONS.items(), reductions):
        expected = np.array([model([int(a[t]) for t in g]) & 0xFFFFFFFF for g in groups], np.uint32)
        np.testing.assert_array_equal(found, expected, err_msg=name)
    np.testing.assert_array_equal(election[0], [g[0] % 32 for g in groups])
    np.testing.assert_array_equal(election[1], [g[0] == i for i, g in enumerate(groups)])


@pytest.mark.parametrize("masks", TILES.values(), ids=TILES.keys())
def test_least_and_greatest_floats_of_groups(masks: Array):
    """-0 is less than +0; a NaN counts only with `.NaN`, or where there is nothing else."""
    groups = groups_of(masks)
    (a,) = floats("f32", 1, edges=100, random=200)
    a = RNG.permutation(np.concatenate([a, np.full(32, 0x7FC00001, np.uint32)]))[:128]
    a[groups[0]] = 0xFFC00000
    names = [f"{name}{absolute}{nan}" for name in ("min", "max") for absolute in ("", ".abs") for nan in ("", ".NaN")]
    found = run_cases([case(f"redux.sync.{name}.f32 d, a, b;", "b32", a, masks) for name in names])
    for name, (got,) in zip(names, found):
        expected = [extreme_float([int(a[t]) for t in group], name) for group in groups]
        np.testing.assert_array_equal(got, np.array(expected, np.uint32), err_msg=name)


def extreme_float(patterns: list[int], name: str) -> int:
    """The result for the bits of a group's floats."""
    patterns = [p & 0x7FFFFFFF for p in patterns] if ".abs" in name else patterns
    numbers = [p for p in patterns if p & 0x7FFFFFFF <= 0x7F800000]
    if not numbers or (".NaN" in name and len(numbers) < len(patterns)):
        return 0x7FFFFFFF
    choose = min if name.startswith("min") else max
    return choose(numbers, key=lambda p: -(p & 0x7FFFFFFF) - 1 if p >> 31 else p)


def test_the_last_warp_may_be_short():
    """45 threads: the second warp has 13 lanes, and masks that name the others wait for nobody."""
    out = np.zeros((9, 45), dtype=np.uint32)
    run_body(
        """
        mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out;
        activemask.b32 r1; st.global.u32 [q1], r1;
        setp.ne.u32 p1, tid, 33; vote.sync.ballot.b32 r1, p1, -1; st.global.u32 [q1+180], r1;
        vote.sync.all.pred p2, p1, -1; selp.u32 r1, 1, 0, p2; st.global.u32 [q1+360], r1;
        redux.sync.add.u32 r1, tid, -1; st.global.u32 [q1+540], r1;
        redux.sync.min.s32 r1, tid, -1; st.global.u32 [q1+720], r1;
        and.b32 r2, tid, 1; match.any.sync.b32 r1, r2, -1; st.global.u32 [q1+900], r1;
        match.all.sync.b32 r1|p3, 5, -1; st.global.u32 [q1+1080], r1;
        shfl.sync.up.b32 r1|p3, tid, 2, 0, -1; st.global.u32 [q1+1260], r1;
        mov.u32 r3, %laneid; sub.u32 r4, 12, r3; and.b32 r4, r4, 31;
        shfl.sync.idx.b32 r1, tid, r4, 0x1F, -1; st.global.u32 [q1+1440], r1;
        """,
        {"out": out},
        block=45,
    )
    tid = np.arange(45)
    first = tid < 32
    short = (1 << 13) - 1
    lane = tid % 32
    assert out[0].tolist() == np.where(first, 0xFFFFFFFF, short).tolist()
    assert out[1].tolist() == np.where(first, 0xFFFFFFFF, short & ~2).tolist()
    assert out[2].tolist() == first.tolist()
    assert out[3].tolist() == np.where(first, sum(range(32)), sum(range(32, 45))).tolist()
    assert out[4].tolist() == np.where(first, 0, 32).tolist()
    halves = np.where(lane % 2, 0xAAAAAAAA, 0x55555555)
    assert out[5].tolist() == np.where(first, halves, halves & short).tolist()
    assert out[6].tolist() == np.where(first, 0xFFFFFFFF, short).tolist()
    assert out[7].tolist() == np.where(lane < 2, tid, tid - 2).tolist()
    # What lanes that are not there would give is nobody's business.
    assert out[8, 32:].tolist() == [44 - n for n in range(13)]


def test_operations_of_the_lanes_on_one_side_of_a_branch():
    out = np.zeros((4, 32), dtype=np.uint32)
    run_body(
        """
        mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out;
        setp.lt.u32 p1, tid, 10;
        @p1 bra FEW;
        activemask.b32 r1; setp.gt.u32 p2, tid, 20; vote.sync.ballot.b32 r2, p2, 0xFFFFFC00;
        redux.sync.add.u32 r3, tid, 0xFFFFFC00; shfl.sync.down.b32 r4, tid, 1, 31, 0xFFFFFC00;
        bra.uni DONE;
        FEW:
        activemask.b32 r1; setp.gt.u32 p2, tid, 5; vote.sync.ballot.b32 r2, p2, 0x3FF;
        redux.sync.add.u32 r3, tid, 0x3FF; shfl.sync.bfly.b32 r4, tid, 1, 31, 0x3FF;
        DONE:
        st.global.u32 [q1], r1; st.global.u32 [q1+128], r2; st.global.u32 [q1+256], r3; st.global.u32 [q1+384], r4;
        """,
        {"out": out},
    )
    tid = np.arange(32)
    few = tid < 10
    assert out[0].tolist() == np.where(few, 0x3FF, 0xFFFFFC00).tolist()
    assert out[1].tolist() == np.where(few, 0x3C0, 0xFFE00000).tolist()
    assert out[2].tolist() == np.where(few, 45, sum(range(10, 32))).tolist()
    assert out[3].tolist() == np.where(few, tid ^ 1, np.minimum(tid + 1, 31)).tolist()


def test_predicated_operations_leave_the_other_lanes_alone():
    out = np.zeros((3, 32), dtype=np.uint32)
    run_body(
        """
        mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out;
        setp.ge.u32 p1, tid, 16; mov.b32 r1, 99; mov.b32 r2, 99; mov.b32 r3, 99;
        @p1 redux.sync.max.u32 r1, tid, 0xFFFF0000;
        @!p1 redux.sync.max.u32 r1, tid, 0x0000FFFF;
        @p1 activemask.b32 r2;
        @p1 shfl.sync.idx.b32 r3, tid, 17, 31, 0xFFFF0000;
        st.global.u32 [q1], r1; st.global.u32 [q1+128], r2; st.global.u32 [q1+256], r3;
        """,
        {"out": out},
    )
    high = np.arange(32) >= 16
    assert out[0].tolist() == np.where(high, 31, 15).tolist()
    assert out[1].tolist() == np.where(high, 0xFFFF0000, 99).tolist()
    assert out[2].tolist() == np.where(high, 17, 99).tolist()


@pytest.mark.parametrize(
    "text",
    [
        "setp.lt.u32 p1, tid, 4; @!p1 bra DONE; shfl.sync.idx.b32 r1, tid, 0, 31, -1; DONE: st.global.u32 [out], r1;",
        "setp.lt.u32 p1, tid, 4; @p1 vote.sync.any.pred p2, p1, 0x1F;",
        "setp.lt.u32 p1, tid, 4; @!p1 bra DONE; mov.b32 r2, 15; setp.eq.u32 p2, tid, 2; @p2 mov.b32 r2, 31;"
        " redux.sync.add.u32 r1, tid, r2; DONE: st.global.u32 [out], r1;",
        "setp.lt.u32 p1, tid, 4; @!p1 bra DONE; bar.warp.sync 0xFF; DONE: st.global.u32 [out], r1;",
    ],
)
def test_a_mask_that_names_lanes_elsewhere_is_a_fault(text: str):
    with pytest.raises(KernelFault, match="on another path") as caught:
        run_body(f"mov.b32 r1, 0; {text}", {"out": np.zeros(32, np.uint32)})
    assert caught.value.kind == "divergent barrier"


@pytest.mark.parametrize("sources", ["constant", "of registers"])
def test_a_lane_that_is_not_there_gives_zero(sources: str):
    """Half a warp adds up as if it were whole (120 on an H100); lanes that have returned give 0, too."""
    steps = (16, 8, 4, 2, 1)
    shuffle = "shfl.sync.bfly.b32 r2, r1, {}, 31, -1; add.u32 r1, r1, r2;"
    if sources == "of registers":
        shuffle = "mov.b32 r3, {}; shfl.sync.bfly.b32 r2, r1, r3, 31, -1; add.u32 r1, r1, r2;"
    body = f"""
    mul.wide.u32 q1, tid, 4; add.u64 q1, q1, out; mov.b32 r1, tid;
    setp.ge.u32 p1, tid, 16; @p1 bra DONE;
    {" ".join(shuffle.format(step) for step in steps)}
    st.global.u32 [q1], r1;
    DONE:"""
    for threads in (16, 32):
        out = np.zeros(32, np.uint32)
        run_body(body, {"out": out}, block=threads)
        np.testing.assert_array_equal(out, np.where(np.arange(32) < 16, 120, 0))


def test_lane_registers():
    names = ["laneid", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge", "nwarpid"]
    cases = [case(f"mov.u32 d, %{name};", "b32", LANE) for name in names]
    found = [f for (f,) in run_cases(cases)]
    lane = LANE.astype(np.uint64)
    below = (np.uint64(1) << lane) - np.uint64(1)
    one = np.uint64(1) << lane
    every = np.uint64(0xFFFFFFFF)
    expected = [
        lane,
        one,
        below,
        below | one,
        every & ~(below | one),
        every & ~below,
        LANE * 0 + 64,
    ]
    for name, got, wanted in zip(names, found, expected):
        np.testing.assert_array_equal(got, wanted, err_msg=name)


def test_places_of_warps():
    """Of the four warps of a block."""
    ((found,),) = run_cases([case("mov.u32 d, %warpid;", "b32", LANE)])
    np.testing.assert_array_equal(found, np.arange(128) // 32)
