"""The least time that a problem can take on a GPU: what is shorter was not measured but mistaken."""

from __future__ import annotations

from harness.model.problem import BaseProblem
from harness.support.gpus import Gpu


def least_ms(problem: BaseProblem, gpu: Gpu | None, factors: str = "problem") -> float:
    """From the maker's own peaks: Q, K and V read once, or the matrix products, whichever takes longer.

    Writes are left out, since they may still lie in L2 when the clock stops. Any dtype is granted the rate of the
    fastest 16-bit matrices, so that no clever kernel is called impossible; that of `factors`, as `Numerics` has them,
    where these are others. 0 for a GPU whose peaks are not known.
    """
    if gpu is None:
        return 0.0
    fastest = max([gpu.float32_flops, *(gpu.tensor_flops.get(x, 0.0) for x in ("float16", "bfloat16", factors))])
    return 1000 * max(problem.compulsory_read_bytes / gpu.memory_bytes_per_s, problem.flops / fastest)
