"""Plays cuDNN's frontend for the libraries' rows of `bench`: a graph of one node, computed when it is executed."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.fakes.fake_torch import as_tensor, attention


class GraphTensor:
    """One of a graph's own."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.shape = shape
        self.is_output = False

    def set_output(self, is_output: bool) -> GraphTensor:
        self.is_output = is_output
        return self

    def set_dim(self, shape: list[int]) -> GraphTensor:
        self.shape = tuple(shape)
        return self

    def set_stride(self, stride: list[int]) -> GraphTensor:
        return self


class Graph:
    """What is built of it is what was asked for."""

    def __init__(self, **types: Any) -> None:
        self.node: dict[str, Any] = {}
        self.O = GraphTensor()
        self.is_built = False

    def tensor_like(self, tensor: Any) -> GraphTensor:
        return GraphTensor(tensor.shape)

    def sdpa(self, **node: Any) -> tuple[GraphTensor, None]:
        self.node = node
        return self.O, None

    def build(self, heuristics: list[str]) -> None:
        assert self.O.is_output
        self.is_built = True

    def get_workspace_size(self) -> int:
        return 16

    def execute(self, given: Mapping[GraphTensor, Any], workspace: Any, handle: Any) -> None:
        assert self.is_built
        node = {name: given[x] if isinstance(x, GraphTensor) else x for name, x in self.node.items()}
        Q, K, V = node["q"], node["k"], node["v"]
        lengths = None
        if node.get("use_padding_mask"):
            K = gathered(K, node["paged_attention_k_table"], node["paged_attention_max_seq_len_kv"])
            V = gathered(V, node["paged_attention_v_table"], node["paged_attention_max_seq_len_kv"])
            lengths = np.asarray(node["seq_len_kv"])
            assert (np.asarray(node["seq_len_q"]) == Q.shape[2]).all()
        seen = visible(Q.shape[2], K.shape[2], lengths, node)
        seen = np.broadcast_to(seen, (len(Q), 1, Q.shape[2], K.shape[2]))
        if Q.shape[2] == 1:  # else NaN behind the last key come through, as they do in cuDNN
            K, V = (as_tensor(np.where(seen.any(axis=2)[..., None], x, 0).astype(x.dtype)) for x in (K, V))
        given[self.O][...] = attention(Q, K, V, node["attn_scale"], seen)[0]


def gathered(pool: Any, table: Any, most_keys: int) -> np.ndarray:
    """(sequences, heads, keys, head_dim). An entry that no page has is an index error."""
    pages = np.asarray(pool)[np.asarray(table)[:, 0, :, 0]].swapaxes(1, 2)
    keys: np.ndarray = pages.reshape(*pages.shape[:2], -1, pages.shape[-1])
    assert keys.shape[2] == most_keys
    return keys


def visible(q_len: int, kv_len: int, lengths: np.ndarray | None, node: Mapping[str, Any]) -> np.ndarray:
    rows, keys = np.ogrid[:q_len, :kv_len]
    ends = np.full((1, 1, 1, 1), kv_len) if lengths is None else lengths
    seen = keys < ends
    ahead = keys - (rows + ends - q_len)
    left, right = (node.get(f"diagonal_band_{side}_bound") for side in ("left", "right"))
    assert (left is None and right is None) or node["diagonal_alignment"] == "bottom right"
    if left is not None:
        seen = seen & (ahead > -left)
    return seen if right is None else seen & (ahead <= right)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be what `import cudnn` finds."""
    module: Any = types.ModuleType("cudnn")
    module.create_handle = lambda: "handle"
    module.set_stream = lambda handle, stream: None
    module.pygraph = Graph
    module.data_type = types.SimpleNamespace(HALF="half", BFLOAT16="bfloat16", FLOAT="float")
    module.diagonal_alignment = types.SimpleNamespace(BOTTOM_RIGHT="bottom right")
    module.heur_mode = types.SimpleNamespace(A="a", FALLBACK="fallback")
    monkeypatch.setitem(sys.modules, "cudnn", module)
