"""Renders timestamps of a run on a GPU in Chrome's trace event format, with real multiprocessors and microseconds.

`chrome_trace.py` renders the emulator's events in the same format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.execution.schedule.warp_timestamps import StampedLaunch, StampedRun
from harness.ptx.timestamps import ARRIVES, BEGINS, ENDS
from harness.text.chrome_trace import (
    LAUNCHES,
    Event,
    complete_event,
    multiprocessor_events,
    process_events,
    thread_events,
)

NANOSECONDS = 1000
"""Nanoseconds per microsecond, the format's unit."""
TIME = "microseconds of the GPU's %globaltimer, whose steps may be longer than a barrier takes; stamps take time, too"

NO_ROOM = "runs; barriers here had no room for stamps, if there are any"


def render_stamp_trace(run: StampedRun, most_events: int) -> tuple[str, str | None]:
    """The file's text, with about `most_events` events; and a note on the blocks it contains, if some are left out."""
    begins = [launch.warp_timestamps["time"][launch.warp_timestamps["kind"] == BEGINS] for launch in run.launches]
    start = min((int(times.min()) for times in begins if len(times)), default=0)
    events: list[Event] = [*process_events(LAUNCHES, "launches", LAUNCHES), *thread_events(LAUNCHES, 1, "launches")]
    first, shown = 1, []
    for number, launch in enumerate(run.launches):
        prefix = f"launch {number} " if len(run.launches) > 1 else ""
        stamped = launch.warp_timestamps[launch.warp_timestamps["kind"] > 0]
        if len(stamped):
            begin, end = (_microseconds(int(each), start) for each in (stamped["time"].min(), stamped["time"].max()))
            more = {"grid": list(launch.grid), "block": list(launch.block)}
            events.append(complete_event(LAUNCHES, 1, launch.kernel, "launch", begin, end, **more))
        blocks = _blocks_that_fit(launch, most_events // len(run.launches))
        shown.append(f"{blocks:,} of {len(launch.warp_timestamps):,} of {launch.kernel}")
        for block in range(blocks):
            events += _block_events(launch, block, prefix, first, start)
        first += launch.warp_timestamps.shape[0] * launch.warp_timestamps.shape[1]
    events += multiprocessor_events(events)
    about = {"variant": run.variant, "problem": run.problem, "ran on": run.device, "time": TIME}
    about["blocks"] = ", ".join(shown)
    document = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}
    is_whole = all(text.split(" of ")[0] == text.split(" of ")[1] for text in shown)
    return json.dumps(document, separators=(",", ":"), allow_nan=False), None if is_whole else about["blocks"]


def _blocks_that_fit(launch: StampedLaunch, most_events: int) -> int:
    """How many of the first blocks fit, at least one."""
    counts = (launch.warp_timestamps["kind"] > 0).sum(axis=(1, 2)) + 2 * launch.warp_timestamps.shape[1]
    return max(1, int((np.cumsum(counts) <= most_events).sum()))


def _microseconds(time: int, start: int) -> float:
    return (time - start) / NANOSECONDS


def _block_events(launch: StampedLaunch, block: int, prefix: str, first: int, start: int) -> Iterator[Event]:
    warps = launch.warp_timestamps.shape[1]
    for warp in range(warps):
        stamps = launch.warp_timestamps[block, warp]
        stamps = stamps[stamps["kind"] > 0]
        if len(stamps):
            pid, tid = int(stamps["sm"][0]) + 1, first + block * warps + warp
            yield from thread_events(pid, tid, f"{prefix}{launch.kernel} block {block} warp {warp}")
            yield from _warp_events(pid, tid, stamps, launch.warp_timestamps.shape[2], start)


def _warp_events(pid: int, tid: int, stamps: npt.NDArray[np.void], most: int, start: int) -> Iterator[Event]:
    """Ranges between timestamps: waiting at a barrier from arrival to departure, else running.

    A warp has room for `most`.
    """
    rows: list[Any] = stamps.tolist()
    for (begin, _, kind), (end, _, then) in pairwise(rows):
        name, category = ("barrier", "barrier") if kind == ARRIVES else ("runs", "run")
        if then == ENDS and len(rows) == most:
            name, category = NO_ROOM, "run"
        yield complete_event(pid, tid, name, category, _microseconds(begin, start), _microseconds(end, start))
