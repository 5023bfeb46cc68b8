"""Kernels that write zeros, or round to e4m3, and declare it: what widens a budget has to be visible in the code."""

from __future__ import annotations

import cupy
import numpy as np

from harness import Launch, Numerics, Plan, Problem, Registry, Variant

SOURCE = r"""
extern "C" __global__ void NAME(unsigned *O, int words, float x)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned short pair = 0;
    CONVERSION
    if (i < words) O[i] = pair & 0;
}
"""
CONVERSION = 'asm volatile("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %1;" : "=h"(pair) : "f"(x));'


def kernel(name: str, conversion: str) -> cupy.RawKernel:
    return cupy.RawKernel(SOURCE.replace("NAME", name).replace("CONVERSION", conversion), name)


KERNELS = {"zeros": kernel("zeros", ""), "zeros_e4m3": kernel("zeros_e4m3", CONVERSION)}


def variant(name: str, kernel: str, numerics: Numerics) -> Variant:
    def plan(problem: Problem) -> Plan:
        words = problem.batch * problem.heads * problem.q_len * problem.head_dim // 2
        args = ("O", np.int32(words), np.float32(0))
        return Plan((Launch(KERNELS[kernel], (-(-words // 256),), (256,), args),))

    def supports(problem: Problem) -> str | None:
        return (
            None
            if problem.itemsize_bytes == 2 and problem.head_dim % 2 == 0
            else "only even head_dim in 16 bits is supported"
        )

    return Variant(name=name, plan=plan, supports=supports, numerics=numerics)


def register(registry: Registry) -> None:
    registry.add(variant("zeros", "zeros", Numerics()))
    registry.add(variant("zeros-declare-e4m3", "zeros", Numerics(factors="e4m3")))
    registry.add(variant("zeros-declare-scaled-q", "zeros", Numerics(scaled_q=4)))
    registry.add(variant("zeros-declare-cubic", "zeros", Numerics(cubic_exp=True)))
    registry.add(variant("zeros-declare-headroom", "zeros", Numerics(headroom=8)))
    registry.add(variant("zeros-convert-to-e4m3", "zeros_e4m3", Numerics(factors="e4m3")))
