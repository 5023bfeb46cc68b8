"""A warp that reads a sector per lane and a column of an unpadded tile, in CUDA and in Numba."""

import cupy
from numba import cuda, float32

from harness import Launch, Plan, Traffic, Variant

cuda_kernel = cupy.RawKernel(
    r"""
extern "C" __global__ void column(const float* Q, float* O) {
    __shared__ float tile[32 * 32];
    int i = threadIdx.x;
    tile[32 * i] = Q[8 * i];  // cuda: load
    __syncwarp();
    O[i] = tile[32 * (31 - i)];  // cuda: store
}
""",
    "column",
)


@cuda.jit
def numba_kernel(Q, O):
    tile = cuda.shared.array(32 * 32, float32)
    i = cuda.threadIdx.x
    tile[32 * i] = Q[0, 0, i // 8, 8 * (i % 8)]  # numba: load
    cuda.syncwarp()
    O[0, 0, i // 64, i % 64] = tile[32 * (31 - i)]  # numba: store


def register(registry):
    for backend, kernel in (("cupy", cuda_kernel), ("numba", numba_kernel)):
        plan = Plan((Launch(kernel, (1,), (32,), ("Q", "O")),))
        registry.add(
            Variant(
                name=f"column-{backend}",
                backend=backend,
                plan=lambda problem, plan=plan: plan,
                supports=lambda problem: "too long" if problem.q_len > 100 else None,
                claim=lambda problem: Traffic(1024, 128),
            )
        )
