"""Numba: a warp per query row in two sweeps, one for maximum and denominator, one that computes the scores again."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda, float32

from harness import Launch, Numerics, Plan, Problem, Registry, Variant

WARPS = 4
ALL = 0xFFFFFFFF
LOWEST = np.float32(-np.inf)
ZERO = np.float32(0)


@cuda.jit(device=True)
def product(q, k, d):
    s = ZERO
    for e in range(d):
        s += float32(q[e]) * float32(k[e])
    return s


@cuda.jit(device=True)
def weight(s, m):
    return math.exp(s - (m if m != LOWEST else ZERO))


@functools.cache
def kernel(columns: int) -> Any:
    C = columns

    @cuda.jit
    def numba_warp(Q, K, V, O, group, tau, causal):
        weights = cuda.shared.array((WARPS, 32), float32)
        o = cuda.local.array(C, float32)
        lane = cuda.threadIdx.x
        warp = cuda.threadIdx.y
        q_len = Q.shape[2]
        kv_len = K.shape[2]
        d = Q.shape[3]
        row = cuda.blockIdx.x * WARPS + warp
        if row >= q_len:
            return
        head = cuda.blockIdx.y
        q = Q[cuda.blockIdx.z, head, row]
        k = K[cuda.blockIdx.z, head // group]
        v = V[cuda.blockIdx.z, head // group]
        end = kv_len
        if causal:
            end = min(kv_len, row + kv_len - q_len + 1)

        # Each lane over every 32nd key, then the lanes together.
        m = LOWEST
        l = ZERO
        for j in range(lane, end, 32):
            s = tau * product(q, k[j], d)
            m_new = m
            if s > m:
                m_new = s
            l = l * weight(m, m_new) + weight(s, m_new)
            m = m_new
        cuda.syncwarp(ALL)
        step = 16
        while step > 0:
            m_other = cuda.shfl_xor_sync(ALL, m, step)
            l_other = cuda.shfl_xor_sync(ALL, l, step)
            m_new = max(m, m_other)
            l = l * weight(m, m_new) + l_other * weight(m_other, m_new)
            m = m_new
            step //= 2

        for c in range(C):
            o[c] = ZERO
        for start in range(0, end, 32):
            present = min(32, end - start)
            if lane < present:
                weights[warp, lane] = weight(tau * product(q, k[start + lane], d), m)
            cuda.syncwarp(ALL)
            for j in range(present):
                p = weights[warp, j]
                for c in range(C):
                    e = lane + 32 * c
                    if e < d:
                        o[c] += p * float32(v[start + j, e])
            cuda.syncwarp(ALL)
        for c in range(C):
            e = lane + 32 * c
            if e < d:
                O[cuda.blockIdx.z, head, row, e] = o[c] / l if end > 0 else ZERO

    return numba_warp


def plan(p: Problem) -> Plan:
    args = ("Q", "K", "V", "O", np.int32(p.group), np.float32(p.tau), np.int32(p.causal))
    grid = (-(-p.q_len // WARPS), p.heads, p.batch)
    return Plan((Launch(kernel(-(-p.head_dim // 32)), grid=grid, block=(32, WARPS), args=args),))


def supports(p: Problem) -> str | None:
    return "Numba has no bfloat16 here: choose float32 or float16" if p.dtype == "bfloat16" else None


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-numba-warp",
            backend="numba",
            plan=plan,
            supports=supports,
            idea="a warp per row in Numba, two sweeps",
            numerics=Numerics(
                scores="float32", weights="float32", functions="accurate", sums="nearest", divides_last=True
            ),
        )
    )
