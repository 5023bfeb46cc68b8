"""Records the emulator's events of a run as a `Replay`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.execution.planning.variant_calls import make_plan
from harness.execution.schedule import events as schedule
from harness.execution.schedule.replay import Holding, Matrix, Replay, ReplayLaunch, Step, Tile, Touch
from harness.execution.schedule.replay_tiles import (
    SharedContents,
    matrices_of,
    slice_sectors,
    tiles_of_sectors,
    undrawn,
)
from harness.execution.traffic.counts import LOCAL, READS, WRITES
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.memory_units import SECTOR_BYTES, SECTORS_PER_LINE

FEWEST_STEPS = 4
"""A block with fewer accessing steps than this is divided by instruction count."""
CUTS = 16
"""Maximum number of such divisions."""
CUT_BYTES = 8192
"""A block is divided into at most one piece per this many bytes."""
MOST_STEPS = 192
"""Maximum steps of one launch over all shown blocks; beyond it, neighbouring steps are merged."""
MOST_BLOCKS = 64
"""Maximum number of blocks of a launch that are shown individually."""

MOST_LOOKS = 512
"""Maximum number of shared memory snapshots of one block kept at a time."""

_Numbers = npt.NDArray[np.int64]


def replay_of(
    variant: Variant,
    problem: BaseProblem,
    executor: schedule.Observer,
    inputs: Mapping[str, np.ndarray],
    plan: Plan | None = None,
) -> Replay:
    """Run the variant once and record what its blocks do, using `plan` if given.

    Raises `UnsupportedProblem`, and whatever planning, compiling and running raise.
    """
    plan = make_plan(variant, problem, executor.device.arch) if plan is None else plan
    recorder = ReplayRecorder(problem, plan, inputs)
    executor.observe(problem, plan, inputs, recorder)
    return Replay(
        variant.name,
        variant.algorithm,
        problem.headline,
        executor.device.name,
        tuple(recorder.matrices),
        tuple(recorder.launches),
        tuple(recorder.steps),
    )


@dataclass
class _BlockSteps:
    """Steps of one block, before neighbouring steps are merged."""

    block: int
    ends: _Numbers
    """Time at which each step ends."""
    accesses: schedule.Records
    of_step: _Numbers
    """Index of the step of each access."""
    held: list[dict[str, tuple[Tile, ...]] | None]
    """The inputs' tiles in shared memory at the end of each step; None if no snapshot was taken."""


class _Looks:
    """Snapshots of one block's shared memory, each with its sequence number.

    Beyond a limit, only every n-th is kept.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[int, npt.NDArray[np.uint8]]] = []
        self._count, self._stride = 0, 1

    def add(self, contents: npt.NDArray[np.uint8]) -> None:
        """Add a snapshot."""
        if self._count % self._stride == 0:
            self.kept.append((self._count, contents.copy()))
            if len(self.kept) == MOST_LOOKS:
                self._stride *= 2
                self.kept = [each for each in self.kept if each[0] % self._stride == 0]
        self._count += 1


class ReplayRecorder:
    """An `EventListener` that records a replay. `launches` and `steps` are complete once the run ends."""

    def __init__(self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]) -> None:
        drawn = matrices_of(problem, plan)
        self.matrices: list[Matrix] = list(drawn.values())
        self.launches: list[ReplayLaunch] = []
        self.steps: list[Step] = []
        self._numbers = {matrix.name: number for number, matrix in enumerate(self.matrices)}
        self._contents = SharedContents(drawn, inputs)
        self._most_slices = max(matrix.slices for matrix in self.matrices)
        self._launch: schedule.EventLaunch | None = None
        self._columns: list[int] = []
        self._seen: dict[int, _Looks] = {}
        self._shown: dict[int, _BlockSteps] = {}
        self._rest: dict[tuple[int, str], int] = {}

    def begin(self, launch: schedule.EventLaunch) -> None:
        """Start recording a launch."""
        self._launch = launch
        self._columns = [self._number(name) for name in launch.buffers]
        self._seen, self._shown, self._rest = {}, {}, {}

    def _number(self, buffer: str) -> int:
        if buffer not in self._numbers and buffer != LOCAL:
            self._numbers[buffer] = len(self.matrices)
            self.matrices.append(undrawn(buffer))
        return self._numbers.get(buffer, -1)

    def wants_shared(self, block: int) -> bool:
        """True while fewer than the maximum of blocks are shown.

        Whether this one will be is known only when it has ended.
        """
        return len(self._shown) < MOST_BLOCKS

    def shared_memory(self, block: int, contents: npt.NDArray[np.uint8]) -> None:
        """Store a snapshot of a block's shared memory."""
        self._seen.setdefault(block, _Looks()).add(contents)

    def deliver(self, events: schedule.BlockEvents) -> None:
        """Record the steps of a finished block, or add its accesses to those of the blocks that are not shown."""
        assert self._launch is not None
        looks = self._seen.pop(events.block, _Looks())
        if self._is_shown(events.accesses):
            # If blocks share heads evenly; in any case, excess steps are merged at the end.
            expected = min(MOST_BLOCKS, max(1, self._launch.blocks // self._most_slices))
            self._shown[events.block] = self._steps_of(events, looks, max(1, MOST_STEPS // expected))
        else:
            self._add_rest(events.accesses)

    def _is_shown(self, accesses: schedule.Records) -> bool:
        """Whether the block accesses data of the first head."""
        for column in np.unique(accesses["buffer"]).tolist():
            matrix = self.matrices[self._columns[column]]
            if matrix.slices == self._most_slices and matrix.rows:
                lines = accesses["line"][accesses["buffer"] == column]
                if int(lines.min()) * SECTORS_PER_LINE < slice_sectors(matrix):
                    return True
        return False

    def _add_rest(self, accesses: schedule.Records) -> None:
        counts = schedule.sectors_of(accesses)
        keys = accesses["buffer"].astype(np.int64) * len(schedule.KINDS) + accesses["kind"]
        for key in np.unique(keys).tolist():
            column, kind = divmod(key, len(schedule.KINDS))
            place = self._columns[column], schedule.KINDS[kind]
            self._rest[place] = self._rest.get(place, 0) + SECTOR_BYTES * int(counts[keys == key].sum())

    def end(self) -> None:
        """Finish a launch: choose the blocks to show and merge their steps."""
        assert self._launch is not None
        launch, number = self._launch, len(self.launches)
        chosen = sorted(self._shown)[:MOST_BLOCKS]
        for block in self._shown.keys() - set(chosen):
            self._add_rest(self._shown[block].accesses)
        most = max(1, MOST_STEPS // max(1, len(chosen)))
        for block in chosen:
            found = self._shown[block]
            ends, of_step, lasts = _merged(found.ends, found.of_step, most)
            held = [found.held[at] for at in lasts.tolist()]
            self.steps += self._as_steps(number, _BlockSteps(block, ends, found.accesses, of_step, held))
        rest = [
            tuple(Touch(matrix, (), size) for (matrix, kind), size in sorted(self._rest.items()) if kind in kinds)
            for kinds in (READS, WRITES)
        ]
        if any(rest):
            self.steps.append(Step(number, None, 0, rest[0], rest[1], ()))
        x, y, z = launch.block
        self.launches.append(ReplayLaunch(launch.kernel, launch.grid, x * y * z, launch.shared_bytes, len(chosen)))

    def _steps_of(self, events: schedule.BlockEvents, looks: _Looks, most: int) -> _BlockSteps:
        ends, of_step, _ = _merged(*_cut(events), most)
        numbers = np.array([number for number, _ in looks.kept], np.int64)
        times = events.steps[numbers]
        held: list[dict[str, tuple[Tile, ...]] | None] = []
        for end in ends.tolist():
            # The last snapshot up to the step's end.
            before = np.flatnonzero(times <= end)
            held.append(self._contents.tiles_in(looks.kept[before[-1]][1]) if len(before) else None)
        return _BlockSteps(events.block, ends, events.accesses, of_step, held)

    def _as_steps(self, launch: int, found: _BlockSteps) -> list[Step]:
        steps = []
        held: tuple[Holding, ...] = ()
        for index, end in enumerate(found.ends.tolist()):
            accesses = found.accesses[found.of_step == index]
            tiles = found.held[index]
            if tiles is not None:
                held = tuple(Holding(self._numbers[name], tiles[name]) for name in tiles)
            reads, writes = (self._touches(accesses, kinds) for kinds in (READS, WRITES))
            steps.append(Step(launch, found.block, end, reads, writes, held))
        return steps

    def _touches(self, accesses: schedule.Records, kinds: tuple[str, ...]) -> tuple[Touch, ...]:
        chosen = accesses[np.isin(accesses["kind"], [schedule.KINDS.index(kind) for kind in kinds])]
        touches = []
        for column in np.unique(chosen["buffer"]).tolist():
            own = chosen[chosen["buffer"] == column]
            bits = np.arange(SECTORS_PER_LINE)
            touched = ((own["mask"][:, None] >> bits) & 1).astype(bool)
            sectors = (own["line"][:, None] * SECTORS_PER_LINE + bits)[touched]
            number = self._columns[column]
            tiles = tiles_of_sectors(np.unique(sectors), self.matrices[number])
            touches.append(Touch(number, tiles, SECTOR_BYTES * len(sectors)))
        return tuple(touches)


def _cut(events: schedule.BlockEvents) -> tuple[_Numbers, _Numbers]:
    """Return the end of each step of a block, and the step of each access.

    Steps end where the whole block advances. A step without global memory accesses is merged into the one before.
    """
    last = max(events.end, int(events.accesses["time"].max(initial=0)))
    marks = np.unique(events.steps)
    ends = np.append(marks[marks < last], last)
    of_step = np.searchsorted(ends, events.accesses["time"])
    if len(np.unique(of_step)) < FEWEST_STEPS:
        count = min(CUTS, max(1, schedule.sector_bytes(events.accesses) // CUT_BYTES))
        cuts = np.linspace(0, last, count + 1)[1:].astype(np.int64)
        ends = np.unique(np.concatenate((ends, cuts)))
        of_step = np.searchsorted(ends, events.accesses["time"])
    busy = np.unique(of_step)
    return (np.append(ends[busy[1:] - 1], last) if len(busy) else ends[-1:]), np.searchsorted(busy, of_step)


def _merged(ends: _Numbers, of_step: _Numbers, most: int) -> tuple[_Numbers, _Numbers, _Numbers]:
    """Merge steps into at most `most`, each of about equally many.

    Also returns the index of each one's last original step.
    """
    count = len(ends)
    if count <= most:
        return ends, of_step, np.arange(count)
    group = np.arange(count) * most // count
    lasts = np.flatnonzero(np.diff(np.append(group, most)))
    return ends[lasts], group[of_step], lasts
