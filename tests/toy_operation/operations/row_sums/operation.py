"""Row sums as an operation, as little as one needs: a problem, regimes, an answer, a tolerance, builds and cases."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from harness.model.cases.build import Build
from harness.model.cases.case import Case
from harness.model.cases.regime import Regime, by_name
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Operation, Part, Tolerance
from harness.model.problem import INPUT, OUTPUT, BaseProblem, Tensor, option
from harness.model.tile_sizes import TileSizes
from harness.support.errors import ProblemError


@dataclass(frozen=True, kw_only=True)
class RowSumsProblem(BaseProblem):
    """y_i = sum_j X_ij in float32."""

    operation: ClassVar[str] = "row-sums"

    rows: int = option(64, "rows of X")
    columns: int = option(64, "columns of X")

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise ProblemError("rows and columns have to be at least 1")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        X = Tensor("X", (self.rows, self.columns), "float32", INPUT, ("row", "column"))
        return X, Tensor("y", (self.rows,), "float32", OUTPUT, ("row",))

    @property
    def flops(self) -> int:
        return self.rows * self.columns

    @property
    def headline(self) -> str:
        return f"sums of {self.rows} rows of {self.columns}"

    @property
    def build_key(self) -> tuple[Hashable, ...]:
        return ()


@dataclass(frozen=True)
class RowSumsBuild(Build):
    tile: str | None = None

    @property
    def plain_problem(self) -> RowSumsProblem:
        return RowSumsProblem()

    def with_tile(self, tile: TileSizes, text: str | None) -> RowSumsBuild:
        return RowSumsBuild(text)

    def tiles(self, problem: RowSumsProblem) -> tuple[int, ...]:
        return (-(-problem.rows // 64),)


def answer(problem: RowSumsProblem, inputs: Any, part: Part = WHOLE) -> Mapping[str, Any]:
    return {"y": inputs["X"].astype(np.float64).sum(axis=1)[part.where]}


def tolerance(
    problem: RowSumsProblem, inputs: Any, answer: Any, numerics: Numerics, part: Part = WHOLE
) -> Mapping[str, Tolerance]:
    # Higham 2002, section 3.1: n u sum |x|, in any order.
    allowed = problem.columns * 2.0**-24 * np.abs(inputs["X"].astype(np.float64)).sum(axis=1)[part.where]
    return {"y": Tolerance(allowed, allowed)}


def cases(
    builds: Sequence[Any], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
) -> st.SearchStrategy[Case]:
    sizes = st.integers(1, 130)
    return st.builds(
        lambda rows, columns, seed: Case(RowSumsProblem(rows=rows, columns=columns), seed=seed),
        sizes, sizes, st.integers(0, 99),
    )  # fmt: skip


OPERATION = Operation(
    name="row-sums",
    idea="the sum of each row",
    problem=RowSumsProblem,
    regimes=by_name(Regime("normal", "N(0, 1)", lambda rng, p: [rng.standard_normal((p.rows, p.columns))])),
    answer=answer,
    tolerance=tolerance,
    builds_of=lambda seed: (RowSumsBuild(),),
    cases=cases,
    size=lambda case, builds: (case.problem.rows, case.problem.columns, case.seed),
)
