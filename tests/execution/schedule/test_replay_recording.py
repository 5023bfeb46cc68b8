"""Replays of variants: the sum of the steps is what was counted, and the steps are those of the algorithms."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from emulators import emulator
from lanes import thorough_unless
from recorded_events import RecordedEvents

from harness.execution.planning.variant_calls import make_plan
from harness.execution.protocol import Execution
from harness.execution.schedule.events import ACCESS, ARRIVAL, COPY, WAIT, BlockEvents, EventLaunch
from harness.execution.schedule.replay import Replay, Step, Tile
from harness.execution.schedule.replay_recording import MOST_STEPS, ReplayRecorder, replay_of
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Launch, Plan
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles

PLAIN, HALVES = Problem(), Problem(dtype="float16")
SHOWN = [
    ("fa1-cupy", PLAIN), ("fa2-cupy", PLAIN), ("two-pass-cupy", PLAIN), ("three-pass-cupy", PLAIN),
    ("row-wise-cupy", PLAIN), ("fa2-mma-cupy", HALVES), ("fa3-cupy", HALVES), ("fa1-numba", PLAIN),
    ("fa2-numba", PLAIN), ("fa3-numba", HALVES), ("split-kv-cupy", HALVES), ("three-pass-recompute-cupy", PLAIN),
]  # fmt: skip
KEPT = ("fa1-cupy", "fa2-cupy", "two-pass-cupy", "three-pass-cupy", "fa2-mma-cupy", "fa3-cupy", "fa2-numba")


@functools.cache
def seen(name: str, problem: Problem) -> tuple[Replay, Execution, RecordedEvents]:
    """The replay, an ordinary run, and the events of one more run."""
    variant = discover().registry.get(name)
    inputs = draw_inputs(problem, "normal", 0)
    executor = emulator()
    plan = make_plan(variant, problem)
    events = RecordedEvents()
    executor.observe(problem, plan, inputs, events)
    return replay_of(variant, problem, executor, inputs, plan), executor.run(problem, plan, inputs), events


def steps_of(replay: Replay, launch: int, block: int) -> list[Step]:
    return [step for step in replay.steps if (step.launch, step.block) == (launch, block)]


def touched(replay: Replay, step: Step) -> tuple[dict[str, tuple[Tile, ...]], ...]:
    """Name -> tiles: read, written, held."""
    return tuple(
        {replay.matrices[each.matrix].name: each.tiles for each in part}
        for part in (step.reads, step.writes, step.held)
    )


def rows(first: int, end: int, columns: int = 64) -> tuple[Tile, ...]:
    return (Tile(first, end, 0, columns),)


@pytest.mark.parametrize(("name", "problem"), thorough_unless(lambda case: case[0] in KEPT, SHOWN))
def test_the_sum_over_steps_is_what_was_counted(name: str, problem: Problem) -> None:
    replay, execution, _ = seen(name, problem)
    assert replay.read_bytes == execution.read_bytes
    assert replay.write_bytes == execution.write_bytes
    for kinds, part in ((("load", "atomic"), "reads"), (("store", "atomic"), "writes")):
        counted: dict[str, int] = {}
        for launch in execution.launches:
            assert launch.traffic is not None
            for site in launch.traffic:
                if site.kind in kinds and site.buffer != "local" and site.sectors:
                    counted[site.buffer] = counted.get(site.buffer, 0) + 32 * site.sectors
        summed: dict[str, int] = {}
        for step in replay.steps:
            for touch in getattr(step, part):
                buffer = replay.matrices[touch.matrix].name
                summed[buffer] = summed.get(buffer, 0) + touch.bytes
        assert summed == counted


@pytest.mark.parametrize(("name", "problem"), thorough_unless(lambda case: case[0] in KEPT, SHOWN))
def test_events_are_what_was_counted_by_buffer_and_kind(name: str, problem: Problem) -> None:
    _, execution, events = seen(name, problem)
    counted: dict[tuple[str, str], int] = {}
    for launch in execution.launches:
        assert launch.traffic is not None
        for site in launch.traffic:
            if site.buffer != "local" and site.sectors:
                key = site.buffer, site.kind
                counted[key] = counted.get(key, 0) + site.sectors
    assert events.sectors() == counted
    assert events.ended == len(execution.launches)


def test_fa2_reads_its_rows_once_and_walks_over_the_keys() -> None:
    replay, _, _ = seen("fa2-cupy", PLAIN)
    assert [(launch.blocks, launch.shown) for launch in replay.launches] == [(8, 4)]
    first, *middle, last = steps_of(replay, 0, 4)  # of two heads and four blocks of rows, the last first
    assert touched(replay, first)[0] == {"Q": rows(64, 128), "K": rows(0, 64)}
    walked = [(name, tiles) for step in middle for name, tiles in touched(replay, step)[0].items()]
    assert walked == [
        ("V", rows(0, 64)), ("K", rows(64, 128)), ("V", rows(64, 128)), ("K", rows(128, 192)), ("V", rows(128, 192)),
        ("K", rows(192, 256)), ("V", rows(192, 256)),
    ]  # fmt: skip
    assert touched(replay, last)[:2] == ({}, {"O": rows(64, 128), "lse": rows(64, 128, 1)})
    held = [touched(replay, step)[2] for step in (first, middle[1])]
    assert held[0] == {"Q": rows(64, 128), "K": rows(0, 64)}
    assert held[1]["Q"] == rows(64, 128) and held[1]["K"] == rows(64, 128)


def test_fa1_rewrites_the_output_once_per_block_of_keys() -> None:
    replay, _, _ = seen("fa1-cupy", PLAIN)
    steps = steps_of(replay, 1, 0)
    written = [tiles for step in steps for name, tiles in touched(replay, step)[1].items() if name == "O"]
    tile = written[0][0].end_row
    keys = [tiles for step in steps for name, tiles in touched(replay, step)[0].items() if name == "K"]
    assert len(written) == len(keys) * (256 // tile)
    assert keys == [rows(n * 256 // len(keys), (n + 1) * 256 // len(keys)) for n in range(len(keys))]
    held = touched(replay, steps[0])[2]
    assert held["K"] == keys[0]


def test_three_pass_writes_scores_and_reads_them_again() -> None:
    replay, _, _ = seen("three-pass-cupy", PLAIN)
    shapes = {matrix.name: (matrix.rows, matrix.columns) for matrix in replay.matrices}
    assert shapes["S"] == shapes["P"] == (256, 256)
    first = [step for step in steps_of(replay, 0, 0) if step.writes]
    assert [touched(replay, step)[1]["S"] for step in first] == [(Tile(0, 64, n, n + 32),) for n in range(0, 256, 32)]


def test_fa3_holds_what_its_bulk_copies_have_brought() -> None:
    replay, _, _ = seen("fa3-cupy", HALVES)
    steps = steps_of(replay, 0, 0)
    held = [touched(replay, step)[2] for step in steps]
    assert any("K" in each and "V" in each and "Q" in each for each in held)
    assert "variable taken" in [
        matrix.name for matrix in replay.matrices
    ]  # the tile counter: bytes, and nothing to draw
    assert replay.matrices[-1].rows == 0


def test_a_kernel_without_barriers_is_cut_by_its_instructions() -> None:
    replay, _, _ = seen("row-wise-cupy", PLAIN)
    (launch,) = replay.launches
    assert launch.shown == 64
    assert 64 < len(replay.steps) <= MOST_STEPS + 1
    assert [step.block for step in replay.steps].count(0) == MOST_STEPS // 64
    ends = [step.end for step in steps_of(replay, 0, 0)]
    assert ends == sorted(set(ends))


def test_a_request_at_a_barrier_is_of_the_step_that_the_barrier_ends() -> None:
    problem = Problem(heads=1, q_len=16, kv_len=16, head_dim=32)
    recorder = ReplayRecorder(problem, Plan((Launch("kernel", (1,), (32,), ()),)), {})
    recorder.begin(EventLaunch(0, "kernel", (1, 1, 1), (32, 1, 1), None, ("Q", "K", "V", "O"), (), 0, None))
    times = [10, 20, 20, 21, 30, 40, 45]
    accesses = np.array([(time, 0, 0, 0, 0, row, 15) for row, time in enumerate(times)], ACCESS)
    waits, copies, arrivals = (np.empty(0, kind) for kind in (WAIT, COPY, ARRIVAL))
    steps = np.array([10, 20, 25, 30, 40])
    recorder.deliver(BlockEvents(0, accesses, waits, copies, arrivals, np.array([50]), steps))
    recorder.end()
    found = [(step.end, [(t.first_row, t.end_row) for t in step.reads[0].tiles]) for step in recorder.steps]
    # Rows of 128 bytes, one for each request; what is at the time of a step is its own.
    assert found == [(10, [(0, 1)]), (20, [(1, 3)]), (25, [(3, 4)]), (30, [(4, 5)]), (40, [(5, 6)]), (50, [(6, 7)])]


def test_of_very_many_looks_into_shared_memory_every_so_many_is_kept() -> None:
    problem = Problem(heads=1, q_len=16, kv_len=16, head_dim=32)
    inputs = draw_inputs(problem, "normal", 0)
    recorder = ReplayRecorder(problem, Plan((Launch("kernel", (1,), (32,), ()),)), inputs)
    recorder.begin(EventLaunch(0, "kernel", (1, 1, 1), (32, 1, 1), None, ("Q", "K", "V", "O"), (), 0, None))
    count = 16 * 128
    for look in range(count):  # row after row of K
        row = inputs["K"][0, 0, look // 128].copy().view(np.uint8)
        if recorder.wants_shared(0):
            recorder.shared_memory(0, row)
    times = np.arange(1, count + 1)
    accesses = np.array([(time, 0, 0, 0, 0, 0, 1) for time in times.tolist()], ACCESS)
    waits, copies, arrivals = (np.empty(0, kind) for kind in (WAIT, COPY, ARRIVAL))
    recorder.deliver(BlockEvents(0, accesses, waits, copies, arrivals, times[-1:], times))
    recorder.end()
    assert len(recorder.steps) == MOST_STEPS
    for step in recorder.steps:
        # Looks are 4 or 8 apart, so that at the end of a step the row is that one's, or the one before.
        ((tile,),) = (each.tiles for each in step.held)
        assert (step.end - 8) // 128 <= tile.first_row <= (step.end - 1) // 128


def test_blocks_of_other_heads_are_one_step_with_their_bytes() -> None:
    replay, _, _ = seen("fa2-cupy", PLAIN)
    *shown, rest = replay.steps
    assert rest.block is None and all(step.block is not None for step in shown)
    assert all(not touch.tiles for touch in (*rest.reads, *rest.writes))
    assert 2 * rest.read_bytes == replay.read_bytes  # two heads, of which one is shown
