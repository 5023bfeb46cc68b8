"""Attention as a kernel does it, in float32 NumPy: right, and wrong in chosen ways. Shares nothing with the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.numerics import Numerics
from harness.operations.attention.masks import NO_MASK
from harness.operations.attention.problem import Problem

MUTANTS = (
    "l not rescaled",
    "O not rescaled",
    "causal top-left",
    "last key dropped",
    "padding not masked",
    "scale missing",
    "scale twice",
    "previous l",
    "grouped heads tiled",
    "no maximum",
    "finite sentinel",
    "l not rescaled once",
    "one row not masked once",
    "16-bit sums",
    "lse in log2",
    "zero times NaN",
)

f32 = np.float32
LOG2_E = f32(1.4426950408889634)

_EXACT = {"functions": "accurate", "sums": "nearest", "one_score": True, "divides_last": True}
NUMERICS = {
    True: Numerics(scores="problem", weights="problem", **_EXACT),
    False: Numerics(scores="float32", weights="float32", **_EXACT),
}
"""By `store_scores`."""


def online_softmax(
    problem: Problem,
    inputs: Mapping[str, np.ndarray],
    tile: int = 16,
    mutant: str | None = None,
    store_scores: bool = False,
    q_factors: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """O and lse, tile after tile of keys, accumulated in float32; `store_scores` rounds S and P to the dtype.

    `q_factors`, of `tau`, `log2 e` and `tau log2 e`: Q is multiplied by one after the other before the product, and
    rounded to the dtype each time. As `numerics` would be declared: NUMERICS[store_scores], and `scaled_q` as many.
    """
    assert mutant is None or mutant in MUTANTS
    dtype = NUMPY_DTYPES[problem.dtype]
    O = np.zeros(problem.q_shape, dtype)
    lse = np.full(problem.lse_shape, -np.inf, f32)
    for b in range(problem.batch):
        for h in range(problem.heads):
            kv = h % problem.kv_heads_count if mutant == "grouped heads tiled" else h // problem.group
            q, k, v = (inputs[x][b, i].astype(f32) for x, i in (("Q", h), ("K", kv), ("V", kv)))
            for factor in q_factors:
                by = (problem.tau if "tau" in factor else 1.0) * (LOG2_E if "log2 e" in factor else 1.0)
                q = (q * f32(by)).astype(dtype).astype(f32)
            stored = dtype if store_scores else np.dtype(f32)
            bias = None
            if problem.bias is not None:
                bias = np.broadcast_to(inputs["bias"], (problem.heads, problem.q_len, problem.kv_len))[h]
            O[b, h], lse[b, h] = _one_head(problem, q, k, v, tile, mutant, stored, q_factors, bias)
    return {"O": O, "lse": lse}


def _one_head(problem, q, k, v, tile, mutant, stored, q_factors, bias):
    N_q, N_k, tau = problem.q_len, problem.kv_len, f32(1 if q_factors else problem.tau)
    two = any("log2 e" in factor for factor in q_factors)
    exp, log = (np.exp2, np.log2) if two else (np.exp, np.log)
    if mutant == "scale missing":
        tau = f32(1)
    if mutant == "scale twice":
        tau = tau * tau
    rows = np.arange(N_q)
    start = f32(-1e4) if mutant == "finite sentinel" else f32(-np.inf)
    m, l, acc = np.full(N_q, start), np.zeros(N_q, f32), np.zeros((N_q, problem.head_dim), f32)
    l_before = l
    with np.errstate(all="ignore"):
        for j0 in range(0, N_k, tile):
            columns = np.arange(j0, j0 + tile)
            inside = columns < (N_k - 1 if mutant == "last key dropped" and N_k > 1 else N_k)
            kj = np.where((columns < N_k)[:, None], k[np.minimum(columns, N_k - 1)], f32(0))
            vj = np.where((columns < N_k)[:, None], v[np.minimum(columns, N_k - 1)], f32(0))
            s = (q @ kj.T) * tau
            if bias is not None:
                s = s + bias[:, np.minimum(columns, N_k - 1)]
            s = s.astype(stored).astype(f32)
            if mutant != "padding not masked":
                s = np.where(inside, s, start)
            if problem.mask != NO_MASK:
                # On a square of scores the diagonal is aligned top-left.
                first, end = problem.mask.span(rows, N_q, N_q if mutant == "causal top-left" else N_k)
                seen = (first[:, None] <= columns) & (columns < end[:, None])
                if mutant == "one row not masked once" and j0 <= N_k // 2 < j0 + tile:
                    seen[N_q // 2] = True
                s = np.where(seen, s, start)
            m_new = np.maximum(m, s.max(axis=1))
            shift = np.where(m_new == -np.inf, f32(0), m_new)
            if mutant == "no maximum":
                shift = np.zeros_like(shift)
            p = exp(s - shift[:, None])
            alpha = np.where(m == -np.inf, f32(0), exp(m - shift))
            if mutant == "no maximum":
                alpha = np.ones_like(alpha)
            l_before = l
            forgets = mutant == "l not rescaled" or (mutant == "l not rescaled once" and j0 == tile)
            l = (l if forgets else alpha * l) + p.sum(axis=1, dtype=f32)
            acc = acc if mutant == "O not rescaled" else alpha[:, None] * acc
            p = p.astype(stored).astype(f32)
            if mutant == "16-bit sums":
                for j in range(tile):
                    acc = (acc + p[:, j : j + 1] * vj[j]).astype(np.float16).astype(f32)
            elif np.isfinite(vj).all() or mutant == "zero times NaN":
                acc = acc + p @ vj
            else:
                # What a row does not see it must not even multiply by its zero weight.
                acc = acc + np.where(s[..., None] == -np.inf, f32(0), p[..., None] * vj).sum(axis=1)
            m = shift if mutant == "no maximum" else m_new
        divisor = l_before if mutant == "previous l" else l
        out = np.where(l[:, None] > 0, acc / divisor[:, None], f32(0))
        # A sum of NaN is not a masked row.
        out = np.where(np.isnan(l)[:, None], f32(np.nan), out)
        lse = np.where(l == 0, f32(-np.inf), m + log(l)) * (np.log(f32(2)) if two else f32(1))
        return out, lse / np.log(f32(2)) if mutant == "lse in log2" else lse
