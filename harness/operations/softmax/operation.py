"""Softmax as an operation: where each part of it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Operation, Part, Tolerance, TrivialAnswer
from harness.support.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from hypothesis import strategies as st

    from harness.model.axes import Axes
    from harness.model.build import Builds
    from harness.model.case import Case
    from harness.model.probed_axis import ProbedAxis
    from harness.model.property import Arrays, Property
    from harness.model.regime import Regime
    from harness.operations.softmax.build import SoftmaxBuild
    from harness.operations.softmax.problem import SoftmaxProblem

    Float64Array = npt.NDArray[np.float64]

LARGEST_SWEPT = 2**22
"""Rows, or columns. Beyond, even the closed forms would take minutes."""


class Softmax(Operation):
    """y_i = exp(x_i) / sum_j exp(x_j) in every row of a matrix."""

    name: ClassVar[str] = "softmax"
    idea: ClassVar[str] = "Y = softmax(X) in every row of a matrix"
    heeds: ClassVar[tuple[str, ...]] = ("functions", "sums")

    @property
    def problem(self) -> type[SoftmaxProblem]:
        """See `Operation.problem`."""
        from harness.operations.softmax.problem import SoftmaxProblem

        return SoftmaxProblem

    @property
    def regimes(self) -> Mapping[str, Regime]:
        """See `inputs`."""
        from harness.operations.softmax.inputs import REGIMES

        return REGIMES

    def answer(self, problem: Any, inputs: Arrays, part: Part = WHOLE) -> Mapping[str, Float64Array]:
        """See `oracle`."""
        from harness.operations.softmax.oracle import softmax

        return {"Y": softmax(problem, inputs["X"], part)}

    def tolerance(
        self,
        problem: Any,
        inputs: Arrays,
        answer: Mapping[str, Float64Array],
        numerics: Numerics,
        part: Part = WHOLE,
    ) -> Mapping[str, Tolerance]:
        """See `error_budget`."""
        from harness.operations.softmax.error_budget import error_budget

        return {"Y": error_budget(problem, inputs["X"], answer["Y"], numerics, part)}

    def trivial_answers(self, problem: Any, inputs: Arrays) -> Mapping[str, TrivialAnswer]:
        """Equal probabilities, and the softmax of the first half of the columns."""
        from harness.operations.softmax.trivial_answers import trivial_answers

        return trivial_answers(problem, inputs["X"])

    def shorter(self, problem: Any) -> Iterator[tuple[str, Any]]:
        """Half as many columns, and so on."""
        columns = problem.columns // 2
        while columns >= 16:
            yield f"--columns {columns}", dataclasses.replace(problem, columns=columns)
            columns //= 2

    def needed_read_bytes(self, problem: Any, inputs: Arrays) -> int:
        """All of X: whatever the others of a row are, an element that is made large enough takes all the weight.

        But for a row of one element, which is 1, and rows with a NaN or an infinity, where others may not matter.
        """
        import numpy as np

        rows = int(np.isfinite(inputs["X"].astype(np.float64)).all(axis=1).sum())
        return rows * problem.columns * problem.itemsize_bytes if problem.columns > 1 else 0

    @property
    def builds(self) -> tuple[SoftmaxBuild, ...]:
        """See `build`."""
        from harness.operations.softmax.build import BUILDS

        return BUILDS

    def cases(
        self, builds: Sequence[Any], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> st.SearchStrategy[Case]:
        """See `strategies`. Problems have no features that a variant might not take."""
        from harness.operations.softmax.strategies import MOST_TILES, cases

        return cases(builds, MOST_TILES if most_tiles is None else most_tiles, checks)

    def axes(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> Axes:
        """See `axes`."""
        from harness.operations.softmax.axes import SoftmaxAxes

        return SoftmaxAxes(most_tiles, checks)

    @property
    def properties(self) -> Mapping[str, Property]:
        """See `properties`."""
        from harness.operations.softmax.properties import PROPERTIES

        return PROPERTIES

    def simpler(self, case: Case, builds: Builds) -> Iterator[Case]:
        """See `simplification`."""
        from harness.operations.softmax.simplification import simpler

        return simpler(case, builds)

    def size(self, case: Case, builds: Builds) -> tuple[object, ...]:
        """See `simplification`."""
        from harness.operations.softmax.simplification import size

        return size(case, builds)

    def enlarged(self, case: Case, builds: Builds) -> Case:
        """See `simplification`."""
        from harness.operations.softmax.simplification import enlarged

        return enlarged(case, builds)

    def peculiarities(self, case: Case, tiles: Sequence[int]) -> list[str]:
        """See `simplification`."""
        from harness.operations.softmax.simplification import peculiarities

        return peculiarities(case, tiles)

    def probed_axes(self, case: Case, builds: Builds) -> Sequence[ProbedAxis]:
        """See `simplification`."""
        from harness.operations.softmax.simplification import probed_axes

        return probed_axes(case, builds)

    def known_mistakes(
        self, problem: Any, inputs: Arrays, tile_keys: int | None
    ) -> Iterator[tuple[str, Mapping[str, Float64Array]]]:
        """See `known_mistakes`."""
        from harness.operations.softmax.known_mistakes import known_mistakes

        return known_mistakes(problem, inputs)

    def parts(self, problem: Any, whole_flops: float) -> tuple[Part, ...]:
        """See `parts`."""
        from harness.operations.softmax.parts import choose_parts

        return choose_parts(problem, whole_flops)

    def problem_of_shapes(
        self, shapes: Mapping[str, tuple[int, ...]], dtype: str, said: Mapping[str, Any]
    ) -> SoftmaxProblem:
        """See `Operation.problem_of_shapes`."""
        rows, columns = shapes["X"]
        return self.problem.from_fields({"rows": rows, "columns": columns, "dtype": dtype, **said})

    def require_sweepable(self, problem: Any) -> None:
        """See `Operation.require_sweepable`."""
        if max(problem.rows, problem.columns) > LARGEST_SWEPT:
            raise UsageError(
                f"--sweep reaches {problem.rows:,} rows x {problem.columns:,} columns; the most is {LARGEST_SWEPT:,} "
                "either way"
            )


OPERATION = Softmax()
