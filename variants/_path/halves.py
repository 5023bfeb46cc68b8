"""Problems of the steps on tensor cores: one head, float16."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Problem, TensorMap
from variants._path import HEAD_DIM

F16 = 2
"""Bytes of an element."""
ROW_BYTES = HEAD_DIM * F16
SECTOR_BYTES = 32


def one_head_of_halves(problem: Problem) -> str | None:
    """Return None for problems that the steps on tensor cores support, or else what they support."""
    shape = problem.batch == problem.heads == 1 and problem.head_dim == HEAD_DIM
    wanted = f"only one head in float16 with head_dim {HEAD_DIM} is supported"
    return None if shape and problem.dtype == "float16" else wanted


def small_halves(q_len: int, kv_len: int | None = None) -> Problem:
    """Return a problem of one head that these steps support."""
    kv_len = q_len if kv_len is None else kv_len
    return Problem(heads=1, head_dim=HEAD_DIM, q_len=q_len, kv_len=kv_len, dtype="float16")


def tile_map(buffer: str, length: int, rows: int) -> TensorMap:
    """Return the map of an array of `length` rows of 64 bytes, of which one copy brings `rows`, swizzled."""
    return TensorMap(
        buffer,
        extents=(HEAD_DIM, length),
        strides=(ROW_BYTES,),
        box=(HEAD_DIM, rows),
        dtype="float16",
        swizzle=ROW_BYTES,
    )


def sizes(problem: Problem) -> tuple[Any, ...]:
    """Return the last arguments of the kernels: rows, keys, and the factor of the scores."""
    return np.int32(problem.q_len), np.int32(problem.kv_len), np.float32(problem.tau)
