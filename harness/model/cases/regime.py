"""Defines regimes, which draw inputs. Problem, regime and seed determine the inputs bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from harness.model.drawn_tensor import DrawnTensor
from harness.model.problem import BaseProblem
from harness.support.errors import UsageError
from harness.support.suggestion import did_you_mean

_SEEDS = 1 << 63
_LARGEST_INPUT_BYTES = 1 << 48
"""Limit above the memory of any machine. Beyond it, NumPy fails with an overflow before it runs out of memory."""

LARGEST_DRAWN_BYTES = 1 << 26
"""Maximum size of all inputs together, in bytes, that are drawn at once. Takes one or two seconds on a host."""


NUMPY_DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""NumPy dtype of each number format of a problem. Tables and the like already have NumPy's dtypes."""


@dataclass(frozen=True)
class Regime:
    """A way to draw the inputs of an operation."""

    name: str
    """Name on the command line."""
    idea: str
    """What the values look like and which mistakes they provoke, in one line."""
    draw: Callable[[np.random.Generator, Any], Sequence[np.ndarray]]
    """Takes a generator and a problem. Returns an array per drawn input, in order and shape, not yet rounded to its
    dtype. Inputs that follow from the problem are not drawn (`Operation.derived_inputs`)."""
    standard_normal: bool = False
    """Whether all elements are from N(0, 1). If inputs exceed `LARGEST_DRAWN_BYTES`, each element then depends only on
    its position, so that a GPU can draw it (`DrawnTensor`)."""


def by_name(*regimes: Regime) -> Mapping[str, Regime]:
    """Return the regimes of an operation by name, in order; the first is the plainest."""
    return {regime.name: regime for regime in regimes}


def require_seed(seed: int) -> None:
    """Raise `UsageError` for an invalid seed."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _SEEDS:
        shown = seed if not isinstance(seed, int) or abs(seed) < _SEEDS else "beyond 2^63 - 1"
        raise UsageError(f"seed is {shown}; it has to be a whole number of at least 0 and below 2^63")


def draw(
    regimes: Mapping[str, Regime], problem: BaseProblem, regime: str, seed: int, derived: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return an array per input of `problem`, C-contiguous, in its shape and dtype (bfloat16 as `ml_dtypes.bfloat16`).

    `derived` holds the inputs that are not drawn. Raises `UsageError` if the regime does not exist, the seed is
    invalid, or the inputs are larger than any memory.
    """
    return {name: np.asarray(values) for name, values in draw_parts(regimes, problem, regime, seed, derived).items()}


def draw_parts(
    regimes: Mapping[str, Regime],
    problem: BaseProblem,
    regime: str,
    seed: int,
    derived: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray | DrawnTensor]:
    """Return inputs like `draw`, but as `DrawnTensor`, which is drawn when it is used, if they are large."""
    if regime not in regimes:
        raise UsageError(f"no regime {regime!r}{did_you_mean(regime, regimes, 0.4)} Regimes: {', '.join(regimes)}")
    require_seed(seed)
    for tensor in problem.inputs:
        if tensor.size_bytes > _LARGEST_INPUT_BYTES:
            raise UsageError(f"not enough memory for this problem: {tensor.name} alone has more than 2^48 bytes")
    independent = [tensor for tensor in problem.inputs if tensor.name not in derived]
    chosen, all_bytes = regimes[regime], sum(tensor.size_bytes for tensor in independent)
    if chosen.standard_normal and all_bytes > LARGEST_DRAWN_BYTES:
        later = {
            tensor.name: DrawnTensor(tensor.shape, NUMPY_DTYPES[tensor.dtype], seed, number)
            for number, tensor in enumerate(independent)
        }
        return {**later, **derived}
    generator = np.random.Generator(np.random.Philox(seed))
    drawn = {
        tensor.name: np.ascontiguousarray(values.astype(NUMPY_DTYPES.get(tensor.dtype) or np.dtype(tensor.dtype)))
        for tensor, values in zip(independent, chosen.draw(generator, problem), strict=True)
    }
    return {**drawn, **derived}
