"""Timelines as files for trace viewers: every event as the format's document wants it, and what they say."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import numpy as np
import pytest
from emulators import emulator

from harness.execution.planning.variant_calls import make_plan
from harness.execution.schedule.events import (
    ACCESS,
    ARRIVAL,
    BARRIER,
    BULK,
    COPY,
    WAIT,
    BlockEvents,
    EventLaunch,
    EventSite,
)
from harness.execution.schedule.timeline import Timeline, TimelineRecorder, timeline_of
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem
from harness.support.gpu_data_sheets import GPUS
from harness.text.chrome_trace import leaves_out, render_chrome_trace, what_is_shown
from tests.text.trace_event_format import InvalidTrace, require_valid

SITES = (EventSite("ld.global.f32", "load", "kernel.cu", 7), EventSite("bar.sync", None, "kernel.cu", 9))


def launch(number: int = 0, blocks: int = 4, resident: int | None = 1) -> EventLaunch:
    return EventLaunch(number, "k", (blocks, 1, 1), (64, 1, 1), None, ("A", "B"), SITES, 128, resident)


def block(number: int, end: int = 100) -> BlockEvents:
    """Two warps: the first waits from 10 to 30, loads two sectors, and sends for a copy that nobody waits for."""
    accesses = [(40, 0, 0, 0, 0, 3, 0b0101), (end, 1, 0, 1, 1, 0, 0b1111)]
    waits = [(0, 1, BARRIER, 0, 10, 30), (1, 1, BARRIER, 0, 30, 30)]
    copies = [(1, 0, BULK, 4, 35, 50), (1, 0, BULK, 4, 36, -1)]
    return BlockEvents(
        number,
        np.array(accesses, ACCESS),
        np.array(waits, WAIT),
        np.array(copies, COPY),
        np.array([(1, 1, 3, 60)], ARRIVAL),
        np.array([end, end - 1]),
        np.array([30]),
    )


def timeline(launches: list[EventLaunch], multiprocessors: int = 2, most_events: int = 10_000) -> Timeline:
    recorder = TimelineRecorder(multiprocessors, most_events)
    for each in launches:
        recorder.begin(each)
        for number in reversed(range(each.blocks)):  # blocks come in no particular order
            recorder.deliver(block(number, 100 + 10 * number))
        recorder.end()
    return Timeline("v", "a problem", "emulated", "a GPU", multiprocessors, tuple(recorder.launches))


def events_of(shown: Timeline) -> list[dict[str, Any]]:
    document = json.loads(render_chrome_trace(shown))
    require_valid(document)
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def test_blocks_take_places_as_they_become_free() -> None:
    (first, second) = timeline([launch(), launch(1, blocks=2)]).launches
    assert [(b.number, b.sm, b.begin, b.end) for b in first.blocks] == [
        (0, 0, 0, 100), (1, 1, 0, 110), (2, 0, 100, 220), (3, 1, 110, 240),
    ]  # fmt: skip
    assert (second.begin, second.end) == (240, 350)
    two_each = timeline([launch(resident=2)]).launches[0]
    assert [(b.sm, b.begin) for b in two_each.blocks] == [(0, 0), (1, 0), (0, 0), (1, 0)]
    assert [b.begin for b in timeline([launch(resident=None)]).launches[0].blocks] == [0, 0, 100, 110]


def test_names_of_multiprocessors_sort_as_their_numbers() -> None:
    events = events_of(timeline([launch(blocks=11)], multiprocessors=132))
    names = [e["args"]["name"] for e in events if e["name"] == "process_name" and e["pid"]]
    assert names == sorted(names) and names[::10] == ["SM 00", "SM 10"]


def test_bytes_rise_to_the_total() -> None:
    shown = timeline([launch(), launch(1)])
    for each in shown.launches:
        assert (each.moved[-1].read_bytes, each.moved[-1].write_bytes) == (4 * 2 * 32, 4 * 4 * 32)
        assert all(a.time < b.time and a.read_bytes <= b.read_bytes for a, b in zip(each.moved, each.moved[1:]))
    counters = [event["args"] for event in events_of(shown) if event["ph"] == "C"]
    assert counters[-1] == {"read": 2 * 256, "written": 2 * 512}


def test_what_a_warp_did_in_its_order() -> None:
    events = events_of(timeline([launch(blocks=1)]))
    (tid,) = [e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == "block 0 warp 0"]
    own = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == tid and e["pid"] == 1]
    assert own == [("runs", 0, 10), ("barrier 0", 10, 20), ("runs, with memory", 30, 70)]
    (with_memory,) = [e for e in events if e["name"] == "runs, with memory" and e["tid"] == tid]
    assert with_memory["args"] == {"bytes read, sectors": {"A": 64}}
    (barrier,) = [e for e in events if e["name"] == "barrier 0" and e["ph"] == "X"]
    assert barrier["args"] == {"line": "kernel.cu:9"}
    assert [(e["name"], e["ts"]) for e in events if e["ph"] == "i"] == [("barrier 0", 30), ("arrives at barrier 3", 60)]


def test_copies_are_in_flight_until_they_land_or_the_block_is_over() -> None:
    events = events_of(timeline([launch(blocks=1)]))
    begins = {e["id2"]["local"]: e for e in events if e["ph"] == "b"}
    ends = {e["id2"]["local"]: e["ts"] for e in events if e["ph"] == "e"}
    assert sorted((e["ts"], ends[key], e["args"].get("landed")) for key, e in begins.items()) == [
        (35, 50, None), (36, 100, "no wait covers it"),
    ]  # fmt: skip


def test_it_says_what_time_is_and_what_is_left_out() -> None:
    whole, part = timeline([launch()]), timeline([launch(), launch(1)], most_events=40)
    document = json.loads(render_chrome_trace(whole))
    assert "one instruction" in document["otherData"]["time"]
    assert "placement" not in document["otherData"]
    assert not leaves_out(whole) and leaves_out(part)
    assert what_is_shown(part) == "2 of 4 of k, 2 of 4 of k"
    assert events_of(part) and len(events_of(part)) < len(events_of(whole)) * 2
    assert timeline([launch()], most_events=1).launches[0].shown == 1  # one in any case
    unknown = json.loads(render_chrome_trace(timeline([launch(resident=None)])))
    assert "ptxas" in unknown["otherData"]["placement"]


@functools.cache
def trace_of(name: str, problem: Problem) -> tuple[dict[str, Any], int, int]:
    """The document, and the bytes that were read and written."""
    variant = discover().registry.get(name)
    inputs = draw_inputs(problem, "normal", 0)
    executor, plan = emulator(), make_plan(variant, problem)
    shown = timeline_of(name, problem, plan, executor, inputs, GPUS["h200"], 100_000)
    execution = executor.run(problem, plan, inputs)
    assert execution.read_bytes is not None and execution.write_bytes is not None
    return json.loads(render_chrome_trace(shown)), execution.read_bytes, execution.write_bytes


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("name", "problem"),
    [("fa2-cupy", Problem()), ("three-pass-cupy", Problem()), ("fa3-cupy", Problem(dtype="float16"))],
)
def test_variants_as_the_document_wants_it(name: str, problem: Problem) -> None:
    document, read_bytes, write_bytes = trace_of(name, problem)
    require_valid(document)
    counters = [event["args"] for event in document["traceEvents"] if event["ph"] == "C"]
    assert counters[-1] == {"read": read_bytes, "written": write_bytes}
    # What the blocks are said to move, stretch by stretch, is all of it: none of them is left out here.
    runs = [event["args"] for event in document["traceEvents"] if event.get("cat") == "run" and "args" in event]
    for key, expected in (("bytes read, sectors", read_bytes), ("bytes written, sectors", write_bytes)):
        assert sum(sum(each.get(key, {}).values()) for each in runs) == expected


@pytest.mark.compiles
def test_a_producer_and_its_copies_are_on_the_timeline_of_fa3() -> None:
    document, _, _ = trace_of("fa3-cupy", Problem(dtype="float16", kv_len=1024))
    events = document["traceEvents"]
    assert any(event.get("cat") == "mbarrier" and event["ph"] == "X" for event in events)
    assert any(event["ph"] == "b" and event["cat"] == "bulk copy" for event in events)
    assert all("no wait covers it" not in event.get("args", {}).values() for event in events if event["ph"] == "b")


VALID = {
    "traceEvents": [
        {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "p"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "t"}},
        {"ph": "X", "pid": 1, "tid": 2, "name": "a", "ts": 0, "dur": 10},
        {"ph": "X", "pid": 1, "tid": 2, "name": "b", "ts": 2, "dur": 8},
        {"ph": "b", "pid": 1, "tid": 2, "name": "c", "cat": "d", "id": "1", "ts": 0},
        {"ph": "e", "pid": 1, "tid": 2, "name": "c", "cat": "d", "id": "1", "ts": 5},
        {"ph": "C", "pid": 1, "tid": 2, "name": "n", "ts": 5, "args": {"x": 1}},
    ]
}


@pytest.mark.parametrize(
    ("event", "change"),
    [
        (0, {"args": {}}), (0, {"name": "thread_nam"}), (1, {"tid": 3}), (2, {"dur": -1}), (2, {"dur": None}),
        (2, {"ts": -1}), (2, {"ph": "Q"}), (2, {"pid": "1"}), (3, {"dur": 9}), (3, {"tid": 5}), (4, {"cat": None}),
        (4, {"ts": 6}), (4, {"id": "2"}), (5, {"ph": "b"}), (6, {"args": {}}), (6, {"args": {"x": "1"}}),
        (2, {"duration": 5}),
    ],
)  # fmt: skip
def test_the_validator_finds_what_is_wrong(event: int, change: dict[str, Any]) -> None:
    require_valid(VALID)
    wrong = copy.deepcopy(VALID)
    wrong["traceEvents"][event].update(change)
    with pytest.raises((InvalidTrace, KeyError)):
        require_valid(wrong)
