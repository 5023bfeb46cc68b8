"""Attention as an operation: where each part of it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Hints, Operation, OrderedSum, Part, Tolerance, TrivialAnswer
from harness.support.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from hypothesis import strategies as st

    from harness.model.axes import Axes
    from harness.model.build import Builds
    from harness.model.case import Case
    from harness.model.io_bound import IoBound
    from harness.model.probed_axis import ProbedAxis
    from harness.model.property import Arrays, Property
    from harness.model.regime import Regime
    from harness.model.summation_tree import SummationTree
    from harness.operations.attention.build import AttentionBuild
    from harness.operations.attention.problem import Problem

    Float64Array = npt.NDArray[np.float64]

LARGEST_LENGTH = 2**20
LARGEST_ROWS = 2**22
"""Rows of all heads together. Beyond, even the closed forms would take minutes."""


class Attention(Operation):
    """O = softmax(scale * Q K^T + mask) V per head, after Vaswani et al. 2017, equation 1."""

    name: ClassVar[str] = "attention"
    heeds: ClassVar[tuple[str, ...]] = (
        "scores", "weights", "functions", "tanh", "sums", "one_score", "divides_last", "scaled_q", "factors",
    )  # fmt: skip
    has_io_bound: ClassVar[bool] = True
    idea: ClassVar[str] = "O = softmax(scale Q K^T + mask) V, forward"

    @property
    def problem(self) -> type[Problem]:
        """See `Operation.problem`."""
        from harness.operations.attention.problem import Problem

        return Problem

    @property
    def regimes(self) -> Mapping[str, Regime]:
        """See `inputs`."""
        from harness.operations.attention.inputs import REGIMES

        return REGIMES

    def derived_inputs(self, problem: Any) -> Mapping[str, np.ndarray]:
        """See `masks.arrays`; and the slopes of ALiBi's paper."""
        from harness.operations.attention.masks.arrays import mask_arrays
        from harness.operations.attention.score_inputs import slope_arrays

        return {**mask_arrays(problem), **slope_arrays(problem)}

    def answer(self, problem: Any, inputs: Arrays, part: Part = WHOLE) -> Mapping[str, Float64Array]:
        """See `oracle`."""
        from harness.operations.attention.oracle import attention

        return attention(problem, inputs, part)

    def tolerance(
        self,
        problem: Any,
        inputs: Arrays,
        answer: Mapping[str, Float64Array],
        numerics: Numerics,
        part: Part = WHOLE,
    ) -> Mapping[str, Tolerance]:
        """See `error_budget`."""
        from harness.operations.attention.error_budget import error_budget
        from harness.operations.attention.oracle import Reference

        reference = answer if isinstance(answer, Reference) else Reference(answer["O"], answer["lse"])
        budget = error_budget(problem, inputs, reference, numerics, part)
        return {"O": Tolerance(budget.O, budget.expected_O), "lse": Tolerance(budget.lse, budget.expected_lse)}

    def trivial_answers(self, problem: Any, inputs: Arrays) -> Mapping[str, TrivialAnswer]:
        """The mean of V over the keys that a row sees, and the answer without the second half of them."""
        from harness.operations.attention.trivial_answers import trivial_answers

        return trivial_answers(problem, inputs)

    def shorter(self, problem: Any) -> Iterator[tuple[str, Any]]:
        """Half as many keys, and so on."""
        from harness.operations.attention.simplification import shorter

        return shorter(problem)

    def needed_read_bytes(self, problem: Any, inputs: Arrays) -> int:
        """See `needed_bytes`."""
        from harness.operations.attention.needed_bytes import needed_read_bytes

        return needed_read_bytes(problem, inputs)

    @property
    def builds(self) -> tuple[AttentionBuild, ...]:
        """See `build`."""
        from harness.operations.attention.build import BUILDS

        return BUILDS

    def builds_of(self, seed: int) -> tuple[AttentionBuild, ...]:
        """See `build`."""
        from harness.operations.attention.build import builds_of

        return builds_of(seed)

    def cases(
        self, builds: Sequence[Any], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> st.SearchStrategy[Case]:
        """See `strategies`."""
        from harness.operations.attention.strategies import MOST_TILES, cases

        return cases(builds, MOST_TILES if most_tiles is None else most_tiles, checks, takes=takes)

    def axes(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> Axes:
        """See `axes`."""
        from harness.operations.attention.axes import AttentionAxes

        return AttentionAxes(most_tiles, checks, takes)

    def leaves_regime(self, case: Case) -> bool:
        """See `Operation.leaves_regime`: where scores may be larger than the regime's at the default scale."""
        from harness.operations.attention.strategies import raises_scores

        return raises_scores(case)

    @property
    def properties(self) -> Mapping[str, Property]:
        """See `properties`."""
        from harness.operations.attention.properties import PROPERTIES

        return PROPERTIES

    def simpler(self, case: Case, builds: Builds) -> Iterator[Case]:
        """See `simplification`."""
        from harness.operations.attention.simplification import simpler

        return simpler(case, builds)

    def size(self, case: Case, builds: Builds) -> tuple[object, ...]:
        """See `simplification`."""
        from harness.operations.attention.simplification import size

        return size(case, builds)

    def enlarged(self, case: Case, builds: Builds) -> Case:
        """See `simplification`."""
        from harness.operations.attention.simplification import enlarged

        return enlarged(case, builds)

    def peculiarities(self, case: Case, tiles: Sequence[int]) -> list[str]:
        """See `simplification`."""
        from harness.operations.attention.simplification import peculiarities

        return peculiarities(case, tiles)

    def heeded(self, problem: Any) -> tuple[str, ...]:
        """A tangent is of a cap's."""
        return tuple(name for name in self.heeds if name != "tanh" or problem.softcap is not None)

    def probed_axes(self, case: Case, builds: Builds) -> Sequence[ProbedAxis]:
        """See `simplification`."""
        from harness.operations.attention.simplification import probed_axes

        return probed_axes(case, builds)

    def known_mistakes(
        self, problem: Any, inputs: Arrays, tile_keys: int | None
    ) -> Iterator[tuple[str, Mapping[str, Float64Array]]]:
        """See `known_mistakes`."""
        from harness.operations.attention.known_mistakes import known_mistakes

        return known_mistakes(problem, inputs, tile_keys)

    def hints(self, problem: Any, output: str) -> Hints:
        """Bases of logarithms and exponentials mixed up, signs; for lse a scale that is missing or there twice."""
        from harness.operations.attention.hints import forward_hints

        return forward_hints(problem.tau, output, 1 / problem.kept_factor if problem.dropout else None)

    def parts(self, problem: Any, whole_flops: float) -> tuple[Part, ...]:
        """See `parts`."""
        from harness.operations.attention.parts import choose_parts

        return choose_parts(problem, whole_flops)

    @property
    def settings(self) -> tuple[str, ...]:
        """What shapes do not say."""
        return ("mask", "scale", "softcap", "alibi", "dropout", "dropout_seed")

    @property
    def further_inputs(self) -> Mapping[str, tuple[str, Any]]:
        """Slopes of one's own, and sinks."""
        return {"slopes": ("alibi", True), "sinks": ("sinks", True)}

    def problem_of_shapes(self, shapes: Mapping[str, tuple[int, ...]], dtype: str, said: Mapping[str, Any]) -> Problem:
        """See `Operation.problem_of_shapes`."""
        q, k, v = (shapes[name] for name in "QKV")
        if k != v:
            raise UsageError(f"K has shape {k} and V {v}; they have to be the same")
        if q[0] != k[0]:
            raise UsageError(f"Q has batch {q[0]} and K and V have {k[0]}; they have to be the same")
        if q[3] != k[3]:
            raise UsageError(
                f"the rows of Q have {q[3]} elements and those of K and V {k[3]}; they have to be the same"
            )
        sizes = {"batch": q[0], "heads": q[1], "kv_heads": k[1], "q_len": q[2], "kv_len": k[2], "head_dim": q[3]}
        return self.problem.from_fields({**sizes, "dtype": dtype, **said})

    @property
    def lengths(self) -> Mapping[str, tuple[str, ...]]:
        """seq_len is both lengths."""
        return {"seq_len": ("q_len", "kv_len")}

    def field_in_words(self, problem: Any, name: str) -> list[str]:
        """See `Operation.field_in_words`."""
        if name == "mask":
            return [problem.mask.shown] if problem.mask.parts else []
        if name == "softcap":
            return [] if problem.softcap is None else [f"softcap {problem.softcap:g}"]
        if name in ("dropout", "dropout_seed"):
            said = f"dropout {problem.dropout:.4g}" if name == "dropout" else f"dropout seed {problem.dropout_seed}"
            return [said] if problem.dropout else []
        if name in ("alibi", "sinks"):
            return [{"alibi": "ALiBi"}.get(name, name)] if getattr(problem, name) else []
        if name == "scale" or (name == "kv_heads" and problem.kv_heads == problem.heads):
            return []
        return super().field_in_words(problem, name)

    def require_sweepable(self, problem: Any) -> None:
        """See `Operation.require_sweepable`."""
        p = problem
        longest = max(p.q_len, p.kv_len)
        rows = p.batch * p.heads * longest
        if longest > LARGEST_LENGTH or rows > LARGEST_ROWS or p.head_dim > LARGEST_LENGTH:
            raise UsageError(
                f"--sweep reaches batch {p.batch}, {p.heads} heads, {p.q_len} x {p.kv_len}, head_dim {p.head_dim}; "
                f"the most is {LARGEST_LENGTH:,} rows, {LARGEST_ROWS:,} over all heads"
            )

    def ordered_sums(
        self, problem: Any, run: Callable[[Any, Arrays], Arrays], known: Mapping[str, Sequence[SummationTree]]
    ) -> Sequence[OrderedSum]:
        """See `sums`."""
        from harness.operations.attention.sums import ordered_sums

        return ordered_sums(problem, run, known)

    def io_bound(self, problem: Any, on_chip_bytes: int) -> IoBound:
        """See `io_bound`."""
        from harness.operations.attention.io_bound import io_bound

        return io_bound(problem, on_chip_bytes)

    def libraries(self) -> Mapping[str, Callable[[Any], Any]]:
        """See `libraries`."""
        from harness.operations.attention.libraries import LIBRARIES

        return LIBRARIES

    def libraries_in_words(self, torch: str) -> str:
        """See `libraries`."""
        return (
            f"torch-*: scaled_dot_product_attention of PyTorch {torch}, one row per back end; torch-flex is its "
            "compiled flex_attention, cudnn is cuDNN by its own front end."
        )

    @property
    def flops_in_words(self) -> str:
        """See `Problem.flops`."""
        return "the two matrix products over the keys that each row sees"


OPERATION = Attention()
