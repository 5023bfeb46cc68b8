"""The cases of softmax that campaigns meet: builds, axes, and how a failing case is made smaller.

Columns come in classes around warps and blocks of threads, and one far beyond, where a row does not fit what a block
keeps of it. Sizes that would take long together are cut to what a case may cost (`MOST_ELEMENTS`).
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.model.cases.axes import CHECK, EDITS, NO_CHECK, NONE, REGIME, SOME, Choice, NamedAxes, ProbedAxis
from harness.model.cases.build import Build, Builds
from harness.model.cases.case import Case, Edit
from harness.model.cases.property import SANITIZER
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.tile_sizes import TileSizes
from harness.operations.softmax.inputs import BEYOND_EXP, REGIMES
from harness.operations.softmax.problem import SoftmaxProblem
from harness.support.override import override

BLOCK_COLUMNS = 128
"""Columns that a block of threads takes at once, as most kernels have it: lengths are drawn around its multiples."""


@dataclass(frozen=True)
class SoftmaxBuild(Build):
    """A dtype: all else is known when a kernel is launched, but for sizes that a variant offers to choose."""

    dtype: str
    tile: str | None = None

    @property
    def plain_problem(self) -> SoftmaxProblem:
        """A few rows of `BLOCK_COLUMNS`."""
        return SoftmaxProblem(rows=4, columns=BLOCK_COLUMNS, dtype=self.dtype)

    @property
    @override
    def traits(self) -> tuple[str, ...]:
        return (self.dtype,)

    @override
    def with_tile(self, tile: TileSizes, text: str | None) -> SoftmaxBuild:
        return SoftmaxBuild(self.dtype, text)

    def tiles(self, problem: SoftmaxProblem) -> tuple[int, int]:
        """How many rows the problem has, and how many times `BLOCK_COLUMNS` a row is."""
        return problem.rows, -(-problem.columns // BLOCK_COLUMNS)


BUILDS = tuple(SoftmaxBuild(dtype) for dtype in NUMPY_DTYPES)
"""float32 first: small mistakes cannot hide behind rounding there."""


LONGEST = 40
"""Runs of `BLOCK_COLUMNS` columns that a row has at most: about 5,000."""
EDGES = (1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
"""Columns at and beside the edges of a sector's worth, a warp and one or two blocks of threads."""

SPECIAL_VALUES = (0.0, 1.0, -1.0, -0.0, 1e-40, 6e-8, 1e-3, 60.0, -60.0, math.nan, -math.inf)
"""Nothing, signs, subnormal in float32 and in float16, what stands out of a normal draw, and what is not finite."""
RAISING_VALUES = (0.0, 60.0, math.nan)
"""Where weights lie at the edge of what a dtype holds, a maximum that is taken away would put them beyond."""
LARGE_VALUES = (6e4, -6e4, math.inf)
"""exp leaves float32 there: only where the regime has that already (`BEYOND_EXP`)."""

MOST_ELEMENTS = 2**18
"""Elements of X: a fraction of a second on the emulator."""
MANY_AND_LONG = 9
"""Times as many where many rows and long ones meet, which is once: what strides over both shows nowhere else."""
BRIEF_ELEMENTS = 2**16
"""Elements of X in a brief case."""

ROWS, COLUMNS = "rows", "columns"
MANY_ROWS, MOST_ROWS = "over 1,024", "over 65,535"
LONG, LONGEST_ROWS = "up to 5,121", "over 8,192"
ROW_COUNTS: Mapping[str, tuple[int, ...]] = {
    "1": (1,),
    "2 to 5": (2, 3, 4, 5),
    "6 to 48": tuple(range(6, 49)),
    MANY_ROWS: (1025, 1056, 2048, 2049, 4100),
    MOST_ROWS: (65_600,),
}
WARP, THREE_BLOCKS = 32, 3 * BLOCK_COLUMNS
COLUMN_COUNTS: Mapping[str, tuple[int, ...]] = {
    "1": (1,),
    "2 to 32": tuple(sorted((*[n for n in EDGES if 1 < n <= WARP] * 5, *range(2, WARP + 1)))),
    "33 to 384": tuple(sorted((*[n for n in EDGES if n > WARP] * 30, *range(WARP + 1, THREE_BLOCKS + 1)))),
    LONG: tuple(blocks * BLOCK_COLUMNS + beside for blocks in (3, 5, 8, 17, LONGEST) for beside in (1, 127, 128)),
    LONGEST_ROWS: (8193, 8224, 12_287, 16_384, 16_385, 20_000),
}
"""How many there are in each class, the fewest first."""
WEIGHTS = {
    ROWS: {MANY_ROWS: 0.2, MOST_ROWS: 0.1},
    COLUMNS: {"1": 0.2, "2 to 32": 0.6, LONGEST_ROWS: 0.3},
    EDITS: {SOME: 0.3},
}
"""What hides mistakes, or takes long, comes up less readily."""
TOO_LONG = {
    (ROWS, MANY_ROWS): {COLUMNS: {LONGEST_ROWS}},
    (ROWS, MOST_ROWS): {COLUMNS: {"33 to 384", LONG, LONGEST_ROWS}},
    (CHECK, SANITIZER): {ROWS: {MANY_ROWS, MOST_ROWS}, COLUMNS: {LONGEST_ROWS}},
}
"""What does not go with what."""
COMMON: tuple[Choice, ...] = (
    {ROWS: "6 to 48", COLUMNS: LONG, EDITS: NONE, CHECK: NO_CHECK},
    {ROWS: "6 to 48", COLUMNS: "33 to 384", EDITS: NONE, CHECK: NO_CHECK},
    {ROWS: MANY_ROWS, COLUMNS: "33 to 384", EDITS: NONE, CHECK: NO_CHECK},
)
"""What users ask for most."""
LONE_ROW: Choice = {ROWS: "1", COLUMNS: LONGEST_ROWS, EDITS: NONE, CHECK: NO_CHECK, REGIME: "rising"}
"""The last columns matter most."""
LONE_COLUMNS = 66_000
"""Columns of a lone row: more than 16 bits count, and more parts than a kernel that combines them has room for."""


def special_values(regime: str) -> tuple[float, ...]:
    """What an element may be overwritten with."""
    if regime == "subnormal":
        return RAISING_VALUES
    return SPECIAL_VALUES + (LARGE_VALUES if regime in BEYOND_EXP else ())


class SoftmaxAxes(NamedAxes):
    """Rows, columns, edits, regimes and properties of softmax."""

    def __init__(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str] = ()) -> None:
        """`most_tiles`: the most rows times runs of `BLOCK_COLUMNS` columns. There are no features to take."""
        self._most_tiles = MOST_ELEMENTS if most_tiles is None else most_tiles
        names: dict[str, Iterable[str]] = {
            ROWS: [name for name, counts in ROW_COUNTS.items() if counts[0] <= self._most_tiles],
            COLUMNS: [name for name, counts in COLUMN_COUNTS.items() if _runs(counts[0]) <= self._most_tiles],
        }
        super().__init__(names, REGIMES, checks, WEIGHTS, TOO_LONG, COMMON, (LONE_ROW,))

    @override
    def case(self, build: SoftmaxBuild, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        rows_of_class, columns_of_class = ROW_COUNTS[choice[ROWS]], COLUMN_COUNTS[choice[COLUMNS]]
        most = MOST_ELEMENTS * (MANY_AND_LONG if (choice[ROWS], choice[COLUMNS]) == (MANY_ROWS, LONG) else 1)
        fitting = [n for n in columns_of_class if _runs(n) <= self._most_tiles]
        columns = rng.choice([n for n in fitting if rows_of_class[0] * n <= most] or fitting[:1])
        if all(choice[axis] == name for axis, name in LONE_ROW.items() if axis != REGIME) and not brief:
            columns = LONE_COLUMNS
        most_rows = min(most // columns, self._most_tiles // _runs(columns))
        row_counts = [n for n in rows_of_class if n <= most_rows] or [max(1, most_rows)]
        if brief:
            row_counts = [n for n in row_counts if n * columns <= BRIEF_ELEMENTS] or row_counts[:1]
        rows = rng.choice(row_counts)
        regime = choice[REGIME]
        values = special_values(regime)
        edits = self.edits(
            choice, rng, lambda: Edit("X", (rng.randrange(rows), rng.randrange(columns)), rng.choice(values))
        )
        problem = SoftmaxProblem(rows=rows, columns=columns, dtype=build.dtype)
        return Case(problem, regime, rng.randrange(2**16), edits, build.tile, self.check(choice))


def _runs(columns: int) -> int:
    """How many times `BLOCK_COLUMNS` a row is."""
    return -(-columns // BLOCK_COLUMNS)


FEW_COLUMNS = (1, 2, 31, 32, 33, BLOCK_COLUMNS - 1, BLOCK_COLUMNS, BLOCK_COLUMNS + 1)
FEWEST_COLUMNS = 16
"""Columns of the shortest problem."""


def size(case: Case, builds: Builds) -> tuple[object, ...]:
    """How large a case is: elements first, then the build, and how plain the inputs are."""
    p = case.problem
    rows, runs = builds.of(case).tiles(p)
    return (
        rows * runs,
        p.rows,
        p.columns,
        *builds.input_size(case),
        case.seed,
    )


def simpler(case: Case, builds: Builds) -> Iterator[Case]:
    """Cases that are smaller in one respect, the most worthwhile first; a few of them are not smaller at all."""
    p: SoftmaxProblem = case.problem
    for rows in dict.fromkeys((1, 2, p.rows // 2, p.rows - 1)):
        if 1 <= rows < p.rows:
            yield _changed(case, rows=rows)
    for columns in dict.fromkeys((*FEW_COLUMNS, p.columns // 2, p.columns - BLOCK_COLUMNS, p.columns - 1)):
        if 1 <= columns < p.columns:
            yield _changed(case, columns=columns)
            # Inputs under which every further column matters: where fewer of them hide a mistake.
            yield dataclasses.replace(_changed(case, columns=columns), regime="rising")
    yield from case.with_fewer_edits()
    for build in builds.simplified(builds.of(case)):
        yield dataclasses.replace(_changed(case, dtype=build.dtype), tile=build.tile)
    yield from case.with_plainer_regime()
    yield from case.with_small_seed()


def enlarged(case: Case, builds: Builds) -> Case:
    """A larger case with the same inputs: several rows, more than two blocks of columns."""
    p: SoftmaxProblem = case.problem
    return _changed(case, rows=max(p.rows, 4), columns=max(p.columns, 2 * BLOCK_COLUMNS + BLOCK_COLUMNS // 3))


def probed_axes(case: Case, builds: Builds) -> list[ProbedAxis]:
    """Columns, then rows, each alone."""
    p: SoftmaxProblem = case.problem
    return [
        ProbedAxis("columns", p.columns, BLOCK_COLUMNS, lambda length: _changed(case, columns=length)),
        ProbedAxis("rows", p.rows, 1, lambda length: _changed(case, rows=length)),
    ]


def peculiarities(case: Case, tiles: Sequence[int], assumed_tile: Sequence[int] = ()) -> list[str]:
    """What a case has beyond the plainest, in words."""
    p: SoftmaxProblem = case.problem
    takes = []
    if p.rows > 1:
        takes.append(f"{p.rows} rows")
    if p.columns > 1:
        takes.append(f"{p.columns} columns")
    if p.dtype != "float32":
        takes.append(p.dtype)
    return takes


def shorter(problem: SoftmaxProblem) -> Iterator[tuple[str, SoftmaxProblem]]:
    """The problem with half as many columns, and so on, each with the option that sets them."""
    columns = problem.columns // 2
    while columns >= FEWEST_COLUMNS:
        yield f"--columns {columns}", dataclasses.replace(problem, columns=columns)
        columns //= 2


def _changed(case: Case, **fields: object) -> Case:
    """With these fields of its problem, and without the edits that lie outside of it then."""
    return case.with_problem(dataclasses.replace(case.problem, **fields))
