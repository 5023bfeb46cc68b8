"""Regimes of attention, which draw Q, K and V. To add one, write a function and add a line at the end.

Every regime also draws the inputs of the problem's score terms and sinks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from harness.model.array_types import Float64Array
from harness.model.cases.regime import Regime, by_name
from harness.operations.attention.masks import NO_MASK
from harness.operations.attention.problem import Problem

Drawn = tuple[Float64Array, Float64Array, Float64Array]
"""Q, K and V."""


def _standard_normal(rng: np.random.Generator, problem: Problem) -> Drawn:
    q = rng.standard_normal(problem.q_shape)
    k = rng.standard_normal(problem.kv_shape)
    v = rng.standard_normal(problem.v_shape)
    return q, k, v


def _uniform(rng: np.random.Generator, problem: Problem) -> Drawn:
    return rng.random(problem.q_shape), rng.random(problem.kv_shape), rng.random(problem.v_shape)


def _hot(rng: np.random.Generator, problem: Problem) -> Drawn:
    q, k, v = _standard_normal(rng, problem)
    # Scores of a normal draw have a standard deviation of |tau| sqrt(d); 40 puts the largest well past +-100.
    factor = math.sqrt(40 / _positive(abs(problem.tau) * math.sqrt(problem.head_dim)))
    factor = min(factor, 1000.0)
    return q * factor, k * factor, v


def _along_one_direction(
    rng: np.random.Generator, problem: Problem, q_factor: Float64Array, k_factor: Float64Array, largest_dot: float
) -> Drawn:
    """Draw Q and K along one direction, so that q.k = q_factor * k_factor * largest_dot, up to rounding of elements.

    This yields scores of a chosen size. Scores of independent elements grow with sqrt(d), and their extremes with the
    number of keys.
    """
    signs = np.where(rng.random(problem.head_dim) < 0.5, -1.0, 1.0)
    element = math.sqrt(largest_dot / problem.head_dim)
    q = np.broadcast_to(q_factor[..., None] * signs * element, problem.q_shape)
    k = np.broadcast_to(k_factor[..., None] * signs * element, problem.kv_shape)
    return q, k, rng.standard_normal(problem.v_shape)


def _positive(value: float) -> float:
    """Replace a scale of 0, which is valid but cannot be divided by."""
    return value if value > 0 else 1.0


def _dot_for_score(problem: Problem, score: float) -> float:
    """Return the q.k whose score has this magnitude, limited to what 16-bit elements allow."""
    return min(score / _positive(abs(problem.tau)), 1e6 * problem.head_dim)


def _sign_of_tau(problem: Problem) -> float:
    return -1.0 if problem.tau < 0 else 1.0


def _overflow(rng: np.random.Generator, problem: Problem) -> Drawn:
    # The score itself has to stay inside float16, or storing S in the problem's dtype could not be right.
    largest_dot = min(150_000.0, _dot_for_score(problem, 60_000.0))
    q_factor = rng.uniform(-1, 1, problem.q_shape[:-1])
    k_factor = rng.uniform(-1, 1, problem.kv_shape[:-1])
    return _along_one_direction(rng, problem, q_factor, k_factor, largest_dot)


def _negative_scores(rng: np.random.Generator, problem: Problem, mildest: float, largest: float) -> Drawn:
    # Both factors spread by the square root of the ratio, so that their product spans all of it.
    low = math.sqrt(mildest / largest)
    q_factor = rng.uniform(low, 1, problem.q_shape[:-1]) * -_sign_of_tau(problem)
    k_factor = rng.uniform(low, 1, problem.kv_shape[:-1])
    q, k, _ = _along_one_direction(rng, problem, q_factor, k_factor, _dot_for_score(problem, largest))
    # Values away from zero: a kernel that loses every weight gives 0, and 0 must not be close to the answer.
    return q, k, rng.uniform(1, 2, problem.v_shape)


_negative = functools.partial(_negative_scores, mildest=120.0, largest=400.0)
_far_negative = functools.partial(_negative_scores, mildest=52_000.0, largest=60_000.0)


def _constant(rng: np.random.Generator, problem: Problem) -> Drawn:
    q, k, v = _standard_normal(rng, problem)
    return q, np.broadcast_to(k[:, :, :1], k.shape), v


def _ramp(rng: np.random.Generator, problem: Problem, falling: bool) -> Drawn:
    steps = np.linspace(-1, 1, problem.kv_len) if problem.kv_len > 1 else np.ones(1)
    k_factor = np.broadcast_to(steps[::-1] if falling else steps, problem.kv_shape[:-1])
    q_factor = rng.uniform(0.5, 1, problem.q_shape[:-1]) * _sign_of_tau(problem)
    return _along_one_direction(rng, problem, q_factor, k_factor, _dot_for_score(problem, 40.0))


_rising = functools.partial(_ramp, falling=False)
_falling = functools.partial(_ramp, falling=True)


def _needle(rng: np.random.Generator, problem: Problem) -> Drawn:
    needle = rng.integers(problem.kv_len, size=problem.kv_shape[:2])
    is_needle = np.arange(problem.kv_len) == needle[..., None]
    q_factor = rng.uniform(0.8, 1, problem.q_shape[:-1]) * _sign_of_tau(problem)
    k_factor = np.where(is_needle, 1.0, rng.uniform(-0.1, 0.1, problem.kv_shape[:-1]))
    return _along_one_direction(rng, problem, q_factor, k_factor, _dot_for_score(problem, 80.0))


def _offset(rng: np.random.Generator, problem: Problem) -> Drawn:
    q, k, v = _standard_normal(rng, problem)
    return q, k + 4.0, v + 100.0


def _exact(rng: np.random.Generator, problem: Problem) -> Drawn:
    k = rng.standard_normal(problem.kv_shape)
    return np.zeros(problem.q_shape), k, rng.integers(-8, 9, problem.v_shape).astype(np.float64)


def _repeated(rng: np.random.Generator, problem: Problem) -> Drawn:
    q, k, v = _standard_normal(rng, problem)
    # Each key occurs about eight times at random places, so the largest score of a row occurs in several tiles.
    which = rng.integers(max(1, problem.kv_len // 8), size=(*problem.kv_shape[:3], 1))
    return q, np.take_along_axis(k, which, axis=2), v


def _subnormal(rng: np.random.Generator, problem: Problem) -> Drawn:
    q, k, v = _standard_normal(rng, problem)
    return q, k, v * 2.0 ** (-13 if problem.dtype == "float16" else -124)


def _non_finite(rng: np.random.Generator, problem: Problem) -> Drawn:
    q, k, v = _standard_normal(rng, problem)
    poisons = np.array([np.nan, np.inf, -np.inf])
    for head in np.ndindex(problem.kv_shape[:2]):
        key = problem.kv_len - 1 - rng.integers(max(1, problem.kv_len // 4))
        poison_v, poison_k = rng.choice(poisons, 2)
        v[head][key, rng.integers(problem.v_width)] = poison_v
        if problem.mask != NO_MASK:
            # Masks hide the key from nearly all rows. Otherwise all columns of all rows would be NaN.
            k[head][key, rng.integers(problem.head_dim)] = poison_k
    return q, k, v


def _with_scores(regime: Regime, rng: np.random.Generator, problem: Problem) -> Sequence[Float64Array]:
    """Draw the inputs of a regime, and then those of terms, so that Q, K and V do not depend on these."""
    drawn = dict(zip("QKV", regime.draw(rng, problem)))
    for term in problem.terms:
        if not term.inputs_follow:
            (name,) = term.input_names
            drawn[name] = term.draw(regime.name, rng, problem, drawn)
    return list(drawn.values())


def _all_inputs(regimes: Mapping[str, Regime]) -> Mapping[str, Regime]:
    return {
        name: dataclasses.replace(regime, draw=functools.partial(_with_scores, regime))
        for name, regime in regimes.items()
    }


_OF_Q_K_AND_V = by_name(
    Regime("normal", "Q, K, V from N(0, 1)", _standard_normal, standard_normal=True),
    Regime("uniform", "Q, K, V from [0, 1): every score is positive, and the weights are nearly equal", _uniform),
    Regime("hot", "the largest scores exceed 100 in magnitude: exp overflows unless the maximum is subtracted", _hot),
    Regime(
        "overflow",
        "q.k exceeds the range of float16 before scaling (if the scale is below 0.9); the scores are within it",
        _overflow,
    ),
    Regime(
        "negative", "every score is between -400 and -120: exp underflows unless the maximum is subtracted", _negative
    ),
    Regime(
        "far-negative",
        "every score is below -50,000, and so below a finite stand-in for -inf such as -10,000",
        _far_negative,
    ),
    Regime(
        "constant", "one key repeated: every weight is 1/n, where n is the number of keys that the row sees", _constant
    ),
    Regime("rising", "scores rise along the keys: the running maximum changes at every key", _rising),
    Regime("falling", "scores fall along the keys: the running maximum never changes", _falling),
    Regime("needle", "one key per head carries nearly all the weight in the rows that see it", _needle),
    Regime("offset", "K around 4 and V around 100: their means are far from zero", _offset),
    Regime("exact", "Q is 0 and V holds whole numbers: if a row sees 2^m keys, its result must be exact", _exact),
    Regime("repeated", "each key occurs about eight times, so the largest score recurs", _repeated),
    Regime("subnormal", "V around the smallest normal number of its dtype and below", _subnormal),
    Regime(
        "non-finite",
        "each head has NaN or infinity in one of the last rows of V (under masks, also of K), which must not affect "
        "rows that do not see that key",
        _non_finite,
    ),
)
REGIMES = _all_inputs(_OF_Q_K_AND_V)
"""Every regime by name. Regimes draw Q, K and V in float64. Values before rounding depend only on sizes, regime and
seed, and not on the dtype, except for `subnormal`."""
