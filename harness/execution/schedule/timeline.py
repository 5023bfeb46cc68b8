"""An estimated timeline of thread blocks on multiprocessors, measured in instructions.

Blocks are scheduled in order of their index: every multiprocessor (SM) receives one, then a second if it fits, and a
block that ends makes room for the next. The cache model (`launch/cache_hierarchy.py` of the emulator) does the same.
All warps run at the same speed, and a launch begins when the previous one has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.execution.schedule.events import KINDS, BlockEvents, EventLaunch, Observer, sectors_of
from harness.execution.traffic.counts import READS, WRITES
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.support.gpu_data_sheets import Gpu
from harness.support.memory_units import SECTOR_BYTES

CURVE_POINTS = 512
"""Number of points of the curves of bytes moved over time, per launch and per block."""
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TimelineBlock:
    """One thread block."""

    number: int
    """Linear index of the block in the grid."""
    sm: int
    """The multiprocessor on which it ran."""
    begin: int
    """Time at which it began, in instructions since the run began."""
    end: int
    events: BlockEvents | None
    """The block's events; None if the limit of events was reached."""


@dataclass(frozen=True)
class Moved:
    """Bytes of global memory that a launch has moved up to some time, at the `sectors` level."""

    time: int
    """Time in instructions since the run began."""
    read_bytes: int
    write_bytes: int


@dataclass(frozen=True)
class TimelineLaunch:
    """One kernel launch."""

    launch: EventLaunch
    begin: int
    end: int
    blocks: tuple[TimelineBlock, ...]
    """Blocks by index."""
    moved: tuple[Moved, ...]
    """Bytes moved over time; the last entry has the total."""

    @property
    def shown(self) -> int:
        """Number of blocks with recorded events."""
        return sum(block.events is not None for block in self.blocks)


@dataclass(frozen=True)
class Timeline:
    """A run of a variant's plan."""

    variant: str
    problem: str
    """One-line description of the problem."""
    device: str
    """The device on which events were recorded."""
    gpu: str
    """The GPU whose number of multiprocessors is used."""
    multiprocessors: int
    launches: tuple[TimelineLaunch, ...]


def timeline_of(
    variant: str,
    problem: BaseProblem,
    plan: Plan,
    executor: Observer,
    inputs: Mapping[str, np.ndarray],
    gpu: Gpu,
    most_events: int,
) -> Timeline:
    """Run the plan once and record about `most_events` events: of whole blocks, the first ones of each launch.

    Raises whatever compiling and running raise.
    """
    recorder = TimelineRecorder(gpu.multiprocessors, most_events // len(plan.launches))
    executor.observe(problem, plan, inputs, recorder, gpu)
    return Timeline(
        variant, problem.headline, executor.device.name, gpu.name, gpu.multiprocessors, tuple(recorder.launches)
    )


def event_count(events: BlockEvents) -> int:
    """Upper bound of the trace events that a block produces."""
    return 2 * len(events.waits) + 2 * len(events.copies) + len(events.arrivals) + 3 * len(events.ends) + 3


class TimelineRecorder:
    """An `EventListener` that records a timeline. `launches` is complete once the run ends."""

    def __init__(self, multiprocessors: int, most_events: int) -> None:
        """`most_events` limits each launch. The events of the first block are always recorded."""
        self.launches: list[TimelineLaunch] = []
        self._multiprocessors, self._most_events = multiprocessors, most_events
        self._launch: EventLaunch | None = None
        self._kept: dict[int, BlockEvents] = {}
        self._ends: dict[int, int] = {}
        self._curves: dict[int, _Numbers] = {}

    def begin(self, launch: EventLaunch) -> None:
        """Start recording a launch."""
        self._launch = launch
        self._kept, self._ends, self._curves = {}, {}, {}

    def wants_shared(self, block: int) -> bool:
        """False: snapshots of shared memory are not needed."""
        return False

    def shared_memory(self, block: int, contents: npt.NDArray[np.uint8]) -> None:
        """Ignored."""

    def deliver(self, events: BlockEvents) -> None:
        """Record the end and the traffic of a finished block, and its events if there is room."""
        assert self._launch is not None
        self._ends[events.block] = events.end
        self._curves[events.block] = _curve(events)
        # Later blocks have no room, whatever their size.
        if events.block == 0 or events.block * 3 * (1 + self._launch.warps) <= self._most_events:
            self._kept[events.block] = events

    def end(self) -> None:
        """Finish a launch: assign its blocks to multiprocessors."""
        assert self._launch is not None
        start = self.launches[-1].end if self.launches else 0
        room = self._most_events
        shown: set[int] = set()
        for number in sorted(self._kept):
            room -= event_count(self._kept[number])
            if shown and room < 0:
                break
            shown.add(number)
        blocks = []
        for number, sm, begin in _seats(self._launch, self._multiprocessors, self._ends):
            events = self._kept[number] if number in shown else None
            blocks.append(TimelineBlock(number, sm, start + begin, start + begin + self._ends[number], events))
        moved = _moved(start, [(block.begin, self._curves[block.number]) for block in blocks])
        end = max(block.end for block in blocks)
        self.launches.append(TimelineLaunch(self._launch, start, end, tuple(blocks), moved))


def _seats(launch: EventLaunch, multiprocessors: int, ends: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """(block, multiprocessor, start time) of each block that ran; one block per SM if residency is unknown."""
    places = multiprocessors * (launch.resident or 1)
    free = [(0, place) for place in range(min(places, launch.blocks))]
    placements = []
    for block in sorted(ends):
        begin, place = heapq.heappop(free)
        placements.append((block, place % multiprocessors, begin))
        heapq.heappush(free, (begin + ends[block], place))
    return placements


def _curve(events: BlockEvents) -> _Numbers:
    """Array of shape (points, 3): time since the block began, bytes read and bytes written since the previous point."""
    accesses = events.accesses
    size = SECTOR_BYTES * sectors_of(accesses)
    points = np.unique(np.linspace(0, events.end, min(CURVE_POINTS, len(accesses)) + 1).astype(np.int64))
    place = np.minimum(np.searchsorted(points, accesses["time"]), len(points) - 1)
    found = np.zeros((len(points), 3), np.int64)
    found[:, 0] = points
    for column, kinds in enumerate((READS, WRITES), 1):
        own = np.isin(accesses["kind"], [KINDS.index(kind) for kind in kinds])
        np.add.at(found[:, column], place[own], size[own])
    return found


def _moved(start: int, curves: Sequence[tuple[int, _Numbers]]) -> tuple[Moved, ...]:
    """Bytes moved by all blocks together; each curve comes with its block's start time."""
    rows = np.concatenate([curve + np.array([begin, 0, 0]) for begin, curve in curves])
    times, place = np.unique(rows[:, 0], return_inverse=True)
    totals = np.zeros((len(times), 2), np.int64)
    np.add.at(totals, place.reshape(-1), rows[:, 1:])
    totals = np.cumsum(totals, axis=0)
    chosen = np.unique(np.linspace(0, len(times) - 1, min(CURVE_POINTS, len(times))).astype(np.int64))
    first = () if times[0] == start else (Moved(start, 0, 0),)
    return (*first, *(Moved(int(times[at]), int(totals[at, 0]), int(totals[at, 1])) for at in chosen.tolist()))
