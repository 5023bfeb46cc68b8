"""Numba: a thread per query row, K and V in shared tiles; masks are windows."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda, float32

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Variant

ROWS = 32
KEYS = 16
LOWEST = np.float32(-np.inf)
ZERO = np.float32(0)


@functools.cache
def kernel(head_dim: int) -> Any:
    D = head_dim

    @cuda.jit
    def numba_tile(Q, K, V, O, lse, group, tau, before, after):
        k_tile = cuda.shared.array((KEYS, D), float32)
        v_tile = cuda.shared.array((KEYS, D), float32)
        q = cuda.local.array(D, float32)
        o = cuda.local.array(D, float32)
        t = cuda.threadIdx.x
        b = cuda.blockIdx.z
        h = cuda.blockIdx.y
        kv_h = h // group
        q_len = Q.shape[2]
        kv_len = K.shape[2]
        row = cuda.blockIdx.x * ROWS + t
        real = row < q_len
        for e in range(D):
            q[e] = float32(Q[b, h, row, e]) if real else ZERO
            o[e] = ZERO
        m = LOWEST
        l = ZERO
        place = row + kv_len - q_len
        first = max(place - before, 0)
        end = min(place + after + 1, kv_len)
        block_first = max(cuda.blockIdx.x * ROWS + kv_len - q_len - before, 0)
        block_end = min(min(cuda.blockIdx.x * ROWS + ROWS, q_len) + kv_len - q_len + after, kv_len)
        for start in range(block_first // KEYS * KEYS, block_end, KEYS):
            present = min(KEYS, kv_len - start)
            cuda.syncthreads()
            for i in range(t, present * D, ROWS):
                k_tile[i // D, i % D] = float32(K[b, kv_h, start + i // D, i % D])
                v_tile[i // D, i % D] = float32(V[b, kv_h, start + i // D, i % D])
            cuda.syncthreads()
            for j in range(present):
                if start + j >= first and start + j < end:
                    s = ZERO
                    for e in range(D):
                        s += q[e] * k_tile[j, e]
                    s *= tau
                    m_new = max(m, s)
                    if s != s:
                        m_new = m
                    pivot = m_new if m_new != LOWEST else ZERO
                    alpha = math.exp(m - pivot)
                    p = math.exp(s - pivot)
                    l = l * alpha + p
                    for e in range(D):
                        o[e] = o[e] * alpha + p * v_tile[j, e]
                    m = m_new
        if real:
            for e in range(D):
                O[b, h, row, e] = ZERO if l == ZERO else o[e] / l
            lse[b, h, row] = m + math.log(l) if l != ZERO else LOWEST

    return numba_tile


def plan(p: Problem) -> Plan:
    beyond = p.q_len + p.kv_len
    before = min([beyond, *(left for left, _ in (part.limits for part in p.mask.parts) if left is not None)])
    after = min([beyond, *(right for _, right in (part.limits for part in p.mask.parts) if right is not None)])
    args = ("Q", "K", "V", "O", "lse", np.int32(p.group), np.float32(p.tau), np.int32(before), np.int32(after))
    launch = Launch(kernel(p.head_dim), grid=(-(-p.q_len // ROWS), p.heads, p.batch), block=(ROWS,), args=args)
    return Plan((launch,), buffers=(Buffer("lse", p.lse_shape, "float32"),))


def supports(p: Problem) -> str | None:
    if p.dtype == "bfloat16":
        return "Numba has no bfloat16 here: choose float32 or float16"
    return None if p.head_dim <= 256 else "more than 256 elements a row"


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-numba-tile",
            backend="numba",
            plan=plan,
            supports=supports,
            takes=("causal", "window"),
            idea="a thread per row in Numba",
            numerics=Numerics(
                scores="float32",
                weights="float32",
                functions="accurate",
                sums="nearest",
                one_score=True,
                divides_last=True,
            ),
        )
    )
