"""A mask as a tensor of numbers that are added to scores, 0 where a row sees a key and -inf elsewhere."""

from __future__ import annotations

import itertools
from typing import Any

from harness.model.contenders.torch_contender import Tensors
from harness.operations.attention.masks import rule_of_arrays
from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem

MOST_BYTES = 2 * 2**30
ALIGNED_ELEMENTS = 16
"""Rows of it begin at multiples of so many: PyTorch copies a mask whose rows do not, in every run."""
MOST_AT_ONCE = 2**24
"""Pairs of a row and a key that are looked at together."""


def mask_tensor(torch: Any, name: str, problem: Problem, given: Tensors) -> Any:
    """(1 or batch, 1 or heads, q_len, kv_len), in the dtype of Q. Raises `UnsupportedProblem` where it is too large."""
    padded = -(-problem.kv_len // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
    heads = problem.heads if problem.mask.tells_heads_apart else 1
    shape = (problem.mask.sequences, heads, problem.q_len, padded)
    size_bytes = shape[0] * shape[1] * shape[2] * shape[3] * problem.itemsize_bytes
    if size_bytes > MOST_BYTES:
        raise UnsupportedProblem(
            name,
            f"mask {problem.mask} would be a tensor of {size_bytes / 2**30:.1f} GiB; the most is "
            f"{MOST_BYTES / 2**30:.0f}",
        )
    like = given["Q"]
    mask = torch.full(shape, float("-inf"), dtype=like.dtype, device=like.device)[..., : problem.kv_len]
    sees = rule_of_arrays(problem, given)
    assert sees is not None
    keys = torch.arange(problem.kv_len, device=like.device)[None, :]
    rows_at_once = max(1, MOST_AT_ONCE // problem.kv_len)
    for batch, head in itertools.product(range(shape[0]), range(heads)):
        for start in range(0, problem.q_len, rows_at_once):
            rows = torch.arange(start, min(start + rows_at_once, problem.q_len), device=like.device)[:, None]
            mask[batch, head, start : start + rows_at_once].masked_fill_(sees(batch, head, rows, keys), 0.0)
    return mask
