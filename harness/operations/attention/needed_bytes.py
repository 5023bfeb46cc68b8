"""What every right kernel has to read of these very inputs: the elements that the answer hangs on.

A kernel that leaves an element out gives the same answer whatever that element is. If some other value of it would give
another answer, that kernel is wrong for those inputs, whatever it does for these. An element counts here only where
such a value is certain; where that is in doubt, none of its tensor does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from harness.model.operation import IoBound
from harness.operations.attention.problem import Problem

LARGEST = {"float32": 3e38, "bfloat16": 3e38, "float16": 6e4}
"""The largest finite value of each dtype, roundly."""
SMALLEST_FACTOR = 1e-3
"""|tau q| above this lets one element of K, which may be as large as its dtype has, decide a row alone."""


def needed_read_bytes(problem: Problem, inputs: Mapping[str, np.ndarray]) -> int:
    """Bytes of Q, K and V that a right kernel reads at least."""
    q, k, v = (inputs[name].astype(np.float64) for name in ("Q", "K", "V"))
    if problem.tau == 0 or not all(np.isfinite(each).all() for each in (q, k, v)):
        return 0
    if problem.softcap is not None:
        return 0  # no element is so large that it decides a row: where scores are near their cap, it may change nothing
    if problem.dropout:
        return 0  # not worked out: what drops out decides nothing
    # A row of one key is that key's row of V, whatever Q and K are.
    if not problem.mask.is_run:
        return 0  # not worked out
    firsts, ends = problem.spans
    alike = problem.batch // len(firsts)  # sequences in which rows see the same
    choosing = ends - firsts >= 2
    if not choosing.any() or np.ptp(v, axis=2).min() == 0:
        return 0
    runs = [(first[which], end[which]) for first, end, which in zip(firsts, ends, choosing) if which.any()]
    chosen_from = sum(int(_covered(first, end, problem.kv_len).sum()) for first, end in runs)
    of_keys = alike * problem.kv_heads_count * problem.head_dim * chosen_from
    needed = 0
    if (abs(problem.tau) * np.abs(q)).min() >= SMALLEST_FACTOR:
        needed += of_keys  # an element of K, made huge, takes all the weight of a row to its key, or from it
    if all(_differ_within_rows(k, first, end) for first, end in runs):
        needed += alike * problem.heads * problem.head_dim * int(choosing.sum())
    # An element of V, made huge, shows in the answer unless its weight is so small that it may be taken for 0.
    longest = [np.sqrt((each**2).sum(axis=-1).max()) for each in (q, k)]
    largest_score = abs(problem.tau) * longest[0] * longest[1]
    apart = 2 * largest_score
    if problem.alibi:
        apart += np.abs(inputs["slopes"]).max().astype(np.float64) * (problem.q_len + problem.kv_len)
    smallest_weight = np.exp(-apart) / problem.kv_len
    if problem.sinks:
        # Beside a sink that is d above the largest score, no more than e^-d of that is left.
        smallest_weight *= np.exp(-max(0.0, inputs["sinks"].max().astype(np.float64) + largest_score)) / 2
    if smallest_weight * LARGEST[problem.dtype] > 1e3 * max(1.0, np.abs(v).max()):
        needed += of_keys
    return int(needed) * problem.itemsize_bytes


def _covered(first: np.ndarray, end: np.ndarray, kv_len: int) -> np.ndarray:
    """Whether some row sees each key."""
    steps = np.zeros(kv_len + 1, dtype=np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, end, -1)
    covered: np.ndarray = np.cumsum(steps[:-1]) > 0
    return covered


def _differ_within_rows(k: np.ndarray, first: np.ndarray, end: np.ndarray) -> bool:
    """Whether each element of Q meets two different elements of K: neighbours that differ are in every run of two."""
    return bool((np.diff(k[:, :, first.min() : end.max()], axis=2) != 0).all())


def io_bound(problem: Problem, on_chip_bytes: int) -> IoBound:
    """The bound for this problem. A causal mask is not taken into account; it changes a constant only.

    Saha and Ye 2024, "The I/O Complexity of Attention, or How Optimal is Flash Attention?", arXiv 2402.07443: every
    exact algorithm moves Omega(min(N^2 d / sqrt(M), N^2 d^2 / M)) elements per head between a memory of M elements on
    chip and the one that holds Q, K, V and O, and algorithms reach that: FlashAttention for M >= d^2 (Dao et al. 2022,
    arXiv 2205.14135, theorem 2: Theta(N^2 d^2 / M) for d <= M <= N d), tiled matrix products below. That is a statement
    about growth: the papers give no constant, so the value of the expression is an order of magnitude and no bound to
    be held against a count. What every algorithm has to move, without any constant, is the compulsory traffic.
    """
    d = problem.head_dim
    M = max(1, on_chip_bytes // problem.itemsize_bytes)
    heads = problem.batch * problem.heads
    scores = heads * problem.q_len * problem.kv_len
    elements = min(scores * d / math.sqrt(M), scores * d * d / M)
    longest = max(problem.q_len, problem.kv_len)
    return IoBound(on_chip_bytes, M, elements * problem.itemsize_bytes, d * d <= M, longest * d > M)
