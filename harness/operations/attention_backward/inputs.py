"""How the inputs are drawn: Q, K and V as attention's regimes have them, O and lse as they follow, and a gradient of O.

Inputs of score terms and sinks are drawn as for the forward pass. O and lse are the float64 answer to what is stored,
rounded: what a forward pass that is right leaves behind.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from harness.model.array_types import Float64Array
from harness.model.cases.regime import NUMPY_DTYPES, Regime, by_name
from harness.model.operation import operation_named
from harness.operations.attention.inputs import REGIMES as FORWARD_REGIMES
from harness.operations.attention_backward.problem import BackwardProblem

Gradient = Callable[[np.random.Generator, BackwardProblem], Float64Array]

LARGE = 500.0


def _normal(rng: np.random.Generator, problem: BackwardProblem) -> Float64Array:
    return rng.standard_normal(problem.o_shape)


def _large(rng: np.random.Generator, problem: BackwardProblem) -> Float64Array:
    return LARGE * rng.standard_normal(problem.o_shape)


def _few(rng: np.random.Generator, problem: BackwardProblem) -> Float64Array:
    """Zero but for one row in eight, at least one of each head."""
    chosen = rng.random(problem.o_shape[:3]) < 1 / 8
    chosen[..., 0] |= ~chosen.any(axis=-1)
    return np.where(chosen[..., None], rng.standard_normal(problem.o_shape), 0.0)


def _alike(rng: np.random.Generator, problem: BackwardProblem) -> Float64Array:
    """One row for all, away from zero."""
    row = 2 + rng.standard_normal((*problem.o_shape[:2], 1, problem.v_width))
    return np.broadcast_to(row, problem.o_shape)


def _not_finite(rng: np.random.Generator, problem: BackwardProblem) -> Float64Array:
    """One element of each head, in a row of the first half, to which a causal mask leaves keys that it does not see."""
    dO = rng.standard_normal(problem.o_shape)
    for head in np.ndindex(problem.o_shape[:2]):
        row = rng.integers((problem.q_len + 1) // 2)
        dO[head][row, rng.integers(problem.v_width)] = rng.choice([np.nan, np.inf, -np.inf])
    return dO


@dataclasses.dataclass(frozen=True)
class BackwardDraw:
    """Draws all inputs; what it is made of can be sent to worker processes."""

    forward: Regime
    gradient: Gradient

    def __call__(self, rng: np.random.Generator, problem: BackwardProblem) -> list[np.ndarray]:
        """Q, K, V, O, lse, dO and the inputs of score terms; rounded only are those that O and lse follow from."""
        drawn = self.forward.draw(rng, problem)
        terms = [term for term in problem.terms if not term.inputs_follow]
        tensors = [tensor for term in terms for tensor in term.inputs(problem)]
        qkv = [x.astype(NUMPY_DTYPES[problem.dtype]) for x in drawn[:3]]
        of_terms = [x.astype(tensor.dtype) for x, tensor in zip(drawn[3:], tensors, strict=True)]
        stored = dict(zip("QKV", qkv)) | {tensor.name: x for tensor, x in zip(tensors, of_terms)}
        for term in problem.terms:
            stored |= term.derived(problem)
        answer = operation_named("attention").answer(problem, stored)
        return [*qkv, answer["O"], answer["lse"], self.gradient(rng, problem), *of_terms]


_of_normal = functools.partial(BackwardDraw, FORWARD_REGIMES["normal"])
REGIMES = by_name(
    *(
        dataclasses.replace(each, draw=BackwardDraw(each, _normal), standard_normal=False)
        for each in FORWARD_REGIMES.values()
    ),
    Regime("large-gradient", "dO 500 times as large", _of_normal(_large)),
    Regime("few-gradients", "dO is zero but for one row in eight", _of_normal(_few)),
    Regime("one-gradient", "one row of dO for all: sums over rows do not cancel", _of_normal(_alike)),
    Regime(
        "non-finite-gradient", "a NaN or infinity in dO; it must not reach other gradients", _of_normal(_not_finite)
    ),
)
"""Attention's, with dO from N(0, 1), and those that are hard for gradients."""


def forward_regime(regime: str) -> str:
    """The nearest that attention has."""
    return regime if regime in FORWARD_REGIMES else "normal"
