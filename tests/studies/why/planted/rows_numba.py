"""Another good kernel, in Numba, a thread to each row and keys in shared memory; and it with one slip each."""

import math

import numpy as np
from numba import cuda, float32, float64

from harness import Launch, Plan, Variant

D = 32
THREADS = 128


def make(rows=THREADS, keys=32, zero=float32, reads_across=False, reads_twice=False, half=False, width=D, stride=1):
    """The kernel; each argument but the first ones is a slip."""
    TILE_WIDTH, KEYS, SPREAD = width, keys, 2 if half else 1
    STRIDE = stride
    THREADS_HERE = rows * SPREAD

    @cuda.jit(max_registers=168)
    def rows_kernel(Q, K, V, O, tau):
        K_tile = cuda.shared.array((KEYS, TILE_WIDTH), float32)
        V_tile = cuda.shared.array((KEYS, TILE_WIDTH), float32)
        q = cuda.local.array(D, float32)
        o = cuda.local.array(D, float32)
        t = cuda.threadIdx.x
        head = cuda.blockIdx.y
        works = True
        place = t
        if SPREAD == 2:
            works = t % 32 < 16
            place = t // 32 * 16 + t % 16
        row = cuda.blockIdx.x * rows + place
        kv_len = K.shape[2]
        for e in range(D):
            q[e] = Q[0, head, row, e] * tau
            o[e] = float32(0)
        m = float32(-1e30)
        l = zero(0)
        for first in range(0, kv_len, KEYS):
            cuda.syncthreads()
            for i in range(t, KEYS * D, THREADS_HERE):
                if reads_across:
                    k, e = i % KEYS, i // KEYS
                else:
                    k, e = i // D, i % D
                K_tile[k, e * STRIDE] = K[0, head, first + k, e]
                V_tile[k, e * STRIDE] = V[0, head, first + k, e]
            if reads_twice:
                cuda.syncthreads()
                for i in range(t, KEYS * D, THREADS_HERE):
                    K_tile[i // D, i % D] = K[0, head, first + i // D, i % D]
                    V_tile[i // D, i % D] = V[0, head, first + i // D, i % D]
            cuda.syncthreads()
            if works:
                for k in range(KEYS):
                    s = zero(0)
                    for e in range(D):
                        s += q[e] * K_tile[k, e * STRIDE]
                    most = max(m, float32(s))
                    shrink = math.exp(m - most)
                    p = math.exp(float32(s) - most)
                    m = most
                    l = l * shrink + p
                    for e in range(D):
                        o[e] = o[e] * shrink + p * V_tile[k, e * STRIDE]
        if works:
            for e in range(D):
                O[0, head, row, e] = o[e] / float32(l)

    return rows_kernel, rows, THREADS_HERE


SLIPS = {
    "good-numba": {},
    "bank-conflicts-numba": {"reads_across": True},
    "uncoalesced-numba": {"reads_across": True, "width": D + 1},
    "re-read-numba": {"reads_twice": True},
    "half-warp-numba": {"half": True},
    "fp64-numba": {"zero": float64},
    "stride-2-numba": {"stride": 2, "width": 2 * D},
    "tiny-tiles-numba": {"rows": 32, "keys": 4},
}


def plan_of(slip):
    kernel, rows, threads = make(**slip)

    def plan(problem):
        grid = (problem.q_len // rows, problem.heads)
        return Plan((Launch(kernel, grid, (threads,), ("Q", "K", "V", "O", np.float32(problem.tau))),))

    return plan


def supports(problem):
    if problem.dtype != "float32" or problem.head_dim != D or problem.batch > 1 or problem.kv_heads != problem.heads:
        return "float32, head_dim 32, one sequence"
    return "whole tiles" if problem.q_len % THREADS or problem.kv_len % 32 else None


def register(registry):
    for name, slip in SLIPS.items():
        registry.add(Variant(name=name, backend="numba", plan=plan_of(slip), supports=supports, idea="planted"))
