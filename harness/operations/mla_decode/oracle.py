"""Computes the answer: paged attention with one head of keys, whose values are the first columns of the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.model.array_types import Arrays, Float64Array
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, Tolerance, TrivialAnswer
from harness.operations.mla_decode.problem import MlaProblem
from harness.operations.paged_attention import mistakes, oracle

Answers = Iterator[tuple[str, Mapping[str, Float64Array]]]


def paged(problem: MlaProblem, inputs: Arrays) -> dict[str, np.ndarray]:
    """Return the inputs as those of paged attention: K is all columns of C, V the latent ones."""
    K = inputs["C"][:, None]
    return {**{name: inputs[name] for name in ("Q", "table", "lengths")}, "K": K, "V": K[..., : problem.latent_dim]}


def answer(problem: MlaProblem, inputs: Arrays, part: Part = WHOLE) -> dict[str, Float64Array]:
    """Compute O and lse in float64. A sequence without keys has O = 0 and lse = -infinity."""
    return oracle.answer(problem, paged(problem, inputs), part)


def tolerance(
    problem: MlaProblem, inputs: Arrays, answer: Mapping[str, Float64Array], numerics: Numerics, part: Part = WHOLE
) -> dict[str, Tolerance]:
    """Paged attention's budget, which counts a row's elements once as keys and once as values."""
    return oracle.tolerance(problem, paged(problem, inputs), answer, numerics, part)


def needed_read_bytes(problem: MlaProblem, inputs: Arrays) -> int:
    """Bytes of Q and of rows that paged attention needs; values are in the bytes of keys, and do not count again."""
    values = problem.keys_in_use * problem.latent_dim * problem.itemsize_bytes
    return max(0, oracle.needed_read_bytes(problem, paged(problem, inputs)) - values)


def known_mistakes(problem: MlaProblem, inputs: Arrays, tile_keys: int | None = None) -> Answers:
    """O and lse of paged attention's mistakes, and of scores of one part of a row alone."""
    given: dict[str, Any] = paged(problem, inputs)
    yield from mistakes.known_mistakes(problem, given, tile_keys)
    latent = problem.latent_dim
    for part, columns in (("rope", slice(latent, None)), ("latent", slice(latent))):
        Q = given["Q"].copy()
        Q[..., columns] = 0
        yield f"the answer without the {part} part of the scores", oracle.answer(problem, {**given, "Q": Q})


def trivial_answers(problem: MlaProblem, inputs: Arrays) -> dict[str, TrivialAnswer]:
    """O of each trivial mistake, shape (sequences, heads, q_len, latent_dim) of a part."""
    return mistakes.trivial_answers(problem, paged(problem, inputs))
