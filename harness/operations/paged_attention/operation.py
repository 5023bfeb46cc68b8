"""Paged attention as an operation: where each part of it is."""

from __future__ import annotations

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
    from harness.model.build import Builds
    from harness.model.case import Case
    from harness.model.probed_axis import ProbedAxis
    from harness.model.property import Arrays, Property
    from harness.model.regime import Regime
    from harness.operations.paged_attention.build import PagedBuild
    from harness.operations.paged_attention.problem import PagedProblem

    Float64Array = npt.NDArray[np.float64]

LARGEST_SWEPT = 2**20
"""Keys of a sequence, sequences, or rows of all heads. Beyond, even the closed forms would take minutes."""


class PagedAttention(Operation):
    """Attention of a few last rows of each sequence to all its keys, which a table finds in a pool of pages."""

    name: ClassVar[str] = "paged-attention"
    idea: ClassVar[str] = "the last rows of sequences of any lengths, their K and V in pages"
    heeds: ClassVar[tuple[str, ...]] = (
        "scores", "weights", "functions", "sums", "one_score", "divides_last", "scaled_q", "factors",
    )  # fmt: skip

    @property
    def problem(self) -> type[PagedProblem]:
        """See `Operation.problem`."""
        from harness.operations.paged_attention.problem import PagedProblem

        return PagedProblem

    @property
    def regimes(self) -> Mapping[str, Regime]:
        """See `inputs`."""
        from harness.operations.paged_attention.inputs import REGIMES

        return REGIMES

    def derived_inputs(self, problem: Any) -> Mapping[str, np.ndarray]:
        """The lengths: those that a user gives to `run` have become the problem's."""
        from harness.operations.paged_attention.inputs import lengths_of

        return lengths_of(problem)

    def answer(self, problem: Any, inputs: Arrays, part: Part = WHOLE) -> Mapping[str, Float64Array]:
        """See `oracle`."""
        from harness.operations.paged_attention.oracle import answer

        return answer(problem, inputs, part)

    def tolerance(
        self,
        problem: Any,
        inputs: Arrays,
        answer: Mapping[str, Float64Array],
        numerics: Numerics,
        part: Part = WHOLE,
    ) -> Mapping[str, Tolerance]:
        """See `oracle`."""
        from harness.operations.paged_attention.oracle import tolerance

        return tolerance(problem, inputs, answer, numerics, part)

    def trivial_answers(self, problem: Any, inputs: Arrays) -> Mapping[str, TrivialAnswer]:
        """Attention's, for each sequence."""
        from harness.operations.paged_attention.trivial_answers import trivial_answers

        return trivial_answers(problem, inputs)

    def shorter(self, problem: Any) -> Iterator[tuple[str, Any]]:
        """Half as many keys, and so on."""
        from harness.operations.paged_attention.simplification import shorter

        return shorter(problem)

    def needed_read_bytes(self, problem: Any, inputs: Arrays) -> int:
        """See `oracle`."""
        from harness.operations.paged_attention.oracle import needed_read_bytes

        return needed_read_bytes(problem, inputs)

    @property
    def builds(self) -> tuple[PagedBuild, ...]:
        """See `build`."""
        from harness.operations.paged_attention.build import BUILDS

        return BUILDS

    def builds_of(self, seed: int) -> tuple[PagedBuild, ...]:
        """See `build`."""
        from harness.operations.paged_attention.build import builds_of

        return builds_of(seed)

    def cases(
        self, builds: Sequence[Any], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> st.SearchStrategy[Case]:
        """See `strategies`."""
        from harness.operations.paged_attention.strategies import MOST_TILES, cases

        return cases(builds, MOST_TILES if most_tiles is None else most_tiles, checks, takes=takes)

    def axes(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> Axes:
        """See `axes`."""
        from harness.operations.paged_attention.axes import PagedAxes

        return PagedAxes(most_tiles, checks, takes)

    @property
    def properties(self) -> Mapping[str, Property]:
        """See `properties`."""
        from harness.operations.paged_attention.properties import PROPERTIES

        return PROPERTIES

    def simpler(self, case: Case, builds: Builds) -> Iterator[Case]:
        """See `simplification`."""
        from harness.operations.paged_attention.simplification import simpler

        return simpler(case, builds)

    def size(self, case: Case, builds: Builds) -> tuple[object, ...]:
        """See `simplification`."""
        from harness.operations.paged_attention.simplification import size

        return size(case, builds)

    def enlarged(self, case: Case, builds: Builds) -> Case:
        """See `simplification`."""
        from harness.operations.paged_attention.simplification import enlarged

        return enlarged(case, builds)

    def peculiarities(self, case: Case, tiles: Sequence[int]) -> list[str]:
        """See `simplification`."""
        from harness.operations.paged_attention.simplification import peculiarities

        return peculiarities(case, tiles)

    def probed_axes(self, case: Case, builds: Builds) -> Sequence[ProbedAxis]:
        """See `simplification`."""
        from harness.operations.paged_attention.simplification import probed_axes

        return probed_axes(case, builds)

    def known_mistakes(
        self, problem: Any, inputs: Arrays, tile_keys: int | None
    ) -> Iterator[tuple[str, Mapping[str, Float64Array]]]:
        """See `known_mistakes`."""
        from harness.operations.paged_attention.known_mistakes import known_mistakes

        return known_mistakes(problem, inputs, tile_keys)

    def hints(self, problem: Any, output: str) -> Hints:
        """Those of attention without dropout."""
        from harness.operations.attention.hints import forward_hints

        return forward_hints(problem.tau, output)

    def parts(self, problem: Any, whole_flops: float) -> tuple[Part, ...]:
        """See `parts`."""
        from harness.operations.paged_attention.parts import choose_parts

        return choose_parts(problem, whole_flops)

    @property
    def settings(self) -> tuple[str, ...]:
        """What arrays do not say."""
        return ("scale",)

    def problem_of_arrays(self, arrays: Arrays, dtype: str, said: Mapping[str, Any]) -> PagedProblem:
        """See `Operation.problem_of_arrays`, and `table`."""
        from harness.operations.paged_attention.table import problem_of

        return problem_of(arrays, dtype, said)

    def field_in_words(self, problem: Any, name: str) -> list[str]:
        """See `Operation.field_in_words`."""
        from harness.operations.paged_attention.problem import lengths_in_words

        if name == "lengths":
            return [lengths_in_words(problem.lengths)]
        silent = name in ("batch", "pages", "table_len", "scale", "in_use") or (name == "prefix" and not problem.prefix)
        return [] if silent else super().field_in_words(problem, name)

    def require_sweepable(self, problem: Any) -> None:
        """See `Operation.require_sweepable`."""
        rows = problem.sequences * problem.heads * problem.q_len
        if max(*problem.lengths, rows) > LARGEST_SWEPT:
            raise UsageError(
                f"--sweep reaches {max(problem.lengths):,} keys in a sequence and {rows:,} rows over all heads; the "
                f"most is {LARGEST_SWEPT:,} either way"
            )

    def libraries(self) -> Mapping[str, Callable[[Any], Any]]:
        """See `libraries`."""
        from harness.operations.paged_attention.libraries import libraries

        return libraries()

    def libraries_in_words(self, torch: str) -> str:
        """See `libraries`."""
        return f"cudnn: cuDNN's attention over pages by its own front end, on tensors of PyTorch {torch}."

    @property
    def flops_in_words(self) -> str:
        """Attention's."""
        return operation_named("attention").flops_in_words


OPERATION = PagedAttention()
