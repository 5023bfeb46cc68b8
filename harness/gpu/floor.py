"""Lower bound of the time of a problem on a GPU; a shorter measured time is a measurement error."""

from __future__ import annotations

from harness.model.problem import BaseProblem
from harness.support.gpu_data_sheets import Gpu


def least_ms(problem: BaseProblem, gpu: Gpu | None, factors: str = "problem") -> float:
    """The larger of the time to read every input once and the time to compute all FLOP, in milliseconds.

    Rates are the peaks of the GPU's data sheet. Writes are left out, since they may still lie in L2 when the clock
    stops. The FLOP rate is that of the fastest 16-bit tensor core dtype for any problem, or of `factors` (as in
    `Numerics.factors`) if that is faster. 0 if the GPU's peaks are not known.
    """
    if gpu is None:
        return 0.0
    fastest = max([gpu.float32_flops, *(gpu.tensor_flops.get(x, 0.0) for x in ("float16", "bfloat16", factors))])
    return 1000 * max(problem.compulsory_read_bytes / gpu.memory_bytes_per_s, problem.flops / fastest)
