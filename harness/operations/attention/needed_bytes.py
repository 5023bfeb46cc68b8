"""Lower bound on the bytes that every correct kernel reads for given inputs: the elements that affect the answer.

A kernel that does not read an element returns the same result for all its values. If another value would change the
answer, that kernel is wrong for some inputs. An element counts only if such a value certainly exists; in case of doubt,
its entire tensor does not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from harness.model.operation import IoBound
from harness.operations.attention.problem import Problem

LARGEST = {"float32": 3e38, "bfloat16": 3e38, "float16": 6e4}
"""The largest finite value of each dtype, rounded down."""
SMALLEST_FACTOR = 1e-3
"""Minimum |tau q| for which the largest value of K's dtype in one element of K determines a row's result."""


def needed_read_bytes(problem: Problem, inputs: Mapping[str, np.ndarray]) -> int:
    """Return the minimum bytes of Q, K and V that a correct kernel reads; 0 if unknown. Other inputs do not count."""
    q, k, v = (inputs[name].astype(np.float64) for name in ("Q", "K", "V"))
    if problem.tau == 0 or not all(np.isfinite(each).all() for each in (q, k, v)):
        return 0
    if problem.dropout:
        return 0  # unknown: dropped weights have no effect
    changes = [term.range_of_change(problem, inputs) for term in problem.score_terms]
    if None in changes:
        return 0  # unknown: near a cap, for example, an element may have no effect
    least, most = (sum(ends) for ends in zip((0.0, 0.0), *changes))
    # If a row sees a single key, its result is that key's row of V for any Q and K.
    if not problem.mask.is_run:
        return 0  # unknown
    firsts, ends = problem.spans
    alike = problem.batch // len(firsts)  # sequences with the same runs
    choosing = ends - firsts >= 2
    if not choosing.any() or np.ptp(v, axis=2).min() == 0:
        return 0
    runs = [(first[which], end[which]) for first, end, which in zip(firsts, ends, choosing) if which.any()]
    chosen_from = sum(int(_covered(first, end, problem.kv_len).sum()) for first, end in runs)
    chosen_rows = alike * problem.kv_heads_count * chosen_from
    needed = 0
    factor = (abs(problem.tau) * np.abs(q)).min()
    if factor >= SMALLEST_FACTOR and factor * LARGEST[problem.dtype] > 2 * (most - least):
        needed += (
            chosen_rows * problem.head_dim
        )  # a huge element of K moves all weight of a row to its key, or away from it
    if all(_differ_within_rows(k, first, end) for first, end in runs):
        needed += alike * problem.heads * problem.head_dim * int(choosing.sum())
    # A huge element of V changes the answer unless its weight is so small that it may be treated as 0.
    longest = [np.sqrt((each**2).sum(axis=-1).max()) for each in (q, k)]
    largest_score = abs(problem.tau) * longest[0] * longest[1]
    score_range = 2 * largest_score + most - least
    smallest_weight = np.exp(-score_range) / problem.kv_len
    if problem.sinks:
        # A sink that exceeds the largest score by d reduces weights by e^-d.
        largest_sink = inputs["sinks"].max().astype(np.float64)
        smallest_weight *= np.exp(-max(0.0, largest_sink + largest_score + most)) / 2
    if smallest_weight * LARGEST[problem.dtype] > 1e3 * max(1.0, np.abs(v).max()):
        needed += chosen_rows * problem.v_width
    return int(needed) * problem.itemsize_bytes


def _covered(first: np.ndarray, end: np.ndarray, kv_len: int) -> np.ndarray:
    """Return for each key whether some row sees it."""
    steps = np.zeros(kv_len + 1, dtype=np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, end, -1)
    return np.cumsum(steps[:-1]) > 0


def _differ_within_rows(k: np.ndarray, first: np.ndarray, end: np.ndarray) -> bool:
    """Whether each element of Q is multiplied by two different elements of K, since all neighbouring keys differ."""
    return bool((np.diff(k[:, :, first.min() : end.max()], axis=2) != 0).all())


def io_bound(problem: Problem, on_chip_bytes: int) -> IoBound:
    """The bound for this problem. A causal mask is not taken into account; it changes a constant only.

    Saha and Ye 2024, "The I/O Complexity of Attention, or How Optimal is Flash Attention?", arXiv 2402.07443: every
    exact algorithm moves Omega(min(N^2 d / sqrt(M), N^2 d^2 / M)) elements per head between a memory of M elements on
    chip and the one that holds Q, K, V and O, and algorithms reach that: FlashAttention for M >= d^2 (Dao et al. 2022,
    arXiv 2205.14135, theorem 2: Theta(N^2 d^2 / M) for d <= M <= N d), tiled matrix products below. The papers give no
    constant, so the value is an order of magnitude and must not be compared with counts as a bound. A bound without a
    constant is the compulsory traffic. If rows of V are not as long as those of Q and K, d is the smaller length: the
    problem contains one in which all rows have that many elements.
    """
    d = min(problem.head_dim, problem.v_width)
    M = max(1, on_chip_bytes // problem.itemsize_bytes)
    heads = problem.batch * problem.heads
    scores = heads * problem.q_len * problem.kv_len
    elements = min(scores * d / math.sqrt(M), scores * d * d / M)
    longest = max(problem.q_len, problem.kv_len)
    return IoBound(on_chip_bytes, M, elements * problem.itemsize_bytes, d * d <= M, longest * d > M)
