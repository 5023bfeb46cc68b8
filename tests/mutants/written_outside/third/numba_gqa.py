"""w-numba-gqa: Numba, for decoding; the query heads of a group are the warps of a block and share tiles of K and V."""

import math

import numpy as np
from numba import cuda, float32

from harness import Buffer, Launch, Numerics, Plan, Variant

WARPS = 8
BC = 32
DIM = 64
PADDED = DIM + 1
NEG = np.float32(-np.inf)
ALL = 0xFFFFFFFF


@cuda.jit
def group_rows(Q, K, V, O, lse, group, packs, tau, before, after):
    k_s = cuda.shared.array((BC, PADDED), float32)
    v_s = cuda.shared.array((BC, PADDED), float32)
    lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
    i, batch = cuda.blockIdx.x, cuda.blockIdx.z
    kv_head = cuda.blockIdx.y // packs
    member = cuda.blockIdx.y % packs * WARPS + warp
    head = kv_head * group + member
    active = member < group
    q_len, kv_len, dim = Q.shape[2], K.shape[2], Q.shape[3]
    diagonal = i + kv_len - q_len
    lo = max(0, diagonal - before)
    hi = min(kv_len, diagonal + after + 1)
    m, l = NEG, float32(0)
    o0, o1 = float32(0), float32(0)
    j0 = lo
    while j0 < hi:
        count = min(BC, hi - j0)
        cuda.syncthreads()
        for j in range(warp, count, WARPS):
            for c in range(lane, dim, 32):
                k_s[j, c] = K[batch, kv_head, j0 + j, c]
                v_s[j, c] = V[batch, kv_head, j0 + j, c]
        cuda.syncthreads()
        if active:
            s = NEG
            if lane < count:
                s = float32(0)
                for c in range(dim):
                    s += float32(Q[batch, head, i, c]) * k_s[lane, c]
                s *= tau
            cuda.syncwarp()
            top = s
            step = 16
            while step > 0:
                top = max(top, cuda.shfl_xor_sync(ALL, top, step))
                step //= 2
            m_new = max(m, top)
            base = float32(0) if m_new == NEG else m_new
            alpha = math.exp(m - base)
            p = math.exp(s - base)
            m = m_new
            l = l * alpha + p
            o0 *= alpha
            o1 *= alpha
            for j in range(count):
                w = cuda.shfl_sync(ALL, p, j)
                if lane < dim:
                    o0 += w * v_s[j, lane]
                if lane + 32 < dim:
                    o1 += w * v_s[j, lane + 32]
        j0 += BC
    if not active:
        return
    step = 16
    while step > 0:
        l += cuda.shfl_xor_sync(ALL, l, step)
        step //= 2
    if lane < dim:
        O[batch, head, i, lane] = o0 / l if hi > lo else float32(0)
    if lane + 32 < dim:
        O[batch, head, i, lane + 32] = o1 / l if hi > lo else float32(0)
    if lane == 0:
        lse[batch, head, i] = m + math.log(l) if hi > lo else NEG


def band(p):
    """How many keys before and behind its place a row sees."""
    beyond = p.q_len + p.kv_len
    limits = [part.limits for part in p.mask.parts]
    before = min([beyond, *(left for left, _ in limits if left is not None)])
    after = min([beyond, *(right for _, right in limits if right is not None)])
    return np.int32(before), np.int32(after)


def plan(p):
    packs = -(-p.group // WARPS)
    grid = (p.q_len, p.heads // p.group * packs, p.batch)
    scalars = (np.int32(p.group), np.int32(packs), np.float32(p.tau), *band(p))
    launch = Launch(group_rows, grid, (32, WARPS), ("Q", "K", "V", "O", "lse", *scalars))
    return Plan((launch,), (Buffer("lse", p.lse_shape, "float32"),))


def supports(p):
    if p.dtype == "bfloat16":
        return "float32 or float16"
    if p.head_dim > DIM:
        return "head_dim up to 64"
    return "a grid has at most 65,535 blocks along y and z" if max(p.heads, p.batch) > 65_535 else None


def register(registry):
    registry.add(
        Variant(
            name="w-numba-gqa",
            backend="numba",
            plan=plan,
            supports=supports,
            takes=("causal", "window"),
            idea="a warp for each head of a group, K and V shared",
            numerics=Numerics(
                scores="float32", weights="float32", functions="accurate", sums="nearest", one_score=True, divides_last=True
            ),
        )
    )
