"""Plays PyTorch for the libraries' rows of `bench`: NumPy arrays as tensors, attention without tiles, its gradients.

Its kernels take what PyTorch's take and no more: which alignment a causal mask has, how lse is padded, in which layout
O lies. So a row that hands on the wrong thing is refused or wrong here, too.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest


class FakeTensor(np.ndarray):
    """What of a tensor the rows use."""

    device = "cuda"
    gradients: Callable[..., tuple[np.ndarray, ...]]

    def detach(self) -> FakeTensor:
        return self

    def requires_grad_(self) -> FakeTensor:
        return self

    def contiguous(self) -> FakeTensor:
        return as_tensor(np.ascontiguousarray(self))

    def clone(self) -> FakeTensor:
        return self.copy()

    def cpu(self) -> FakeTensor:
        return self

    def numpy(self) -> np.ndarray:
        return np.asarray(self)

    def float(self) -> FakeTensor:
        return self.astype(np.float32)

    def to(self, dtype: Any) -> FakeTensor:
        return self.astype(dtype)

    def transpose(self, first: int, second: int) -> FakeTensor:
        return self.swapaxes(first, second)

    def expand(self, *shape: int) -> FakeTensor:
        return np.broadcast_to(self, shape, subok=True)

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.itemsize for step in self.strides)

    def masked_fill_(self, where: np.ndarray, value: float) -> None:
        self[np.asarray(np.broadcast_to(where, self.shape))] = value

    def scatter_reduce_(self, dim: int, index: np.ndarray, values: np.ndarray, reduce: str) -> None:
        assert (dim, reduce) == (0, "amax")
        np.maximum.at(self, np.asarray(index), np.asarray(values))

    def sum(self, dim: int) -> FakeTensor:
        return np.add.reduce(self, axis=dim)


def as_tensor(array: Any, device: str = "cuda") -> FakeTensor:
    return np.asarray(array).view(FakeTensor)


Seen = np.ndarray | bool


def attention(
    Q: Any, K: Any, V: Any, scale: float, seen: Seen, bias: Any = 0.0, score_mod: Any = None
) -> tuple[FakeTensor, np.ndarray]:
    """O in the dtype of Q, which knows its gradients, and lse in float32."""
    q, k, v = in_groups(Q, K, V)
    scores = scale * (q @ k.swapaxes(-1, -2))
    if score_mod is not None:
        scores = np.asarray(score_mod(as_tensor(scores), *indices(scores.shape)))
    scores = np.where(seen, scores + np.asarray(bias, np.float64), -np.inf)
    largest = scores.max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        P = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        l = P.sum(axis=-1, keepdims=True)
        O = as_tensor((np.where(l > 0, P @ v / l, 0.0)).astype(Q.dtype))
        lse = np.where(l > 0, np.log(l) + largest, -np.inf)[..., 0].astype(np.float32)
    O.gradients = lambda dO, dlse=0.0: gradients(dO, Q, K, V, O, lse, scale, seen, bias, dlse)
    return O, lse


def gradients(
    dO: Any, Q: Any, K: Any, V: Any, O: Any, lse: Any, scale: float, seen: Seen, bias: Any = 0.0, dlse: Any = 0.0
) -> tuple[FakeTensor, ...]:
    """dQ, dK and dV, of an O and an lse that are given."""
    q, k, v = in_groups(Q, K, V)
    dO, O, lse = (np.asarray(x, np.float64) for x in (dO, O, lse))
    scores = np.where(seen, scale * (q @ k.swapaxes(-1, -2)) + np.asarray(bias, np.float64), -np.inf)
    with np.errstate(all="ignore"):
        P = np.where(np.isneginf(scores), 0.0, np.exp(scores - lse[..., None]))
    delta = (dO * O).sum(axis=-1) - np.asarray(dlse, np.float64)
    dS = scale * P * (dO @ v.swapaxes(-1, -2) - delta[..., None])
    batch, heads, _, dim = K.shape
    dK, dV = (
        (weights.swapaxes(-1, -2) @ rows).reshape(batch, heads, -1, K.shape[2], dim).sum(axis=2)
        for weights, rows in ((dS, q), (P, dO))
    )
    return tuple(as_tensor(x.astype(Q.dtype)) for x in (dS @ k, dK, dV))


def in_groups(Q: Any, K: Any, V: Any) -> Iterator[np.ndarray]:
    """In float64, a head of K and V for each of Q."""
    yield np.asarray(Q, np.float64)
    for tensor in (K, V):
        yield np.repeat(np.asarray(tensor, np.float64), Q.shape[1] // K.shape[1], axis=1)


def indices(shape: tuple[int, ...]) -> list[FakeTensor]:
    return [as_tensor(each) for each in np.ogrid[tuple(slice(extent) for extent in shape)]]


def causal(Q: Any, K: Any, is_lower_right: bool) -> np.ndarray:
    rows, keys = np.ogrid[: Q.shape[2], : K.shape[2]]
    seen: np.ndarray = keys <= rows + (K.shape[2] - Q.shape[2] if is_lower_right else 0)
    return seen


def of_numpy(function: Callable[..., Any]) -> Callable[..., FakeTensor]:
    return lambda *values, device=None, **options: as_tensor(function(*values, **options))


class FakeTorch(types.ModuleType):
    """The module, and those in it."""

    bfloat16, float32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
    uint16, uint8, int32, int64 = (np.dtype(name) for name in ("uint16", "uint8", "int32", "int64"))

    def __init__(self) -> None:
        super().__init__("torch")
        self.handed: list[dict[str, Any]] = []
        """What `scaled_dot_product_attention` was handed besides Q, K and V."""
        self.backend = ""
        self.as_tensor = as_tensor
        self.where = lambda chosen, x, y: as_tensor(np.where(chosen, x, np.asarray(y, np.asarray(x).dtype)))
        for name in ("tanh", "abs", "isneginf"):
            setattr(self, name, of_numpy(getattr(np, name)))
        self.sigmoid = lambda x: as_tensor(1 / (1 + np.exp(-np.asarray(x, np.float64))))
        self.full_like = lambda x, value: as_tensor(np.full_like(x, value))
        for name in ("full", "zeros", "empty", "arange"):
            setattr(self, name, of_numpy(getattr(np, name)))
        self.clamp = of_numpy(np.clip)
        self.softmax = softmax
        self.no_grad = self.enable_grad = contextlib.nullcontext
        self.cuda = SimpleNamespace(
            ExternalStream=lambda ptr: SimpleNamespace(synchronize=lambda: None, cuda_stream=ptr),
            stream=contextlib.nullcontext,
        )
        self.compiler = SimpleNamespace(reset=lambda: None)
        self.compile = lambda function, dynamic, fullgraph=False: np.errstate(invalid="ignore")(function)
        self._functorch = SimpleNamespace(config=SimpleNamespace(donated_buffer=True))
        self.autograd = SimpleNamespace(grad=self._grad)
        self.ops = SimpleNamespace(
            aten=SimpleNamespace(
                _scaled_dot_product_flash_attention_backward=flash_backward,
                _scaled_dot_product_cudnn_attention=cudnn_forward,
                _scaled_dot_product_cudnn_attention_backward=cudnn_backward,
                _efficient_attention_backward=efficient_backward,
            )
        )
        self.nn = SimpleNamespace(functional=SimpleNamespace(pad=pad))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Be what `import torch` finds."""
        backends = SimpleNamespace(
            **{name: name for name in ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION")}
        )
        modules = {
            "torch": self,
            "torch.nn": module(),
            "torch.nn.functional": module(scaled_dot_product_attention=self._scaled_dot_product_attention),
            "torch.nn.attention": module(SDPBackend=backends, sdpa_kernel=self._sdpa_kernel),
            "torch.nn.attention.bias": module(causal_lower_right=lambda rows, keys: "lower right"),
            "torch.nn.attention.flex_attention": module(
                flex_attention=flex_attention,
                BlockMask=BlockMask,
                AuxRequest=lambda lse: SimpleNamespace(lse=lse),
            ),
        }
        for name, each in modules.items():
            monkeypatch.setitem(sys.modules, name, each)

    @contextlib.contextmanager
    def _sdpa_kernel(self, backend: str) -> Iterator[None]:
        self.backend = backend
        yield

    def _scaled_dot_product_attention(
        self, Q: Any, K: Any, V: Any, *, attn_mask: Any, scale: float, is_causal: bool = False, enable_gqa: bool = False
    ) -> FakeTensor:
        self.handed.append({"backend": self.backend, "attn_mask": attn_mask, "is_causal": is_causal})
        assert enable_gqa or Q.shape[1] == K.shape[1]
        assert not (is_causal and attn_mask is not None)
        if isinstance(attn_mask, str):
            assert self.backend == "FLASH_ATTENTION" or Q.shape[2] <= K.shape[2]
            return attention(Q, K, V, scale, causal(Q, K, is_lower_right=True))[0]
        assert attn_mask is None or (attn_mask.dtype == Q.dtype and self.backend != "FLASH_ATTENTION")
        bias = 0.0 if attn_mask is None else attn_mask
        return attention(Q, K, V, scale, causal(Q, K, is_lower_right=False) if is_causal else True, bias)[0]

    @staticmethod
    def _grad(results: Any, leaves: list[Any], cotangents: Any, retain_graph: bool) -> tuple[FakeTensor, ...]:
        assert retain_graph and len(leaves) == 3
        return results[0].gradients(*cotangents)


def softmax(X: Any, dim: int) -> FakeTensor:
    weights = np.exp(np.asarray(X, np.float64) - np.max(np.asarray(X, np.float64), axis=dim, keepdims=True))
    return as_tensor((weights / np.add.reduce(weights, axis=dim, keepdims=True)).astype(X.dtype))


def module(**names: Any) -> Any:
    made = types.ModuleType("fake")
    made.__dict__.update(names)
    return made


def pad(tensor: Any, widths: tuple[int, int], value: float) -> FakeTensor:
    return as_tensor(np.pad(tensor, [(0, 0)] * (tensor.ndim - 1) + [widths], constant_values=value))


class BlockMask:
    """Which tiles of keys are looked at: those that are mixed, and those that are seen whole, which are not masked."""

    def __init__(self, mixed: FakeTensor, whole: FakeTensor, tile: tuple[int, int], rule: Any) -> None:
        self.mixed, self.whole, self.tile, self.rule = mixed, whole, tile, rule

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: FakeTensor,
        kv_indices: FakeTensor,
        full_kv_num_blocks: FakeTensor,
        full_kv_indices: FakeTensor,
        *,
        BLOCK_SIZE: tuple[int, int],
        mask_mod: Any,
        seq_lengths: tuple[int, int],
    ) -> BlockMask:
        """As PyTorch has it: how many tiles of keys each tile of rows has of a kind, and their numbers, in front."""
        tiles = tuple(-(-extent // size) for extent, size in zip(seq_lengths, BLOCK_SIZE, strict=True))
        kinds = []
        for count, numbers in ((kv_num_blocks, kv_indices), (full_kv_num_blocks, full_kv_indices)):
            assert count.dtype == numbers.dtype == np.int32 and numbers.shape == (*count.shape, tiles[1])
            assert count.shape[2] == tiles[0]
            chosen = np.zeros(numbers.shape, bool)
            np.put_along_axis(chosen, np.asarray(numbers), np.arange(tiles[1]) < np.asarray(count)[..., None], axis=-1)
            kinds.append(chosen)
        assert not (kinds[0] & kinds[1]).any()
        return cls(kinds[0], kinds[1], BLOCK_SIZE, mask_mod)

    def seen(self, batch: int, heads: int, q_len: int, kv_len: int) -> np.ndarray:
        """Pairs of rows and keys, as a kernel finds them."""
        alike = self.mixed.shape[:2]
        assert all(own in (1, extent) for own, extent in zip(alike, (batch, heads), strict=True))
        rows, keys = np.arange(q_len) // self.tile[0], np.arange(kv_len) // self.tile[1]
        mixed, whole = (tiles[:, :, rows][..., keys] for tiles in (self.mixed, self.whole))
        ruled = np.broadcast_to(self.rule(*indices((*alike, q_len, kv_len))), (*alike, q_len, kv_len))
        return np.broadcast_to(whole | (mixed & np.asarray(ruled)), (batch, heads, q_len, kv_len))


def flex_attention(
    Q: Any, K: Any, V: Any, *, block_mask: Any, score_mod: Any, scale: float, enable_gqa: bool, return_aux: Any = None
) -> Any:
    assert enable_gqa or Q.shape[1] == K.shape[1]
    seen: Seen = True if block_mask is None else block_mask.seen(*Q.shape[:3], K.shape[2])
    O, lse = attention(Q, K, V, scale, seen, score_mod=score_mod)
    return O if return_aux is None else (O, SimpleNamespace(lse=as_tensor(lse)))


def flash_backward(
    dO: Any, Q: Any, K: Any, V: Any, O: Any, lse: Any, cum_q: None, cum_k: None, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, seed: Any, offset: Any, *, scale: float,
) -> tuple[FakeTensor, ...]:  # fmt: skip
    assert dropout_p == 0 and not np.isneginf(lse).any() and lies_rows_outside(O) and lies_rows_outside(dO)
    return gradients(dO, Q, K, V, O, lse, scale, causal(Q, K, is_lower_right=True) if is_causal else True)


def cudnn_forward(Q: Any, K: Any, V: Any, bias: None, with_lse: bool, *, scale: float) -> tuple[Any, ...]:
    """Its lse has a fourth axis, as PyTorch 2.11's has."""
    O, lse = attention(Q, K, V, scale, True)
    return O, lse[..., None], None, None


def cudnn_backward(
    dO: Any, Q: Any, K: Any, V: Any, O: Any, lse: Any, seed: Any, offset: Any, bias: Any, cum_q: None, cum_k: None,
    max_q: int, max_k: int, dropout_p: float, is_causal: bool, *, scale: float,
) -> tuple[FakeTensor, ...]:  # fmt: skip
    assert dropout_p == 0 and not np.isneginf(lse).any() and O.strides == dO.strides
    assert lse.shape == (*Q.shape[:3], 1)
    seen = causal(Q, K, is_lower_right=False) if is_causal else True
    return gradients(dO, Q, K, V, O, lse[..., 0], scale, seen, 0.0 if bias is None else bias)


def efficient_backward(
    dO: Any, Q: Any, K: Any, V: Any, bias: Any, O: Any, cum_q: None, cum_k: None, max_q: int, max_k: int, lse: Any,
    dropout_p: float, seed: Any, offset: Any, custom_mask_type: int, bias_requires_grad: bool, *, scale: float,
) -> tuple[Any, ...]:  # fmt: skip
    """With the heads of a row side by side."""
    batch, rows, heads, _ = Q.shape
    assert heads == K.shape[2] and O.flags.c_contiguous and dO.flags.c_contiguous
    assert dropout_p == 0 and lse.shape == (batch, heads, -(-rows // 32) * 32) and not np.isneginf(lse).any()
    assert bias is None or bias.shape == (batch, heads, rows, K.shape[1])
    dO, Q, K, V, O = (x.swapaxes(1, 2) for x in (dO, Q, K, V, O))
    seen = {0: True, 1: causal(Q, K, is_lower_right=False), 2: causal(Q, K, is_lower_right=True)}[custom_mask_type]
    found = gradients(dO, Q, K, V, O, lse[..., :rows], scale, seen, 0.0 if bias is None else bias)
    return (*(x.swapaxes(1, 2) for x in found), None)


def lies_rows_outside(tensor: Any) -> bool:
    return bool(tensor.swapaxes(1, 2).flags.c_contiguous)
