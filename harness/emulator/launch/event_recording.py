"""Converts the runtime's records of a block to `execution.schedule.events.BlockEvents`; see `memory/trace.py`."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import cache_layout as cache
from harness.emulator.abi import event_layout as event
from harness.emulator.abi import layout as at
from harness.emulator.codegen.kernel_facts import Site
from harness.emulator.launch.tracing import TraceBuffer
from harness.emulator.launch.worker import Worker
from harness.execution.schedule import events as schedule
from harness.support.memory_units import LINE_BYTES

_ON_STEP = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_BEGINS = {
    event.WAITS_AT_BARRIER: schedule.BARRIER,
    event.WAITS_AT_MBARRIER: schedule.MBARRIER,
    event.WAITS_FOR_CLUSTER: schedule.CLUSTER,
}
_ENDS = {
    event.LEAVES_BARRIER: schedule.BARRIER,
    event.LEAVES_MBARRIER: schedule.MBARRIER,
    event.LEAVES_CLUSTER_BARRIER: schedule.CLUSTER,
}
_ISSUES = {event.ISSUES_COPY: schedule.CP_ASYNC, event.ISSUES_BULK_COPY: schedule.BULK}
_LANDS = {event.COPY_LANDS: schedule.CP_ASYNC, event.BULK_COPY_LANDS: schedule.BULK}
_LINE_AT = cache.MASK_BITS + cache.KIND_BITS
_LINE_MASK = (1 << cache.LINE_BITS) - 1
_Words = npt.NDArray[np.int64]


def event_site(site: Site) -> schedule.EventSite:
    """The description of an instruction for listeners."""
    kind = None if site.memory is None else site.memory.in_global
    return schedule.EventSite(site.form, kind, *site.file_and_line)


class EventWatcher:
    """Serializes the calls of one launch's workers to the listener."""

    def __init__(self, listener: schedule.EventListener, sizes: Sequence[int]) -> None:
        """`sizes`: bytes of the buffer of each column of the counters."""
        self._listener = listener
        lines = np.cumsum([-(-size // LINE_BYTES) for size in sizes])
        self.first_lines: list[int] = [0, *lines[:-1].tolist()]
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        """An exception of the listener, which cannot propagate through native code."""

    def see_shared(self, block: int, contents: npt.NDArray[np.uint8]) -> None:
        """Pass the contents of shared memory to the listener when a block advances."""
        try:
            with self._lock:
                if self._listener.wants_shared(block):
                    self._listener.shared_memory(block, contents)
        except BaseException as error:  # it cannot propagate through the calling native code
            self.error = self.error or error

    def finish(self, failed: bool) -> None:
        """End the launch. Raises the listener's exception, if any."""
        if self.error is not None:
            raise self.error
        if not failed:
            self._listener.end()

    def deliver(self, events: schedule.BlockEvents) -> None:
        """Pass the events of a finished block to the listener."""
        if self.error is not None:
            raise self.error
        with self._lock:
            self._listener.deliver(events)


class EventBuffer(TraceBuffer):
    """The buffer in which one worker's runtime records events as well as accesses."""

    def __init__(self, worker: Worker, sites: Sequence[Site], watcher: EventWatcher, blocks: int) -> None:
        super().__init__(worker.context, sites, watcher.first_lines)
        self._watcher, self._worker = watcher, worker
        self._site_kinds = np.array(
            [schedule.KINDS.index(event_site(site).kind or schedule.KINDS[0]) for site in sites] or [0], np.uint8
        )
        count = 1 + at.BARRIER_SLOTS * blocks + len(worker.shared) // 8 + 1
        self._clocks = np.zeros(count, dtype=np.int64)
        # ctypes frees the callback when nothing references it.
        self._on_step = _ON_STEP(self._see_shared)
        worker.set("EVENT_CLOCKS", self._clocks.ctypes.data)
        worker.set("EVENT_CLOCK_COUNT", count)
        worker.set("EVENT_STEP", ctypes.cast(self._on_step, ctypes.c_void_p).value or 0)

    def _see_shared(self, context: int) -> None:
        first = self._worker.get("CLUSTER_RANK") * self._worker.shared_pitch
        contents = self._worker.shared[first : first + self._worker.get("SHARED_SIZE")]
        self._watcher.see_shared(self._worker.get("BLOCK"), contents)

    def hand_over(self, blocks: Sequence[int], warps: int) -> None:
        """Pass the events of one cluster's blocks to the watcher, in order of rank."""
        records = self.records()
        numbers = records[:, 0] & ((1 << at.WARP_BITS) - 1)
        landed = _landings(records)
        for rank, block in enumerate(blocks):
            own = records[numbers // warps == rank] if len(blocks) > 1 else records
            self._watcher.deliver(self._events(block, own, rank * warps, landed))

    def _events(
        self, block: int, records: _Words, first_warp: int, landed: dict[tuple[int, int, int], int]
    ) -> schedule.BlockEvents:
        marks = records[(records[:, 1] & 15) == 0]
        steps = marks[_code(marks[:, 1]) == event.STEP, 0] >> (at.REQUEST_BITS + at.WARP_BITS)
        records = records[np.argsort(records[:, 0], kind="stable")]
        times = records[:, 0] >> (at.REQUEST_BITS + at.WARP_BITS)
        warps = (records[:, 0] & ((1 << at.WARP_BITS) - 1)) - first_warp
        what = records[:, 1]
        is_access = (what & 15) != 0
        accesses = self._accesses(times[is_access], warps[is_access], what[is_access])
        others = (times[~is_access], warps[~is_access], what[~is_access])
        sectors = _copied_sectors(records[:, 0], what, is_access)[~is_access]
        waits, copies, arrivals, ends = _paired(others, sectors, first_warp, landed)
        return schedule.BlockEvents(block, accesses, waits, copies, arrivals, ends, steps)

    def _accesses(self, times: _Words, warps: _Words, what: _Words) -> schedule.Records:
        found = np.empty(len(times), schedule.ACCESS)
        lines = (what >> _LINE_AT) & _LINE_MASK
        found["time"], found["warp"] = times, warps
        found["site"] = (what >> event.SITE_AT) - 1
        found["buffer"] = np.searchsorted(self._watcher.first_lines, lines, side="right") - 1
        found["kind"] = self._site_kinds[found["site"]]
        found["line"] = lines - np.array(self._watcher.first_lines)[found["buffer"]]
        found["mask"] = what & 15
        return found


def _code(what: _Words) -> _Words:
    return (what >> event.CODE_AT) & ((1 << event.CODE_BITS) - 1)


def _value(what: _Words) -> _Words:
    return (what >> event.VALUE_AT) & ((1 << event.VALUE_BITS) - 1)


def _landings(records: _Words) -> dict[tuple[int, int, int], int]:
    """Landing time of each copy's last part, by (kind, warp of a cp.async or -1, number), for a cluster's blocks."""
    marks = records[(records[:, 1] & 15) == 0]
    codes = _code(marks[:, 1])
    marks, codes = marks[np.isin(codes, tuple(_LANDS))], codes[np.isin(codes, tuple(_LANDS))]
    found: dict[tuple[int, int, int], int] = {}
    for (moment, what), code in zip(marks.tolist(), codes.tolist()):
        kind = _LANDS[code]
        warp = moment & ((1 << at.WARP_BITS) - 1) if kind == schedule.CP_ASYNC else -1
        key = (kind, warp, int(_value(np.int64(what))))
        found[key] = max(found.get(key, 0), moment >> (at.REQUEST_BITS + at.WARP_BITS))
    return found


def _copied_sectors(moments: _Words, what: _Words, is_access: npt.NDArray[np.bool_]) -> _Words:
    """For each entry, the number of sectors of the warp's preceding accesses, which are those of a copy issued there.

    Each warp's accesses and events are in the order of its moments; those of other warps may be interleaved.
    """
    counts = schedule.SECTORS_OF_MASK[what & 15]
    found = np.zeros(len(what), np.int64)
    warps = moments & ((1 << at.WARP_BITS) - 1)
    for warp in np.unique(warps):
        own = np.flatnonzero(warps == warp)
        total = np.cumsum(counts[own])
        marks = np.flatnonzero(~is_access[own])
        before = np.concatenate(([0], total[marks][:-1])) if len(marks) else total[:0]
        found[own[marks]] = total[marks] - before
    return found


def _paired(
    entries: tuple[_Words, _Words, _Words], sectors: _Words, first_warp: int, landed: dict[tuple[int, int, int], int]
) -> tuple[schedule.Records, schedule.Records, schedule.Records, _Words]:
    """Waits and copies, each with begin and end; arrivals; and the return of each warp."""
    times, warps, what = entries
    rows = zip(
        times.tolist(), warps.tolist(), ((what >> event.SITE_AT) - 1).tolist(), _code(what).tolist(),
        _value(what).tolist(), sectors.tolist(),
    )  # fmt: skip
    waits: list[tuple[int, int, int, int, int, int]] = []
    copies: list[tuple[int, int, int, int, int, int]] = []
    arrivals: list[tuple[int, int, int, int]] = []
    begun: dict[tuple[int, int], int] = {}
    ends: dict[int, int] = {}
    for time, warp, site, code, value, copied in rows:
        if code in _BEGINS:
            begun[warp, _BEGINS[code]] = len(waits)
            waits.append((warp, site, _BEGINS[code], value, time, -1))
        elif code in _ENDS:
            place = begun.pop((warp, _ENDS[code]), None)
            if place is not None:
                waits[place] = (*waits[place][:5], time)
        elif code == event.WAITS_FOR_COPIES:
            waits.append((warp, schedule.NO_SITE, schedule.COPIES, value, time, time))
        elif code in _ISSUES:
            kind = _ISSUES[code]
            key = (kind, first_warp + warp if kind == schedule.CP_ASYNC else -1, value)
            copies.append((warp, site, kind, copied, time, landed.get(key, -1)))
        elif code == event.ARRIVES:
            arrivals.append((warp, site, value, time))
        elif code == event.ENDS:
            ends[warp] = time
    return (
        np.array(waits, schedule.WAIT),
        np.array(copies, schedule.COPY),
        np.array(arrivals, schedule.ARRIVAL),
        np.array([ends[warp] for warp in sorted(ends)], np.int64),
    )
