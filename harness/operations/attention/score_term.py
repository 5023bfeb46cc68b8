"""What the operation has to know of a score term, a change of scores s = tau q.k before the softmax.

`score_terms` has a row for each term. All that differs between terms is asked of the row, and nothing else names one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Float64Array, Mask
from harness.model.cases.axes import Pick
from harness.model.cases.case import Edit
from harness.model.problem import INPUT, Tensor
from harness.support.errors import ProblemError

if TYPE_CHECKING:
    from harness.operations.attention.budget.rounding_sizes import Roundings
    from harness.operations.attention.problem import Problem

Array = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating[Any]]
Inputs = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ScoreErrors:
    """Errors of scores, (b, h, rows, keys)."""

    proved: Array
    expected: Array
    common: Array | float
    """The part of the expected error that all keys share."""
    query: Array | float
    """The part of `proved` that is due to Q's scaling, which all products with that Q share."""
    expected_query: Array | float
    """The part of `common` that is due to Q's scaling."""
    largest: Array
    """The largest magnitude of the score before and after each term, since a kernel may store it after each."""

    def stored(self, rounding: Roundings) -> Array | float:
        """Return the error of storing the score."""
        return rounding.scores * (self.largest + self.proved) + rounding.scores_step if rounding.scores else 0.0

    def scaled(self, factor: Array, limit: np.float32 | None = None) -> ScoreErrors:
        """Return all errors times `factor`, the derivative of a term, and at most `limit`."""
        return self.map(lambda error: factor * error if limit is None else np.minimum(factor * error, limit))

    def plus(self, own: Array, after: Array) -> ScoreErrors:
        """Return the errors after a term with the errors `own`, which are not random, given magnitudes after it."""
        return dataclasses.replace(
            self, proved=self.proved + own, common=self.common + own, largest=np.maximum(self.largest, after)
        )

    def map(self, function: Callable[[Array], Array]) -> ScoreErrors:
        """Return the errors with `function` applied to each array. Numbers are 0, for errors that there are not."""
        return ScoreErrors(**{name: function(e) if isinstance(e, np.ndarray) else e for name, e in vars(self).items()})


@dataclass(frozen=True)
class DerivativeErrors:
    """Errors of a term's derivative, (b, h, rows, keys)."""

    proved: Floats | float = 0.0
    expected: Floats | float = 0.0
    """Expected errors, as if roundings were random."""
    common: Floats | float = 0.0
    """The part of the expected error that equal scores share; added to `expected`."""

    def map(self, function: Callable[[Floats | float], Floats]) -> DerivativeErrors:
        """Return the errors with `function` applied to each."""
        return DerivativeErrors(function(self.proved), function(self.expected), function(self.common))


class Effect:
    """A term for some query heads, rows and keys. Its arrays broadcast to scores, (b, h, rows, keys)."""

    hides: Mask | None = None
    """Keys that it hides by making their scores -inf. None if it hides none."""

    def apply(self, scores: Float64Array) -> Float64Array:
        """Return the scores after the term."""
        raise NotImplementedError

    def before(self, scores: Float64Array) -> Float64Array:
        """Return scores before the term, given those after it, if they may overflow 16 bits where these do not."""
        return scores

    def errors(self, errors: ScoreErrors, before: Array, after: Array, rounding: Roundings) -> ScoreErrors:
        """Return errors after the term, given those before it, and magnitudes of the scores before and after it."""
        raise NotImplementedError

    def derivative(self, scores: Float64Array) -> Float64Array | None:
        """Return the derivative of `apply` at scores before the term; None if it is 1, as that of a summand."""
        return None

    def derivative_errors(self, errors: ScoreErrors, before: Array, rounding: Roundings) -> DerivativeErrors:
        """Return the errors of a derivative other than 1, given the errors and magnitudes of scores before the term."""
        return DerivativeErrors()


class ScoreTerm:
    """A row: a field of `Problem`, which is also a feature that variants may list in `takes`, and what it means.

    The defaults are those of a term that is on or off and has an input with one element per query head. The class has
    the name of the term's type in kernels.
    """

    # The field.

    field: ClassVar[str]
    label: ClassVar[str]
    """The term within a sentence, such as `the soft cap`."""
    off: ClassVar[Any] = False
    """The field's value without the term."""
    plain: ClassVar[Any] = True
    """The simplest value with the term."""

    # `Any`: attention's problem, or one of another operation that has the field.

    def is_on(self, problem: Any) -> bool:
        """Whether the problem has the term."""
        return bool(getattr(problem, self.field) != self.off)

    def checked(self, value: Any) -> Any:
        """Return the field's value. Raises `ProblemError` if it is invalid."""
        if not isinstance(value, bool):
            raise ProblemError(f"{self.field} is {value!r}; it has to be true or false")
        return value

    def as_json(self, value: Any) -> Any:
        """Return the field's value for JSON, which `checked` takes."""
        return value

    def in_words(self, problem: Any) -> str:
        """Describe the term of a problem that has it."""
        return self.field

    def axes(self, problem: Problem) -> tuple[str, ...]:
        """Return the axes that the field lists, if it lists some: fewer are simpler."""
        return ()

    # Inputs.

    input_names: ClassVar[tuple[str, ...]] = ()
    inputs_follow: ClassVar[bool] = False
    """Whether the inputs, if any, follow from the problem (`derived`), and are not drawn."""

    def value_of_array(self, array: np.ndarray) -> Any:
        """Return the field's value in a problem with this array as the input."""
        return self.plain

    def inputs(self, problem: Any) -> tuple[Tensor, ...]:
        """Return the inputs of a problem that has the term.

        Axes along which they vary with the row or the key of a score are named `row` and `key`.
        """
        return tuple(Tensor(name, (problem.heads,), "float32", INPUT, ("head",)) for name in self.input_names)

    def derived(self, problem: Any) -> Inputs:
        """Return inputs that follow from the problem."""
        return {}

    def draw(self, regime: str, rng: np.random.Generator, problem: Problem, drawn: Inputs) -> Float64Array:
        """Draw the input, given Q, K, V and the inputs of terms before this one."""
        raise NotImplementedError

    # Scores and their errors.

    changes_scores: ClassVar[bool] = True
    """Whether it is a score term. Sinks are none: they are an additional key."""
    numerics: ClassVar[tuple[str, ...]] = ()
    """Fields of `Numerics` that affect the term's errors."""
    product_roundings: ClassVar[int] = 0
    """Roundings of the factor on q.k that a kernel needs because of the term."""

    has_gradient: ClassVar[bool] = False
    """Whether the gradient of its input is an output of `attention-backward`. The input of a score term is then a
    summand, so that its gradient is that of the scores, summed over the axes that it does not vary over."""

    def effect(self, problem: Problem, inputs: Inputs, heads: slice, rows: slice, keys: slice) -> Effect:
        """Return the effect on these query heads, rows and keys. The slices have explicit bounds."""
        raise NotImplementedError

    def range_of_change(self, problem: Problem, inputs: Inputs) -> tuple[float, float] | None:
        """Return the least and most that is added to a score. None if unknown: no bytes count as needed then."""
        return None

    # Cases of the fuzzer, and properties.

    values: ClassVar[tuple[Any, ...]] = ()
    """Values of the field that cases have. Empty: `plain`."""
    is_drawn_always: ClassVar[bool] = False
    """Whether a value is drawn for builds without the term, too."""
    special_values: ClassVar[tuple[float, ...]] = ()
    """Elements of its input worth trying."""
    depends_on_distance: ClassVar[bool] = False
    """Whether scores depend on the distance of row and key."""
    keeps_shifts: ClassVar[bool] = False
    """Whether scores that all grow by the same number before the term do so after it."""

    def edits(self, pick: Pick, problem: Any) -> tuple[Edit, ...]:
        """Return changes of its inputs to make in a case."""
        return ()

    def may_hide(self, inputs: Inputs) -> bool:
        """Whether the term may hide keys of these inputs."""
        return False

    def mistakes(self, problem: Problem, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
        """Yield other values of its inputs that kernels are known to use by mistake, and what they are."""
        return iter(())

    # Kernels.

    def members(self, problem: Problem, unit: float) -> tuple[Any, ...]:
        """Return the members of the term's type in kernels that compute scores in multiples of `unit`.

        Names stand for inputs, numbers are NumPy scalars. Raises `PlanError` if there can be no such kernel.
        """
        return self.input_names

    def score_mod(self, torch: Any, problem: Problem, inputs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return (score, head, row, key) -> score for PyTorch's `flex_attention`, given its inputs on the GPU.

        Without this method, `flex_attention` does not take the term.
        """
        raise NotImplementedError
