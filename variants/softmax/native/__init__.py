"""Softmax by its definition: exp(x) over its sum, without subtracting a maximum.

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", arXiv 1805.02867, algorithm 1. The result is
right as long as exp stays within float32, for x between about -87 and 88, and wrong beyond, which the variant declares.

Algorithm, by line:

    1 to 4      sweep one: d = sum exp(x_j)
    5 to 7      sweep two: y_i = exp(x_i) / d

Bytes: X twice and Y once, which is 3 accesses per element, as the paper counts:

    2 X + Y         X = sum over rows of the sectors that a run of `columns` elements touches
"""

from __future__ import annotations

from typing import Any

from harness import Numerics, Registry, SoftmaxProblem
from variants._rows import register_sweeps

NUMERICS = Numerics(sums="nearest")
"""Functions are left at `fast`: the others promise exp(x - m), with a weight of exactly 1 for the maximum."""
FAILS_IN = ("hot", "negative", "far-negative", "offset", "non-finite")
"""exp overflows, or everything underflows; and with +inf in a row, the other columns are 0 instead of NaN."""


def kernel_in_cupy(problem: SoftmaxProblem) -> Any:
    from variants._rows.rawkernel import row_kernel

    return row_kernel("native", "native_softmax", problem)


def kernel_in_numba(problem: SoftmaxProblem) -> Any:
    from variants.softmax.native.numba_kernel import native_kernel

    return native_kernel(problem.dtype)


def register(registry: Registry) -> None:
    """Add `softmax-native-cupy` and `softmax-native-numba`."""
    idea = "exp without subtracting the maximum: two sweeps, correct if nothing overflows"
    languages = {"cupy": kernel_in_cupy, "numba": kernel_in_numba}
    register_sweeps(registry, "softmax-native", idea, languages, sweeps=2, numerics=NUMERICS, fails_in=FAILS_IN)
