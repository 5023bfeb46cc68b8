"""Variants that go wrong, each in its own way, beside which right ones still have to come."""

from __future__ import annotations

import cupy
import numpy as np

from harness import Launch, Plan, Variant

NO_SEMICOLON = """
extern "C" __global__ void no_semicolon(float* O)
{
    O[0] = 1.0f
}
"""
OUT_OF_BOUNDS = 'extern "C" __global__ void too_far(float* O, int n) { O[n] = 1.0f; }'
ENDLESS = 'extern "C" __global__ void endless(volatile float* O) { while (O[0] != 1.0f) {} }'
ZERO = 'extern "C" __global__ void zero(float* O, int n) { if (threadIdx.x < n) O[threadIdx.x] = 0.0f; }'


def one_launch(code: str, name: str, *scalars):
    kernel = cupy.RawKernel(code, name)
    return lambda problem: Plan((Launch(kernel, (1,), (32,), ("O", *scalars)),))


def no_plan(problem):
    raise RuntimeError("the plan is not ready")


def register(registry):
    registry.add(Variant(name="bad-source", plan=one_launch(NO_SEMICOLON, "no_semicolon")))
    registry.add(Variant(name="bad-address", plan=one_launch(OUT_OF_BOUNDS, "too_far", np.int32(10**6))))
    registry.add(Variant(name="bad-loop", plan=one_launch(ENDLESS, "endless")))
    registry.add(Variant(name="bad-plan", plan=no_plan))
    registry.add(Variant(name="bad-answer", plan=one_launch(ZERO, "zero", np.int32(8))))
    registry.add(Variant(name="bad-arguments", plan=one_launch(ZERO, "zero")))
