"""Plays FlashAttention-4's interface for the libraries' rows of `bench`: its arguments, layouts and aligned masks.

Tensors have rows outside heads. Documents lie behind one another, and begin where `cu_seqlens` says.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from harness.model.contenders import flash_attention_4
from tests.fakes.fake_torch import FakeTensor, as_tensor, attention, gradients, module

Window = tuple[int | None, int | None]


def band(q_len: int, kv_len: int, window: Window) -> np.ndarray:
    """Which keys rows see; the diagonal is aligned bottom-right."""
    ahead = np.arange(kv_len)[None] - (np.arange(q_len)[:, None] + kv_len - q_len)
    assert all(limit is None or limit >= 0 for limit in window)
    before, after = window
    seen: np.ndarray = np.ones_like(ahead, bool) if before is None else ahead >= -before
    return seen if after is None else seen & (ahead <= after)


def heads_outside(*tensors: Any) -> Iterator[Any]:
    yield from (tensor.swapaxes(-3, -2) for tensor in tensors)


def documents(rows: Any, keys: Any, longest_rows: int, longest_keys: int) -> Iterator[tuple[slice, slice]]:
    """Rows and keys of each document; none has more than the arguments say."""
    assert rows.dtype == keys.dtype == np.int32 and len(rows) == len(keys)
    for row, key in zip(itertools.pairwise(rows), itertools.pairwise(keys)):
        assert 0 <= row[1] - row[0] <= longest_rows and 0 <= key[1] - key[0] <= longest_keys
        yield slice(*row), slice(*key)


def forward(
    q: Any, k: Any, v: Any, *, softmax_scale: float, window_size: Window, softcap: float, learnable_sink: Any
) -> tuple[FakeTensor, None]:
    Q, K, V = heads_outside(q, k, v)
    capped = None if not softcap else lambda score, *place: softcap * np.tanh(score / softcap)
    seen = band(Q.shape[2], K.shape[2], window_size) if K.shape[2] else np.zeros((Q.shape[2], 0), bool)
    if not K.shape[2]:
        return as_tensor(np.zeros_like(q)), None
    O, lse = attention(Q, K, V, softmax_scale, seen, score_mod=capped)
    if learnable_sink is not None:
        with np.errstate(all="ignore"):
            beside = np.exp(np.asarray(learnable_sink, np.float64)[:, None] - lse)
        weight = np.where(np.isneginf(lse), 0.0, 1 / (1 + beside))
        O = as_tensor((O * weight[..., None]).astype(Q.dtype))
    return next(heads_outside(O)), None


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    *,
    softmax_scale: float,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    seqused_k: Any = None,
    page_table: Any = None,
    causal: bool = False,
    window_size: Window = (None, None),
    softcap: float = 0.0,
    learnable_sink: Any = None,
) -> tuple[FakeTensor, None]:
    options: Any = {"softmax_scale": softmax_scale, "softcap": softcap, "learnable_sink": learnable_sink}
    O = as_tensor(np.empty_like(q))
    if page_table is not None:
        assert page_table.dtype == seqused_k.dtype == np.int32
        for number, (table, length) in enumerate(zip(np.asarray(page_table), seqused_k)):
            # Whole pages are read, and weights of 0 do not hide NaN.
            K, V = (np.asarray(pool)[table].reshape(-1, *pool.shape[2:]) for pool in (k, v))
            assert np.isfinite(K.astype(np.float32)).all() and np.isfinite(V.astype(np.float32)).all()
            one = (as_tensor(x)[None] for x in (q[number], K[:length], V[:length]))
            O[number] = forward(*one, window_size=(None, 0 if causal else None), **options)[0][0]
        return O, None
    for rows, keys in documents(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        O[rows] = forward(q[None, rows], k[None, keys], v[None, keys], window_size=window_size, **options)[0][0]
    return O, None


def backward(
    q: Any, k: Any, v: Any, out: Any, dout: Any, lse: Any, *, softmax_scale: float, softcap: float,
    window_size_left: int | None, window_size_right: int | None, learnable_sink: Any,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, max_seqlen_q: int = 0, max_seqlen_k: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """dQ, dK and dV, and dsinks if there are sinks."""
    assert softcap == 0
    window = window_size_left, window_size_right
    if cu_seqlens_q is None:
        Q, K, V, O, dO = heads_outside(q, k, v, out, dout)
        assert lse.shape == Q.shape[:3]
        found = gradients(dO, Q, K, V, O, lse, softmax_scale, band(Q.shape[2], K.shape[2], window))
        if learnable_sink is None:
            return tuple(heads_outside(*found))
        delta = (np.asarray(dO, np.float64) * np.asarray(O, np.float64)).sum(axis=-1)
        with np.errstate(invalid="ignore"):
            weight = np.exp(np.asarray(learnable_sink, np.float64)[:, None] - np.asarray(lse))
        dsinks = -np.where(delta == 0, 0.0, weight * delta).sum(axis=(0, 2))
        return (*heads_outside(*found), as_tensor(dsinks.astype(np.float32)))
    assert lse.shape == (q.shape[1], q.shape[0])
    left = [as_tensor(np.zeros_like(x)) for x in (q, k, v)]
    for rows, keys in documents(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
        given = (q[None, rows], k[None, keys], v[None, keys], out[None, rows], dout[None, rows], lse[None, :, rows])
        if rows.stop > rows.start and keys.stop > keys.start:
            found = backward(
                *given, softmax_scale=softmax_scale, softcap=0.0, window_size_left=window_size_left,
                window_size_right=window_size_right, learnable_sink=None,
            )  # fmt: skip
            for gradient, where, one in zip(left, (rows, keys, keys), found):
                gradient[where] = one[0]
    return tuple(left)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be what the rows import."""
    interface = module(flash_attn_func=forward, flash_attn_varlen_func=flash_attn_varlen_func, _flash_attn_bwd=backward)
    modules = {
        "flash_attn": module(),
        "flash_attn.cute": module(interface=interface),
        "flash_attn.cute.interface": interface,
    }
    for name, found in modules.items():
        monkeypatch.setitem(sys.modules, name, found)
    flash_attention_4.interface.cache_clear()
