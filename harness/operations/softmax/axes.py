"""What campaigns of softmax meet on purpose: rows, columns, inputs and properties.

Columns come in classes around warps and blocks of threads, and one far beyond, where a row does not fit what a block
keeps of it. Sizes that would take long together are cut to what a case may cost (`MOST_ELEMENTS`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence

from harness.model.cases.axes import CHECK, NO_CHECK, REGIME, Choice, NamedAxes
from harness.model.cases.case import Case, Edit
from harness.model.cases.property import SANITIZER
from harness.operations.softmax.build import BLOCK_COLUMNS, SoftmaxBuild
from harness.operations.softmax.inputs import BEYOND_EXP, REGIMES
from harness.operations.softmax.problem import SoftmaxProblem
from harness.support.override import override

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

ROWS, COLUMNS, EDITS = "rows", "columns", "edits"
NONE, SOME = "none", "some"
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
            EDITS: (NONE, SOME),
            REGIME: REGIMES,
            CHECK: (NO_CHECK, *checks),
        }
        super().__init__(names, WEIGHTS, TOO_LONG, COMMON, (LONE_ROW,))

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
        edits = tuple(
            Edit("X", (rng.randrange(rows), rng.randrange(columns)), rng.choice(special_values(regime)))
            for _ in range(rng.randint(1, 3) if choice[EDITS] == SOME else 0)
        )
        problem = SoftmaxProblem(rows=rows, columns=columns, dtype=build.dtype)
        check = None if choice[CHECK] == NO_CHECK else choice[CHECK]
        return Case(problem, regime, rng.randrange(2**16), edits, build.tile, check)


def _runs(columns: int) -> int:
    """How many times `BLOCK_COLUMNS` a row is."""
    return -(-columns // BLOCK_COLUMNS)
