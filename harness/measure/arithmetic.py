"""How much arithmetic a problem is, and what a roofline makes of it."""

from __future__ import annotations

import numpy as np

from harness.gpus import Gpu
from harness.problem import Problem


def matrix_flops(problem: Problem) -> int:
    """Multiplications and additions of Q K^T and P V, over the keys that each row sees.

    4 d per query row and key, as FlashAttention's own benchmarks count (Dao 2023, arXiv 2307.08691, section 4.1);
    a causal mask counts exactly and not as one half. The softmax is left out.
    """
    p = problem
    if p.causal:
        rows = np.arange(p.q_len, dtype=np.int64)
        pairs = int(np.clip(rows + 1 + p.kv_len - p.q_len, 0, p.kv_len).sum())
    else:
        pairs = p.q_len * p.kv_len
    return 4 * p.batch * p.heads * p.head_dim * pairs


def attainable_flops(gpu: Gpu, peak_flops: float, intensity: float) -> float:
    """The roof over `intensity` FLOP per byte (Williams, Waterman and Patterson 2009, "Roofline")."""
    return min(peak_flops, intensity * gpu.memory_bytes_per_s)
