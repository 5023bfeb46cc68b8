"""Renders a timeline in Chrome's trace event format, which Perfetto and chrome://tracing open.

The format is described in "Trace Event Format", linked by the Chromium project's catapult. Processes are
multiprocessors; threads are the warps of the blocks that ran there. The unit of time, which the format calls a
microsecond, is one instruction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np

from harness.execution.schedule import events as schedule
from harness.execution.schedule.timeline import Timeline, TimelineBlock
from harness.execution.traffic.counts import READS, WRITES
from harness.support.memory_units import SECTOR_BYTES
from harness.support.source_text import short_name

Event = dict[str, Any]
LAUNCHES = 0
"""ID of the process that shows launches and bytes; multiprocessor n is process n + 1."""
TIME = "1 us stands for one instruction of a warp, waits included: it shows order and proportions, not time on a GPU"


def render_chrome_trace(timeline: Timeline) -> str:
    """The file's text: a JSON object with `traceEvents`."""
    events = [*_launch_events(timeline)]
    first, ids = 1, count(1)
    for launch in timeline.launches:
        prefix = f"launch {launch.launch.number} " if len(timeline.launches) > 1 else ""
        tracks = _Tracks(launch.launch, prefix, first, ids)
        first += tracks.count
        for block in launch.blocks:
            if block.events is not None:
                events += tracks.of(block, block.events)
    events += multiprocessor_events(events)
    about = {
        "variant": timeline.variant,
        "problem": timeline.problem,
        "seen on": timeline.device,
        "multiprocessors of": f"{timeline.gpu}, {timeline.multiprocessors}",
        "time": TIME,
        "blocks": what_is_shown(timeline),
    }
    if any(launch.launch.resident is None for launch in timeline.launches):
        about["placement"] = (
            "how many blocks fit a multiprocessor is not known without ptxas; it has one at a time here"
        )
    document = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def what_is_shown(timeline: Timeline) -> str:
    """One line that says how many blocks of each launch have events."""
    return ", ".join(
        f"{launch.shown:,} of {len(launch.blocks):,} of {launch.launch.kernel}" for launch in timeline.launches
    )


def leaves_out(timeline: Timeline) -> bool:
    """Whether some blocks lack events."""
    return any(launch.shown < len(launch.blocks) for launch in timeline.launches)


def process_events(pid: int, name: str, order: int) -> list[Event]:
    """Events that set a process's name and sort order."""
    return [
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}},
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": order}},
    ]


def multiprocessor_events(events: Iterable[Event]) -> list[Event]:
    """Events that name the multiprocessors of these events. Numbers are padded, since viewers sort by name."""
    numbers = sorted({event["pid"] - 1 for event in events if event["pid"] != LAUNCHES})
    digits = len(str(max(numbers, default=0)))
    return [each for number in numbers for each in process_events(number + 1, f"SM {number:0{digits}}", number + 1)]


def thread_events(pid: int, tid: int, name: str) -> list[Event]:
    """Events that set a thread's name and sort order."""
    return [
        {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}},
        {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}},
    ]


def complete_event(pid: int, tid: int, name: str, category: str, begin: float, end: float, **more: Any) -> Event:
    """A complete event: one time range of one thread."""
    event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, "ts": begin, "dur": end - begin}
    return {**event, "args": more} if more else event


def _launch_events(timeline: Timeline) -> Iterator[Event]:
    """Each launch as one time range, and the bytes of the run so far as a counter."""
    yield from process_events(LAUNCHES, "launches", LAUNCHES)
    yield from thread_events(LAUNCHES, 1, "launches")
    read = written = 0
    for each in timeline.launches:
        launch = each.launch
        more: dict[str, Any] = {"grid": list(launch.grid), "block": list(launch.block)}
        more["shared bytes of a block"] = launch.shared_bytes
        if launch.resident is not None:
            more["blocks that one SM holds"] = launch.resident
        yield complete_event(LAUNCHES, 1, launch.kernel, "launch", each.begin, each.end, **more)
        for moved in each.moved:
            args = {"read": read + moved.read_bytes, "written": written + moved.write_bytes}
            event = {"ph": "C", "pid": LAUNCHES, "tid": 1, "name": "bytes of global memory, sectors", "ts": moved.time}
            yield {**event, "args": args}
        read, written = read + each.moved[-1].read_bytes, written + each.moved[-1].write_bytes


class _Tracks:
    """Events of one launch's blocks. Each block has a thread of its own and one per warp."""

    def __init__(self, launch: schedule.EventLaunch, prefix: str, first: int, ids: Iterator[int]) -> None:
        """`prefix` of names; `first` thread number, after those of earlier launches; `ids` of copies."""
        self._launch, self._prefix, self._first, self._ids = launch, prefix, first, ids
        self._pitch = launch.warps + 1
        self.count = launch.blocks * self._pitch

    def of(self, block: TimelineBlock, events: schedule.BlockEvents) -> Iterator[Event]:
        """All events of one block."""
        pid, tid = block.sm + 1, self._tid(block, 0)
        name = f"{self._prefix}{self._launch.kernel} block {block.number}"
        yield from thread_events(pid, tid, name)
        yield complete_event(pid, tid, name, "block", block.begin, block.end, place=self._place(block.number))
        accesses = [events.accesses[events.accesses["warp"] == warp] for warp in range(self._launch.warps)]
        for warp, end in enumerate(events.ends.tolist()):
            yield from thread_events(pid, self._tid(block, warp + 1), f"{self._prefix}block {block.number} warp {warp}")
            yield from self._warp(block, warp, end, events.waits[events.waits["warp"] == warp], accesses[warp])
        for arrival in events.arrivals:
            yield {
                "ph": "i", "pid": pid, "tid": self._tid(block, int(arrival["warp"]) + 1), "s": "t", "cat": "barrier",
                "name": f"arrives at barrier {arrival['number']}", "ts": block.begin + int(arrival["time"]),
                "args": self._where(int(arrival["site"])),
            }  # fmt: skip
        yield from self._copies(block, events)

    def _tid(self, block: TimelineBlock, track: int) -> int:
        return self._first + block.number * self._pitch + track

    def _place(self, block: int) -> list[int]:
        x, y, _ = self._launch.grid
        return [block % x, block // x % y, block // (x * y)]

    def _where(self, site: int) -> dict[str, str]:
        known = self._launch.sites[site] if 0 <= site < len(self._launch.sites) else None
        return {} if known is None or not known.file else {"line": f"{short_name(known.file)}:{known.line}"}

    def _warp(
        self, block: TimelineBlock, warp: int, end: int, waits: schedule.Records, accesses: schedule.Records
    ) -> Iterator[Event]:
        """Ranges between waits, and the waits themselves, in sequence."""
        pid, tid, now = block.sm + 1, self._tid(block, warp + 1), 0
        for wait in waits[np.argsort(waits["begin"], kind="stable")]:
            begin, over = int(wait["begin"]), int(wait["end"]) if wait["end"] >= 0 else end
            yield from self._run(block, tid, now, begin, accesses)
            name, kind = self._name_of(wait), schedule.WAITS[wait["kind"]]
            where = self._where(int(wait["site"]))
            if over > begin:
                yield complete_event(pid, tid, name, kind, block.begin + begin, block.begin + over, **where)
            else:
                event = {"ph": "i", "pid": pid, "tid": tid, "s": "t", "name": name, "cat": kind}
                yield {**event, "ts": block.begin + begin, "args": where}
            now = max(now, over)
        yield from self._run(block, tid, now, end, accesses)

    def _run(self, block: TimelineBlock, tid: int, begin: int, end: int, accesses: schedule.Records) -> Iterator[Event]:
        if end <= begin:
            return
        # A request has the time of the end of its basic block.
        own = accesses[(accesses["time"] > begin) & (accesses["time"] <= end)]
        more: dict[str, Any] = {}
        for verb, kinds in (("read", READS), ("written", WRITES)):
            chosen = own[np.isin(own["kind"], [schedule.KINDS.index(kind) for kind in kinds])]
            moved = {
                self._launch.buffers[number]: SECTOR_BYTES
                * int(schedule.sectors_of(chosen[chosen["buffer"] == number]).sum())
                for number in np.unique(chosen["buffer"]).tolist()
            }
            if moved:
                more[f"bytes {verb}, sectors"] = moved
        name = "runs, with memory" if more else "runs"
        yield complete_event(block.sm + 1, tid, name, "run", block.begin + begin, block.begin + end, **more)

    @staticmethod
    def _name_of(wait: Any) -> str:
        kind, number = int(wait["kind"]), int(wait["number"])
        if kind == schedule.BARRIER:
            return f"barrier {number}"
        if kind == schedule.MBARRIER:
            return f"mbarrier at {number}"
        return f"cp.async: all but {number} groups" if kind == schedule.COPIES else schedule.WAITS[schedule.CLUSTER]

    def _copies(self, block: TimelineBlock, events: schedule.BlockEvents) -> Iterator[Event]:
        """Copies of one warp that land together become one range; its begin and end events share a unique ID."""
        groups: dict[tuple[int, int, int], list[Any]] = {}
        for copy in events.copies:
            groups.setdefault((int(copy["warp"]), int(copy["kind"]), int(copy["landed"])), []).append(copy)
        for (warp, kind, landed), copies in groups.items():
            first = min(int(copy["issued"]) for copy in copies)
            end = landed if landed >= 0 else max(first, int(events.end))
            size = SECTOR_BYTES * sum(int(copy["sectors"]) for copy in copies)
            lines = sorted({line for copy in copies for line in self._where(int(copy["site"])).values()})
            args: dict[str, Any] = {"copies": len(copies), "bytes, sectors": size, "lines": lines}
            if landed < 0:
                args["landed"] = "no wait covers it"
            name = f"{schedule.COPY_KINDS[kind]} of {self._prefix}block {block.number} warp {warp}"
            common = {
                "cat": schedule.COPY_KINDS[kind], "name": name,
                "pid": block.sm + 1, "tid": self._tid(block, warp + 1), "id2": {"local": hex(next(self._ids))},
            }  # fmt: skip
            yield {"ph": "b", **common, "ts": block.begin + first, "args": args}
            yield {"ph": "e", **common, "ts": block.begin + max(first, end)}
