"""The gradients of attention as an operation: where each part of it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Hints, Operation, Part, Tolerance, TrivialAnswer, operation_named
from harness.support.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from hypothesis import strategies as st

    from harness.model.axes import Axes
    from harness.model.build import Build, Builds
    from harness.model.case import Case
    from harness.model.probed_axis import ProbedAxis
    from harness.model.property import Arrays, Property
    from harness.model.regime import Regime
    from harness.operations.attention_backward.problem import BackwardProblem

    Float64Array = npt.NDArray[np.float64]


class AttentionBackward(Operation):
    """dQ, dK and dV, after Dao et al. 2022, arXiv 2205.14135, appendix B.2."""

    name: ClassVar[str] = "attention-backward"
    idea: ClassVar[str] = "dQ, dK and dV of O = softmax(scale Q K^T + mask) V, from Q, K, V, O, lse and dO"
    heeds: ClassVar[tuple[str, ...]] = ("scores", "weights", "functions", "sums")

    @property
    def problem(self) -> type[BackwardProblem]:
        """See `Operation.problem`."""
        from harness.operations.attention_backward.problem import BackwardProblem

        return BackwardProblem

    @property
    def regimes(self) -> Mapping[str, Regime]:
        """See `inputs`."""
        from harness.operations.attention_backward.inputs import REGIMES

        return REGIMES

    def derived_inputs(self, problem: Any) -> Mapping[str, np.ndarray]:
        """Attention's; and which rows see each key, for those who go through keys."""
        from harness.operations.attention.masks import runs_of_keys

        return {**operation_named("attention").derived_inputs(problem), **runs_of_keys(problem)}

    def answer(self, problem: Any, inputs: Arrays, part: Part = WHOLE) -> Mapping[str, Float64Array]:
        """See `oracle`."""
        from harness.operations.attention_backward.oracle import gradients

        return gradients(problem, inputs, part)

    def tolerance(
        self,
        problem: Any,
        inputs: Arrays,
        answer: Mapping[str, Float64Array],
        numerics: Numerics,
        part: Part = WHOLE,
    ) -> Mapping[str, Tolerance]:
        """See `error_budget`."""
        from harness.operations.attention_backward.error_budget import error_budget

        return error_budget(problem, inputs, answer, numerics, part)

    def trivial_answers(self, problem: Any, inputs: Arrays) -> Mapping[str, TrivialAnswer]:
        """With equal weights, and without the second half of the keys."""
        from harness.operations.attention_backward.trivial_answers import trivial_answers

        return trivial_answers(problem, inputs)

    def shorter(self, problem: Any) -> Iterator[tuple[str, Any]]:
        """Half as many keys, and so on."""
        return operation_named("attention").shorter(problem)

    @property
    def builds(self) -> tuple[Build, ...]:
        """Attention's."""
        from harness.operations.attention_backward.cases import BUILDS

        return BUILDS

    def builds_of(self, seed: int) -> tuple[Build, ...]:
        """Attention's."""
        from harness.operations.attention_backward.cases import builds_of

        return builds_of(seed)

    def cases(
        self, builds: Sequence[Any], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> st.SearchStrategy[Case]:
        """See `cases`."""
        from harness.operations.attention_backward.cases import cases

        return cases(builds, most_tiles, checks, takes)

    def axes(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> Axes:
        """See `cases`."""
        from harness.operations.attention_backward.cases import BackwardAxes

        return BackwardAxes(most_tiles, checks, takes)

    @property
    def properties(self) -> Mapping[str, Property]:
        """See `properties`."""
        from harness.operations.attention_backward.properties import PROPERTIES

        return PROPERTIES

    def simpler(self, case: Case, builds: Builds) -> Iterator[Case]:
        """See `cases`."""
        from harness.operations.attention_backward.cases import simpler

        return simpler(case, builds)

    def size(self, case: Case, builds: Builds) -> tuple[object, ...]:
        """See `cases`."""
        from harness.operations.attention_backward.cases import size

        return size(case, builds)

    def enlarged(self, case: Case, builds: Builds) -> Case:
        """See `cases`."""
        from harness.operations.attention_backward.cases import enlarged

        return enlarged(case, builds)

    def peculiarities(self, case: Case, tiles: Sequence[int]) -> list[str]:
        """Attention's."""
        return operation_named("attention").peculiarities(case, tiles)

    def probed_axes(self, case: Case, builds: Builds) -> Sequence[ProbedAxis]:
        """See `cases`."""
        from harness.operations.attention_backward.cases import probed_axes

        return probed_axes(case, builds)

    def hints(self, problem: Any, output: str) -> Hints:
        """A scale that is missing or there twice, bases mixed up, a group that is not summed over."""
        factors = {
            1 / math.log(2): "1 / ln 2: a logarithm to base 2",
            math.log(2): "ln 2: base 2 for base e",
            -1.0: "the sign is wrong",
        }
        if output != "dV" and problem.tau not in (0.0, 1.0):
            factors |= {1 / problem.tau: "the scale is missing", problem.tau: "the scale is applied twice"}
        return Hints(factors)

    def parts(self, problem: Any, whole_flops: float) -> tuple[Part, ...]:
        """See `parts`."""
        from harness.operations.attention_backward.parts import choose_parts

        return choose_parts(problem, whole_flops)

    @property
    def settings(self) -> tuple[str, ...]:
        """What shapes do not say."""
        return operation_named("attention").settings

    def problem_of_shapes(
        self, shapes: Mapping[str, tuple[int, ...]], dtype: str, said: Mapping[str, Any]
    ) -> BackwardProblem:
        """See `Operation.problem_of_shapes`."""
        from harness.operations.attention_backward.cases import backward

        for name in ("O", "dO"):
            if shapes[name] != shapes["Q"]:
                raise UsageError(f"Q has shape {shapes['Q']} and {name} {shapes[name]}; they have to be the same")
        if shapes["lse"] != shapes["Q"][:3]:
            raise UsageError(f"lse has shape {shapes['lse']}; one number for each row of Q would be {shapes['Q'][:3]}")
        return backward(operation_named("attention").problem_of_shapes(shapes, dtype, said))

    @property
    def lengths(self) -> Mapping[str, tuple[str, ...]]:
        """seq_len is both lengths."""
        return operation_named("attention").lengths

    def field_in_words(self, problem: Any, name: str) -> list[str]:
        """See `Operation.field_in_words`."""
        return operation_named("attention").field_in_words(problem, name)

    def require_sweepable(self, problem: Any) -> None:
        """See `Operation.require_sweepable`."""
        operation_named("attention").require_sweepable(problem)

    def libraries(self) -> Mapping[str, Callable[[Any], Any]]:
        """See `libraries`."""
        from harness.operations.attention_backward.libraries import libraries

        return libraries()

    def libraries_in_words(self, torch: str) -> str:
        """See `libraries`."""
        return (
            f"torch-*: the backward kernels of PyTorch {torch}, alone, one row per back end, with the O and lse of the "
            "problem; torch-flex is compiled flex_attention's. torch-math is the gradient of a forward pass of its own."
        )

    @property
    def flops_in_words(self) -> str:
        """See `BackwardProblem.flops`."""
        return "the five matrix products over the keys that each row sees"


OPERATION = AttentionBackward()
