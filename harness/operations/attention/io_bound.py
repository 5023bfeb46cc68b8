"""The asymptotic lower bound on the bytes that attention moves, for a given amount of on-chip memory.

Saha and Ye 2024, "The I/O Complexity of Attention, or How Optimal is Flash Attention?", arXiv 2402.07443: every exact
algorithm moves Omega(min(N^2 d / sqrt(M), N^2 d^2 / M)) elements per head between a memory of M elements on chip and
the one that holds Q, K, V and O, and algorithms reach that: FlashAttention for M >= d^2 (Dao et al. 2022, arXiv
2205.14135, theorem 2: Theta(N^2 d^2 / M) for d <= M <= N d), tiled matrix products below. The papers give no constant,
so the value is an order of magnitude and must not be compared with counts as a bound. A bound without a constant is the
compulsory traffic.
"""

from __future__ import annotations

import math

from harness.model.io_bound import IoBound
from harness.operations.attention.problem import Problem


def io_bound(problem: Problem, on_chip_bytes: int) -> IoBound:
    """Return the bound for this problem. Ignores masks, which change only a constant."""
    d = problem.head_dim
    M = max(1, on_chip_bytes // problem.itemsize_bytes)
    heads = problem.batch * problem.heads
    scores = heads * problem.q_len * problem.kv_len
    elements = min(scores * d / math.sqrt(M), scores * d * d / M)
    longest = max(problem.q_len, problem.kv_len)
    return IoBound(on_chip_bytes, M, elements * problem.itemsize_bytes, d * d <= M, longest * d > M)
