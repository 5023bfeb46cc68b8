"""w-numba-softmax: Numba; at most 64 blocks, each walks over rows and keeps a row in shared memory where it fits."""

import math

import numpy as np
from numba import cuda, float32

from harness import Launch, Numerics, Plan, Variant

THREADS = 128
ROOM = 2048
BLOCKS = 64
NEG = np.float32(-np.inf)
ALL = 0xFFFFFFFF


@cuda.jit
def strided_rows(X, Y):
    row_s = cuda.shared.array(ROOM, float32)
    tops = cuda.shared.array(4, float32)
    sums = cuda.shared.array(4, float32)
    t = cuda.threadIdx.x
    lane, warp = t % 32, t // 32
    rows, columns = X.shape
    for i in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
        m = NEG
        for j in range(t, columns, THREADS):
            x = float32(X[i, j])
            if j < ROOM:
                row_s[j] = x
            m = max(m, x)
        cuda.syncwarp()
        step = 16
        while step > 0:
            m = max(m, cuda.shfl_xor_sync(ALL, m, step))
            step //= 2
        if lane == 0:
            tops[warp] = m
        cuda.syncthreads()
        m = max(max(tops[0], tops[1]), max(tops[2], tops[3]))
        d = float32(0)
        for j in range(t, columns, THREADS):
            x = row_s[j] if j < ROOM else float32(X[i, j])
            d += math.exp(x - m)
        cuda.syncwarp()
        step = 16
        while step > 0:
            d += cuda.shfl_xor_sync(ALL, d, step)
            step //= 2
        if lane == 0:
            sums[warp] = d
        cuda.syncthreads()
        d = (sums[0] + sums[1]) + (sums[2] + sums[3])
        for j in range(t, columns, THREADS):
            x = row_s[j] if j < ROOM else float32(X[i, j])
            Y[i, j] = math.exp(x - m) / d


def plan(p):
    return Plan((Launch(strided_rows, (min(p.rows, BLOCKS),), (THREADS,), ("X", "Y")),))


def supports(p):
    return "float32 or float16" if p.dtype == "bfloat16" else None


def register(registry):
    registry.add(
        Variant(
            name="w-numba-softmax",
            operation="softmax",
            backend="numba",
            plan=plan,
            supports=supports,
            idea="blocks walk over rows, kept in shared memory",
            numerics=Numerics(functions="accurate", sums="nearest"),
        )
    )
