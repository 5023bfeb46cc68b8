"""Kernels whose author limits their registers, in both languages. They are never run."""

import cupy
from numba import cuda

from harness import Launch, Plan, Variant

CODE = r"""
extern "C" __global__ void heavy(const float* Q, float* O) {
    float x[64];
    for (int i = 0; i < 64; ++i) x[i] = Q[i * threadIdx.x];
    for (int i = 0; i < 64; ++i)
        for (int j = 0; j < 64; ++j) x[j] = x[j] * x[(i + j) % 64] + x[i];
    for (int i = 0; i < 64; ++i) O[i * threadIdx.x] = x[i];
}
"""


@cuda.jit(max_registers=32)
def light(Q, O):
    O[0, 0, 0, 0] = Q[0, 0, 0, 0]


def register(registry):
    kernels = {
        "free-cupy": cupy.RawKernel(CODE, "heavy"),
        "limited-cupy": cupy.RawKernel(CODE, "heavy", options=("-maxrregcount=32",)),
        "limited-numba": light,
    }
    for name, kernel in kernels.items():
        registry.add(
            Variant(
                name=name,
                backend=name.rpartition("-")[2],
                plan=lambda problem, kernel=kernel: Plan((Launch(kernel, (1,), (32,), ("Q", "O")),)),
            )
        )
