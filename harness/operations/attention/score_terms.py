"""Score terms of attention, a row for each, and the fields that they add to `Problem`.

A new term is a field of `ScoreFields`, a subclass of `ScoreTerm`, and its place in `TERMS`. A term that depends on no
number of rows or keys has its field in `HeadScoreFields`, for other operations. A long class has a module of its own,
as the soft cap has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from harness.model.arithmetic.rounding import U
from harness.model.array_types import Float64Array, Mask
from harness.model.cases.axes import Pick
from harness.model.cases.case import Edit
from harness.model.problem import INPUT, BaseProblem, Tensor, option
from harness.operations.attention.bias import AXES, BIAS, axes_of_array, checked_axes, drawn_bias, parse_axes
from harness.operations.attention.score_term import Array, Effect, Inputs, ScoreErrors, ScoreTerm
from harness.operations.attention.sizes import Sizes
from harness.operations.attention.softcap import Softcap
from harness.support.errors import PlanError
from harness.support.numbers import real_number
from harness.support.override import override

if TYPE_CHECKING:
    from harness.operations.attention.budget.rounding_sizes import Roundings
    from harness.operations.attention.problem import Problem

SLOPES, SINKS = "slopes", "sinks"
"""Names of the inputs for ALiBi and for sinks: float32, one element per query head."""


@dataclass(frozen=True, kw_only=True)
class HeadScoreFields(BaseProblem):
    """The fields of terms that sequences of any lengths may have in common, and the rows of a problem's terms."""

    TERMS: ClassVar[tuple[ScoreTerm, ...]]
    """Score terms that a problem of the class may have, and sinks, in the order in which they apply."""

    softcap: float | None = option(
        None, "scores become C tanh(score / C), as in Gemma 2", metavar="C", parse=real_number, default_text="no cap"
    )
    """C: a score s = tau q.k becomes C tanh(s / C) (Gemma Team 2024, arXiv 2408.00118, section 2). None for no cap."""
    alibi: bool = option(False, "subtracts slope x |row's position - key| from each score", is_flag=True)
    """Whether score s of row i, key j and head h becomes s - slopes[h] abs(i + kv_len - q_len - j) (Press, Smith and
    Lewis 2022, ALiBi, arXiv 2108.12409, section 3). Without a causal mask this includes keys after the position."""
    sinks: bool = option(
        False,
        "adds exp(sink) to the softmax's denominator, with one sink per head and no row of V, as in gpt-oss",
        is_flag=True,
    )
    """Whether exp(sinks[h]) is added to the denominator of head h's rows (gpt-oss; Xiao et al. 2024, arXiv 2309.17453,
    call such a key a sink). It is part of lse. A row that sees no key has O = 0 and lse = sinks[h]."""

    def _check_terms(self) -> None:
        """Raise `ProblemError` if the field of a term is invalid."""
        for term in self.TERMS:
            object.__setattr__(self, term.field, term.checked(getattr(self, term.field)))

    @property
    def terms(self) -> tuple[ScoreTerm, ...]:
        """The score terms that are on, and sinks if these are."""
        return tuple(term for term in self.TERMS if term.is_on(self))

    @property
    def score_terms(self) -> tuple[ScoreTerm, ...]:
        """The score terms that are on. Sinks are none."""
        return tuple(term for term in self.terms if term.changes_scores)

    @property
    def score_features(self) -> tuple[str, ...]:
        """The fields of `terms`, which are also features that a variant may list in `takes`."""
        return tuple(term.field for term in self.terms)


@dataclass(frozen=True, kw_only=True)
class ScoreFields(HeadScoreFields, Sizes):
    """The fields of all terms."""

    bias: tuple[str, ...] | None = option(
        None, f"adds an input bias[h, i, j] to the scores; it varies along AXES, some of {','.join(AXES)}; without "
        "AXES: along all three",
        metavar="AXES", parse=parse_axes, if_alone=AXES, default_text="no bias",
    )  # fmt: skip
    """The axes over which the input `bias` varies, as a tuple or as text such as `heads,kv_len`; None for no bias. The
    score of row i, key j and head h becomes s + bias[h, i, j]. A bias of -infinity hides the key from the row."""

    @property
    def bias_shape(self) -> tuple[int, ...]:
        """Shape of the input `bias`: an extent of 1 along each axis over which it does not vary. () without bias."""
        return () if self.bias is None else tuple(getattr(self, axis) if axis in self.bias else 1 for axis in AXES)

    @property
    def bias_strides(self) -> tuple[int, int, int]:
        """Elements of `bias` between neighbouring heads, rows and keys; 0 along axes over which it does not vary."""
        heads, rows, keys = (axis in (self.bias or ()) for axis in AXES)
        per_row = self.kv_len if keys else 1
        return heads * per_row * (self.q_len if rows else 1), rows * per_row, int(keys)


# s becomes s - slope |distance| ---------------------------------------------------------------------------------------

STEEP_SLOPES = (1.0, 0.5)
"""Slopes of ALiBi. With few heads, the paper's take 1 / 256 or 1 / 16 off per key, which roundings hide."""


@dataclass(frozen=True)
class Penalized(Effect):
    """s - b, b = slope * distance.

    The difference is rounded by u. The error of b is 4u |b|: the slope times log2 e, log2 e itself, the distance if it
    exceeds 2^24, and its product. All keys share the rounding of the slope, which may be negative.
    """

    penalty: Float64Array
    """(h, rows, keys)."""

    @override
    def apply(self, scores: Float64Array) -> Float64Array:
        return scores - self.penalty

    @override
    def before(self, scores: Float64Array) -> Float64Array:
        return scores + self.penalty

    @override
    def errors(self, errors: ScoreErrors, before: Array, after: Array, rounding: Roundings) -> ScoreErrors:
        own = np.float32(4 * U) * np.abs(self.penalty).astype(np.float32) + np.float32(U) * after
        return errors.plus(own, after)


class Alibi(ScoreTerm):
    """ALiBi."""

    field = "alibi"
    label = "ALiBi"
    input_names = (SLOPES,)
    inputs_follow = True
    depends_on_distance = True
    keeps_shifts = True

    @override
    def in_words(self, problem: Problem) -> str:
        return "ALiBi"

    @override
    def derived(self, problem: Problem) -> Inputs:
        return {SLOPES: alibi_slopes(problem.heads).astype(np.float32)}

    @override
    def effect(self, problem: Problem, inputs: Inputs, heads: slice, rows: slice, keys: slice) -> Effect:
        place = problem.own_keys(np.arange(rows.start, rows.stop))[:, None]
        distance = np.abs(place - np.arange(keys.start, keys.stop))
        return Penalized(inputs[SLOPES][heads].astype(np.float64)[:, None, None] * distance)

    @override
    def range_of_change(self, problem: Problem, inputs: Inputs) -> tuple[float, float] | None:
        slopes, reach = inputs[SLOPES].astype(np.float64), problem.q_len + problem.kv_len
        if not np.isfinite(slopes).all():
            return None
        return -reach * max(float(slopes.max()), 0.0), reach * max(-float(slopes.min()), 0.0)

    @override
    def edits(self, pick: Pick, problem: Problem) -> tuple[Edit, ...]:
        """In half of the problems, one head's slope is as steep as those of many heads are."""
        if not pick((False, True)):
            return ()
        return (Edit(SLOPES, (pick(range(problem.heads)),), pick(STEEP_SLOPES)),)

    @override
    def score_mod(self, torch: Any, problem: Problem, inputs: Mapping[str, Any]) -> Callable[..., Any]:
        slopes, diagonal = inputs[SLOPES], problem.diagonal
        return lambda score, head, row, key: score - slopes[head] * torch.abs(row + diagonal - key)


def alibi_slopes(heads: int) -> Float64Array:
    """Return a slope per query head (Press, Smith and Lewis 2022, arXiv 2108.12409, section 3).

    For n heads, n a power of two, slopes are the powers of 2^(-8 / n). For other numbers, as in the paper's code, they
    are the slopes of the next smaller power of two, followed by every other slope of the next larger one.
    """
    power = 2 ** int(math.log2(heads))
    slopes = _geometric(power)
    return np.concatenate((slopes, _geometric(2 * power)[::2][: heads - power]))


def _geometric(count: int) -> Float64Array:
    return np.exp2(-8.0 / count * np.arange(1, count + 1, dtype=np.float64))


# s becomes s + bias[h, i, j] ------------------------------------------------------------------------------------------


class Biased(Effect):
    """s + B.

    B is stored in float32, so it has no error of its own, and adding it is one rounding:

        |fl(s^ + B) - (s + B)| <= |s^ - s| + u |s + B|     to first order

    for a score s^ with the error of the stages before. A kernel that works in powers of two multiplies B by log2 e,
    which adds 2u |B|. With ALiBi, B may be added before the penalty is subtracted or to the penalty itself: the
    intermediate sum exceeds |s| by at most |b| + |B|, which adds u |B| (u |b| is part of the 4u |b|, since distances
    below 2^24 are exact). Equal sums are rounded alike, so the error is not random.
    """

    def __init__(self, bias: Float64Array, with_alibi: bool) -> None:
        self.bias = bias
        self.with_alibi = with_alibi
        is_hiding = np.isneginf(bias)
        self.hides: Mask | None = is_hiding if is_hiding.any() else None

    @override
    def apply(self, scores: Float64Array) -> Float64Array:
        return scores + self.bias

    @override
    def before(self, scores: Float64Array) -> Float64Array:
        return scores - np.where(np.isfinite(self.bias), self.bias, 0.0)

    @override
    def errors(self, errors: ScoreErrors, before: Array, after: Array, rounding: Roundings) -> ScoreErrors:
        roundings = (2 * U if rounding.fast else 0.0) + (U if self.with_alibi else 0.0)
        own = np.float32(roundings) * np.abs(self.bias).astype(np.float32) + np.float32(U) * after
        return errors.plus(own, after)


class Bias(ScoreTerm):
    """The additive bias; the module `bias` has its axes and how it is drawn."""

    field = BIAS
    label = "the bias"
    has_gradient = True
    off = None
    plain = AXES
    input_names = (BIAS,)
    values = (
        AXES, ("heads", "kv_len"), ("q_len", "kv_len"), AXES, ("kv_len",), ("q_len",), ("heads",), ("heads", "q_len"),
    )  # fmt: skip
    """Its own for each score, as for relative positions; for each key, as for padding; and all others."""
    special_values = (-math.inf, -1e9, 1e3)
    """What hides a key, what models use in its place, and what outweighs all other keys."""
    keeps_shifts = True
    most = 10.0
    """Maximum magnitude of a bias that changes a score less than the largest value of K's dtype does."""

    @override
    def checked(self, value: Any) -> Any:
        return checked_axes(value)

    @override
    def as_json(self, value: Any) -> Any:
        return None if value is None else ",".join(value)

    @override
    def in_words(self, problem: Problem) -> str:
        return f"bias ({', '.join(self.axes(problem))})"

    @override
    def axes(self, problem: Problem) -> tuple[str, ...]:
        return problem.bias or ()

    @override
    def inputs(self, problem: Problem) -> tuple[Tensor, ...]:
        names = zip(AXES, ("head", "row", "key"))
        axes = tuple(name if axis in self.axes(problem) else f"any {name}" for axis, name in names)
        return (Tensor(BIAS, problem.bias_shape, "float32", INPUT, axes),)

    @override
    def value_of_array(self, array: np.ndarray) -> Any:
        return axes_of_array(array)

    @override
    def draw(self, regime: str, rng: np.random.Generator, problem: Problem, drawn: Inputs) -> Float64Array:
        return drawn_bias(regime, rng, problem)

    @override
    def effect(self, problem: Problem, inputs: Inputs, heads: slice, rows: slice, keys: slice) -> Effect:
        own = tuple(of if axis in self.axes(problem) else slice(None) for of, axis in zip((heads, rows, keys), AXES))
        bias = inputs[BIAS][own].astype(np.float64)
        return Biased(np.broadcast_to(bias, (*bias.shape[:2], keys.stop - keys.start)), problem.alibi)

    @override
    def range_of_change(self, problem: Problem, inputs: Inputs) -> tuple[float, float] | None:
        largest = float(np.abs(inputs[BIAS]).max())
        return (-largest, largest) if largest <= self.most else None  # keys whose bias is -inf have no effect

    @override
    def may_hide(self, inputs: Inputs) -> bool:
        return bool(np.isneginf(inputs[BIAS]).any())

    @override
    def mistakes(self, problem: Problem, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
        bias = inputs[BIAS]
        if problem.tau not in (0.0, 1.0):
            yield "the bias added before the scale", {BIAS: bias * bias.dtype.type(problem.tau)}
        yield "the bias subtracted", {BIAS: -bias}
        for axis, (extent, name) in enumerate(zip(bias.shape, ("head", "row", "key"))):
            if extent > 1:
                yield f"the bias of the next {name}", {BIAS: np.roll(bias, -1, axis)}

    @override
    def members(self, problem: Problem, unit: float) -> tuple[Any, ...]:
        if unit != 1.0:
            raise PlanError(f"a bias is read from memory as it is, and cannot be a multiple of {unit:g}")
        return (BIAS, *map(np.int32, problem.bias_strides))

    @override
    def score_mod(self, torch: Any, problem: Problem, inputs: Mapping[str, Any]) -> Callable[..., Any]:
        # An index has to be a tensor, so axes over which the bias does not vary are left out.
        varies = tuple(axis in self.axes(problem) for axis in AXES)
        values = inputs[BIAS][tuple(slice(None) if each else 0 for each in varies)]

        def biased(score: Any, head: Any, row: Any, key: Any) -> Any:
            return score + values[tuple(index for index, each in zip((head, row, key), varies) if each)]

        return biased


# exp(sink[h]) is added to the denominator -----------------------------------------------------------------------------

SINK_OFFSETS = (0.0, -1.0, 2.0, -math.inf, 5.0, 1.0, 30.0, -40.0, 95.0)
"""Distances of drawn sinks from the log-sum-exp of a row's scores: half of the weight, more, little, all, none."""
SINKS_FOR_ZERO_SCORES = (0.0, -math.inf, 2.0)
"""Sinks if every q.k is 0. A sink of 0 has the weight of a key, so that 1 / (n + 1) may be exact."""


class Sinks(ScoreTerm):
    """Sinks. They are no score term, but an additional key, which the oracle appends (`ScoreRule`)."""

    field = SINKS
    label = "sinks"
    input_names = (SINKS,)
    changes_scores = False
    has_gradient = True

    @override
    def draw(self, regime: str, rng: np.random.Generator, problem: Problem, drawn: Inputs) -> Float64Array:
        """Draw a sink per query head: near the scores of the first sequence's last row, above, below, or -inf."""
        q, k = drawn["Q"], drawn["K"]
        last_row = slice(0, problem.heads), slice(problem.q_len - 1, problem.q_len), slice(0, problem.kv_len)
        offsets = np.resize(rng.permutation(SINKS_FOR_ZERO_SCORES if not q.any() else SINK_OFFSETS), problem.heads)
        first, end = (int(ends[0]) for ends in problem.span(np.array([problem.q_len - 1])))
        seen = slice(first, end) if end > first else slice(None)
        if not q.any():
            return offsets
        with np.errstate(all="ignore"):
            scores = problem.tau * np.einsum("hd,hkd->hk", q[0, :, -1], k[0, np.arange(problem.heads) // problem.group])
            for term in problem.score_terms:
                if all(name in drawn for name in term.input_names):
                    effect = term.effect(problem, drawn, *last_row)
                    scores = effect.apply(scores[:, None])[:, 0]
            scores = np.where(np.isfinite(scores), scores, 0.0)[:, seen]
            largest = scores.max(axis=1)
            sinks: Float64Array = offsets + largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1))
        return sinks


TERMS: tuple[ScoreTerm, ...] = (Softcap(), Alibi(), Bias(), Sinks())
"""All terms, in the order in which they apply; kernels and oracle apply them in this order."""
TERMS_OF_HEADS = tuple(term for term in TERMS if term.field in HeadScoreFields.__dataclass_fields__)
"""Those whose fields are in `HeadScoreFields`."""
