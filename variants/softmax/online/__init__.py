"""Online softmax: the maximum and the sum in one sweep; the sum is corrected when the maximum rises.

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", arXiv 1805.02867, algorithm 3. FlashAttention
is built on this.

Algorithm, by line:

    1 to 6      sweep one: m and d = sum exp(x_j - m) so far, each thread for its own columns; equation 4 combines the
                threads' pairs
    7 to 9      sweep two: y_i = exp(x_i - m) / d

Bytes: X twice and Y once, which is 3 accesses per element, as the paper counts, and 4 for the safe softmax:

    2 X + Y         X = sum over rows of the sectors that a run of `columns` elements touches
"""

from __future__ import annotations

from typing import Any

from harness import Numerics, Registry, SoftmaxProblem
from variants._rows import register_sweeps

NUMERICS = Numerics(functions="accurate", sums="nearest")


def kernel_in_cupy(problem: SoftmaxProblem) -> Any:
    from variants._rows.rawkernel import row_kernel

    return row_kernel("online", "online_softmax", problem)


def kernel_in_numba(problem: SoftmaxProblem) -> Any:
    from variants.softmax.online.numba_kernel import online_kernel

    return online_kernel(problem.dtype)


def register(registry: Registry) -> None:
    """Add `softmax-online-cupy` and `softmax-online-numba`."""
    idea = "maximum and sum in one sweep, corrected as the maximum rises: two sweeps"
    languages = {"cupy": kernel_in_cupy, "numba": kernel_in_numba}
    register_sweeps(registry, "softmax-online", idea, languages, sweeps=2, numerics=NUMERICS)
