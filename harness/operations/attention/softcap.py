"""The soft cap, a score term: s becomes C tanh(s / C)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.model.arithmetic.rounding import U
from harness.model.array_types import Float64Array
from harness.operations.attention.score_term import Array, DerivativeErrors, Effect, Inputs, ScoreErrors, ScoreTerm
from harness.support.errors import ProblemError
from harness.support.override import override

if TYPE_CHECKING:
    from harness.operations.attention.budget.rounding_sizes import Roundings
    from harness.operations.attention.problem import Problem

TANH = {"accurate": 4 * U, "fast": 2.0**-11}
"""Relative error of a hyperbolic tangent: of tanhf, 2 ulp in the CUDA C++ Programming Guide, or of tanh.approx.f32,
2^-11 in the PTX manual."""
TANH_ABSOLUTE = {"accurate": 0.0, "fast": 17 * U}
"""Absolute error of a hyperbolic tangent computed as 1 - 2 / (E + 1), E = exp(2 x). An error delta E of E changes it by
2 delta E / (E + 1)^2 = delta / (2 cosh^2 x), with delta <= 4u + |2 x| 6u (`EXP`, `ARGUMENT`): at most 4u. The sum is
rounded by u, the quotient, at most 2, by 5u (`division`), and the difference by u: 2 (u + 5u) + u. The error of
(E - 1) / (E + 1) is smaller."""


@dataclass(frozen=True)
class Capped(Effect):
    """C tanh(x) of x = s / C with error dx = sigma / C.

    The derivative, sech^2, decreases with |x|:

        |C tanh^(x^) - C tanh(x)| <= sigma sech^2(max(|x| - dx, 0)) + |C tanh x| eps + C eps_absolute,   at most 2 C

    since x^ is within dx of x. eps is the error of tanh, of its product with the cap, of the cap itself and of log2 e.
    So scores near the cap are more accurate than their products. If S is stored in 16 bits before the cap, the error
    u_16 |x| sech^2 x <= u_16 |tanh x| is at most that of storing it afterwards.

    A kernel computes the derivative, between 0 and 1, as 1 - t^2, from t^ = t + e with |e| <= |t| eps + eps_absolute
    = e'. That of sech^2 is -2 tanh sech^2, so

        |1 - t^^2 - sech^2 x| <= dx 2 tanh(|x| + dx) sech^2(max(|x| - dx, 0)) + e' (2 |t| + e') + 2u,   at most 1

    with one rounding of the square and one of the difference.
    """

    cap: float

    @override
    def derivative(self, scores: Float64Array) -> Float64Array:
        slope: Float64Array = 1 - np.square(np.tanh(scores / self.cap))
        return slope

    @override
    def derivative_errors(self, errors: ScoreErrors, before: Array, rounding: Roundings) -> DerivativeErrors:
        tanh = rounding.numerics.tanh
        x, dx = before / np.float32(self.cap), errors.proved / np.float32(self.cap)
        slope = 2 * np.tanh(x + dx) / np.square(np.cosh(np.maximum(x - dx, np.float32(0))))
        own_tanh = np.float32(TANH[tanh]) * np.tanh(x) + np.float32(TANH_ABSOLUTE[tanh])
        own = own_tanh * (2 * np.tanh(x) + own_tanh) + np.float32(2 * U)
        common = slope * errors.common / np.float32(self.cap) + own
        return DerivativeErrors(
            proved=np.minimum(slope * dx + own, np.float32(1)),
            expected=np.minimum(slope * errors.expected / np.float32(self.cap), np.float32(1)),
            common=np.minimum(common, np.float32(1)),
        )

    @override
    def apply(self, scores: Float64Array) -> Float64Array:
        capped: Float64Array = self.cap * np.tanh(scores / self.cap)
        return capped

    @override
    def errors(self, errors: ScoreErrors, before: Array, after: Array, rounding: Roundings) -> ScoreErrors:
        cap, tanh = np.float32(self.cap), rounding.numerics.tanh
        x, dx = before / cap, errors.proved / cap
        derivative = (1 / np.square(np.cosh(np.maximum(x - dx, np.float32(0))))).astype(np.float32)
        capped = cap * np.tanh(x)
        own = np.float32(TANH[tanh] + 4 * U) * capped + np.float32(TANH_ABSOLUTE[tanh]) * cap
        most = 2 * cap
        changed = errors.scaled(derivative, most)
        proved, common = derivative * errors.proved + own, derivative * errors.common + own
        return ScoreErrors(
            np.minimum(proved, most), changed.expected, np.minimum(common, most), changed.query, changed.expected_query,
            largest=capped,
        )  # fmt: skip


class Softcap(ScoreTerm):
    """The soft cap."""

    field = "softcap"
    label = "the soft cap"
    off = None
    plain = 1.0
    inputs_follow = True
    numerics = ("tanh",)
    product_roundings = 2
    values = (1.0, 30.0, 4.0, 0.5)
    """Most scores of a normal draw are beyond the least, and none near 30."""
    is_drawn_always = True

    @override
    def checked(self, value: Any) -> Any:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value) and value > 0):
            raise ProblemError(
                f"softcap is {value!r}; it has to be a positive number, and is left out where there is no cap"
            )
        return value

    @override
    def in_words(self, problem: Problem) -> str:
        return f"softcap {problem.softcap:g}"

    @override
    def effect(self, problem: Problem, inputs: Inputs, heads: slice, rows: slice, keys: slice) -> Effect:
        assert problem.softcap is not None
        return Capped(problem.softcap)

    @override
    def members(self, problem: Problem, unit: float) -> tuple[Any, ...]:
        return (np.float32((problem.softcap or 0.0) * unit),)

    @override
    def score_mod(self, torch: Any, problem: Problem, inputs: Mapping[str, Any]) -> Callable[..., Any]:
        cap = problem.softcap
        return lambda score, head, row, key: cap * torch.tanh(score / cap)
