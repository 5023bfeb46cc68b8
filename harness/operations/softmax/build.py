"""What softmax kernels have compiled in, as campaigns draw it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.model.cases.build import Build
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.tile_sizes import TileSizes
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
