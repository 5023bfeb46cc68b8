"""Safe softmax: the maximum of the row is subtracted first, so that no exponential overflows.

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", arXiv 1805.02867, algorithm 2, which libraries
use.

Algorithm, by line:

    1 to 4      sweep one: m = max x_k
    5 to 8      sweep two: d = sum exp(x_j - m)
    9 to 11     sweep three: y_i = exp(x_i - m) / d

Bytes: X three times and Y once, which is 4 accesses per element, as the paper counts:

    3 X + Y         X = sum over rows of the sectors that a run of `columns` elements touches
"""

from __future__ import annotations

from typing import Any

from harness import Numerics, Registry, SoftmaxProblem
from variants._rows import register_sweeps

NUMERICS = Numerics(functions="accurate", sums="nearest")


def kernel_in_cupy(problem: SoftmaxProblem) -> Any:
    from variants._rows.rawkernel import row_kernel

    return row_kernel("safe", "safe_softmax", problem)


def kernel_in_numba(problem: SoftmaxProblem) -> Any:
    from variants.softmax.safe.numba_kernel import safe_kernel

    return safe_kernel(problem.dtype)


def register(registry: Registry) -> None:
    """Add `softmax-safe-cupy` and `softmax-safe-numba`."""
    idea = "the maximum, then the sum, then the quotients: three sweeps"
    languages = {"cupy": kernel_in_cupy, "numba": kernel_in_numba}
    register_sweeps(registry, "softmax-safe", idea, languages, sweeps=3, numerics=NUMERICS)
