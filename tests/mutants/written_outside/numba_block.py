"""Numba: a block of 64 threads per query row; keys in chunks of 64."""
import math

import numpy as np
from harness import Buffer, Launch, Numerics, Plan, Variant
from numba import cuda, float32, int32

NT = 64
DMAX = 256


@cuda.jit
def numba_block(Q, K, V, O, lse, group, tau, causal):
    sq = cuda.shared.array(DMAX, float32)
    sp = cuda.shared.array(NT, float32)
    red = cuda.shared.array(NT, float32)
    tid = cuda.threadIdx.x
    i, h, b = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    N, M, d = Q.shape[2], K.shape[2], Q.shape[3]
    kvh = h // group
    for c in range(tid, d, NT):
        sq[c] = float32(Q[b, h, i, c])
    acc = cuda.local.array(4, float32)
    for t in range(4):
        acc[t] = float32(0)
    end = M
    if causal:
        end = min(M, i + M - N + 1)
    m = float32(-np.inf)
    l = float32(0)
    for j0 in range(0, end, NT):
        cuda.syncthreads()
        j = j0 + tid
        s = float32(-np.inf)
        if j < end:
            s = float32(0)
            for c in range(d):
                s += sq[c] * float32(K[b, kvh, j, c])
            s *= tau
        sp[tid] = s
        red[tid] = s
        cuda.syncthreads()
        step = NT // 2
        while step > 0:
            if tid < step:
                red[tid] = max(red[tid], red[tid + step])
            cuda.syncthreads()
            step //= 2
        m_new = max(m, red[0])
        a = math.exp(m - m_new)
        l *= a
        for t in range(4):
            acc[t] *= a
        for jj in range(min(NT, end - j0)):
            p = math.exp(sp[jj] - m_new)
            l += p
            for t in range(4):
                c = tid + t * NT
                if c < d:
                    acc[t] += p * float32(V[b, kvh, j0 + jj, c])
        m = m_new
    for t in range(4):
        c = tid + t * NT
        if c < d:
            O[b, h, i, c] = acc[t] / l if end > 0 else float32(0)
    if tid == 0:
        lse[b, h, i] = m + math.log(l) if end > 0 else float32(-np.inf)


def plan(p):
    scalars = (np.int32(p.group), np.float32(p.tau), np.int32(p.causal))
    launch = Launch(numba_block, (p.q_len, p.heads, p.batch), (NT,), ("Q", "K", "V", "O", "lse", *scalars))
    return Plan((launch,), (Buffer("lse", p.lse_shape, "float32"),))


def supports(p):
    if p.dtype == "bfloat16":
        return "no bfloat16"
    return None if p.head_dim <= DMAX else "head_dim up to 256"


def register(registry):
    registry.add(Variant(name="u-numba", backend="numba", plan=plan, supports=supports, idea="Numba, block per row",
                         numerics=Numerics(scores="float32", weights="float32", sums="nearest", functions="accurate")))
