"""Plays PyTorch's `varlen_attn` for the row `torch-varlen` of `bench`: its arguments, layouts and aligned masks."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.fakes.fake_flash_attention_4 import documents, forward
from tests.fakes.fake_torch import FakeTensor, as_tensor, module


def varlen_attn(
    query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int,
    *, scale: float, window_size: tuple[int, int], enable_gqa: bool = False,
) -> FakeTensor:  # fmt: skip
    """O of rows (all rows, heads, head_dim); -1 in `window_size` is no limit."""
    assert query.ndim == 3 and (enable_gqa or query.shape[1] == key.shape[1])
    before, after = (None if limit == -1 else limit for limit in window_size)
    options: Any = {"softmax_scale": scale, "softcap": 0.0, "learnable_sink": None, "window_size": (before, after)}
    O = as_tensor(np.empty_like(query))
    for rows, keys in documents(cu_seq_q, cu_seq_k, max_q, max_k):
        O[rows] = forward(query[None, rows], key[None, keys], value[None, keys], **options)[0][0]
    return O


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be what the row imports."""
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module(varlen_attn=varlen_attn))
