"""w-numba-split: Numba; a warp for each query row and run of 64 keys, partial sums in memory, a second kernel merges them."""

import math

import numpy as np
from numba import cuda, float32

from harness import Buffer, Launch, Numerics, Plan, Variant

SPLIT = 64
NEG = np.float32(-np.inf)
ALL = 0xFFFFFFFF


@cuda.jit
def partial_rows(Q, K, V, part, stats, group, tau, causal):
    weights = cuda.shared.array(SPLIT, float32)
    lane = cuda.threadIdx.x
    split = cuda.blockIdx.x
    i = cuda.blockIdx.y
    batch = cuda.blockIdx.z // Q.shape[1]
    head = cuda.blockIdx.z % Q.shape[1]
    kv_head = head // group
    q_len, kv_len, dim = Q.shape[2], K.shape[2], Q.shape[3]
    keys = min(kv_len, i + kv_len - q_len + 1) if causal else kv_len
    first = split * SPLIT
    count = min(SPLIT, keys - first)
    m = NEG
    s0 = NEG
    s1 = NEG
    if lane < count:
        s = float32(0)
        for c in range(dim):
            s += float32(Q[batch, head, i, c]) * float32(K[batch, kv_head, first + lane, c])
        s0 = s * tau
    if lane + 32 < count:
        s = float32(0)
        for c in range(dim):
            s += float32(Q[batch, head, i, c]) * float32(K[batch, kv_head, first + lane + 32, c])
        s1 = s * tau
    cuda.syncwarp()
    m = max(s0, s1)
    step = 16
    while step > 0:
        m = max(m, cuda.shfl_xor_sync(ALL, m, step))
        step //= 2
    base = float32(0) if m == NEG else m
    p0 = math.exp(s0 - base)
    p1 = math.exp(s1 - base)
    weights[lane] = p0
    weights[lane + 32] = p1
    total = p0 + p1
    step = 16
    while step > 0:
        total += cuda.shfl_xor_sync(ALL, total, step)
        step //= 2
    cuda.syncwarp()
    at = ((batch * Q.shape[1] + head) * q_len + i) * cuda.gridDim.x + split
    for c in range(lane, dim, 32):
        o = float32(0)
        for j in range(count):
            o += weights[j] * float32(V[batch, kv_head, first + j, c])
        part[at, c] = o
    if lane == 0:
        stats[at, 0] = m
        stats[at, 1] = total


@cuda.jit
def merge_rows(part, stats, O, lse, splits):
    i = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    head = cuda.blockIdx.y
    batch = cuda.blockIdx.z
    q_len, dim = O.shape[2], O.shape[3]
    if i >= q_len:
        return
    first = ((batch * O.shape[1] + head) * q_len + i) * splits
    m = NEG
    for s in range(splits):
        m = max(m, stats[first + s, 0])
    base = float32(0) if m == NEG else m
    total = float32(0)
    for s in range(splits):
        total += stats[first + s, 1] * math.exp(stats[first + s, 0] - base)
    for c in range(cuda.threadIdx.x, dim, 32):
        o = float32(0)
        for s in range(splits):
            if stats[first + s, 1] != 0:
                o += part[first + s, c] * math.exp(stats[first + s, 0] - base)
        O[batch, head, i, c] = o / total if total != 0 else float32(0)
    if cuda.threadIdx.x == 0:
        lse[batch, head, i] = m + math.log(total) if total != 0 else NEG


def plan(p):
    splits = -(-p.kv_len // SPLIT)
    rows = p.batch * p.heads * p.q_len
    scalars = (np.int32(p.group), np.float32(p.tau), np.int32(p.causal))
    launches = (
        Launch(
            partial_rows,
            (splits, p.q_len, p.batch * p.heads),
            (32,),
            ("Q", "K", "V", "part", "stats", *scalars),
        ),
        Launch(
            merge_rows,
            (-(-p.q_len // 4), p.heads, p.batch),
            (32, 4),
            ("part", "stats", "O", "lse", np.int32(splits)),
        ),
    )
    buffers = (
        Buffer("part", (rows * splits, p.head_dim), "float32"),
        Buffer("stats", (rows * splits, 2), "float32"),
        Buffer("lse", p.lse_shape, "float32"),
    )
    return Plan(launches, buffers)


def supports(p):
    if p.dtype == "bfloat16":
        return "float32 or float16"
    if max(p.q_len, p.batch * p.heads) > 65_535:
        return "a grid has at most 65,535 blocks along y and z"
    return None


def register(registry):
    registry.add(
        Variant(
            name="w-numba-split",
            backend="numba",
            plan=plan,
            supports=supports,
            idea="runs of 64 keys, merged by a second kernel",
            numerics=Numerics(
                scores="float32", weights="float32", functions="accurate", sums="nearest", one_score=True, divides_last=True
            ),
        )
    )
