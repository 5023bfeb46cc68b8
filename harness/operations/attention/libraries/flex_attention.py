"""PyTorch's `flex_attention`, compiled for the problem: the rival where no other row has its mask or its scores.

Its kernel is written for the mask and the scores by `torch.compile` (Dong et al. 2024, arXiv 2412.05496), which takes
seconds; a block mask, made once, tells it which tiles of keys it may leave out. Both are made outside of the clock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.model.contenders.torch_contender import Tensors
from harness.operations.attention.bias import AXES, BIAS
from harness.operations.attention.libraries.scaled_dot_product import OWN_MASKS
from harness.operations.attention.libraries.torch_attention import TorchAttention
from harness.operations.attention.masks import BLOCKS, Rule, rule_of_arrays
from harness.operations.attention.problem import SCORE_FEATURES, SINKS, SLOPES, Problem
from harness.support.errors import UnsupportedProblem
from harness.support.override import override

NAME = "torch-flex"
TILE = 128
"""Rows, and keys, of a tile that its kernel may leave out: as many as PyTorch takes unless told otherwise."""


class FlexAttention(TorchAttention):
    """Any mask, caps, ALiBi and a bias in the kernel; sinks by its log-sum-exp, in a second pass over O."""

    def __init__(self, stage: Any) -> None:
        problem: Problem = stage.problem
        if problem.mask.text in OWN_MASKS and not problem.compiled_features:
            raise UnsupportedProblem(NAME, f"mask {problem.mask} is one that PyTorch's other rows have")
        super().__init__(NAME, stage, takes=SCORE_FEATURES)

    @override
    def attend(self, given: Tensors) -> Any:
        return self._compiled(given["Q"], given["K"], given["V"], given.get(BIAS), given.get(SINKS))

    def attend_with_lse(self, given: Tensors) -> tuple[Any, Any]:
        """O and the natural logarithm of sum exp(scores), (batch, heads, q_len) in float32, without sinks."""
        O, lse = self._compiled_with_lse(given["Q"], given["K"], given["V"])
        return O, lse

    @functools.cached_property
    def _compiled(self) -> Any:
        torch, with_lse = self._torch, self._with_lse
        from torch.nn.attention.flex_attention import flex_attention

        options, rule = self._options, self._score_rule

        def attend(Q: Any, K: Any, V: Any, bias: Any, sinks: Any) -> Any:
            if sinks is None:
                return flex_attention(Q, K, V, score_mod=rule(bias), **options)
            O, lse = with_lse(Q, K, V, bias)
            return (O * share_beside_sinks(torch, lse, sinks)[..., None]).to(O.dtype)

        return self._compile(attend)

    @functools.cached_property
    def _compiled_with_lse(self) -> Any:
        return self._compile(self._with_lse)

    @functools.cached_property
    def _with_lse(self) -> Callable[..., tuple[Any, Any]]:
        from torch.nn.attention.flex_attention import AuxRequest, flex_attention

        options, rule = self._options, self._score_rule

        def attend(Q: Any, K: Any, V: Any, bias: Any = None) -> tuple[Any, Any]:
            O, aux = flex_attention(Q, K, V, score_mod=rule(bias), return_aux=AuxRequest(lse=True), **options)
            return O, aux.lse

        return attend

    def _compile(self, function: Callable[..., Any]) -> Any:
        """What is compiled when it is first called, for these shapes alone."""
        torch = self._torch
        # What was compiled for other problems is not used again, and there is a limit to how much is kept.
        torch.compiler.reset()
        # Gradients are asked for again and again: what a forward pass keeps for them is not theirs to overwrite.
        torch._functorch.config.donated_buffer = False
        return torch.compile(function, dynamic=False, fullgraph=True)

    @functools.cached_property
    def _options(self) -> dict[str, Any]:
        p = self._problem
        return {
            "block_mask": self._block_mask(),
            "scale": p.tau,
            "enable_gqa": p.group > 1,
        }

    @functools.cached_property
    def _score_rule(self) -> Callable[[Any], Callable[..., Any] | None]:
        return score_rule(self._torch, self._problem, self._inputs[0].get(SLOPES))

    def _block_mask(self) -> Any:
        """Which tiles of keys have to be read; None: all."""
        from torch.nn.attention.flex_attention import BlockMask

        p, given = self._problem, dict(self._inputs[0])
        if BLOCKS in given:
            # Looked up for every pair of a tile, in shared memory: as int32 there is no room for it.
            given[BLOCKS] = given[BLOCKS] != 0
        sees = rule_of_arrays(p, given)
        if sees is None:
            return None
        # PyTorch's own `create_block_mask` makes a tensor of every pair of a row and a key; or, compiled, a kernel that
        # Triton is minutes at work on where there are many keys.
        seen, seen_whole = self._tiles_seen(sees)
        mixed, whole = self._listed(seen & ~seen_whole), self._listed(seen_whole)
        sizes = {"BLOCK_SIZE": (TILE, TILE), "seq_lengths": (p.q_len, p.kv_len)}
        return BlockMask.from_kv_blocks(*mixed, *whole, mask_mod=sees, **sizes)

    def _tiles_seen(self, sees: Rule) -> tuple[np.ndarray, np.ndarray]:
        """Whether any pair of a tile of rows and keys is seen, and whether all are: (batch, heads, tiles, tiles) each.

        One tile of rows after the other. Batch and heads are 1 where all see alike. A tile with less rows or keys than
        others is not seen whole.
        """
        p = self._problem
        batch, heads = (p.batch if p.mask.sequences > 1 else 1), (p.heads if p.mask.tells_heads_apart else 1)
        row_tiles, key_tiles = (-(-extent // TILE) for extent in (p.q_len, p.kv_len))
        device = self._inputs[0]["Q"].device
        numbers = self._torch.arange(max(row_tiles, key_tiles, batch, heads) * TILE, device=device)
        keys = numbers[: key_tiles * TILE]
        any_seen, all_seen = (np.empty((batch, heads, row_tiles, key_tiles), bool) for _ in range(2))
        for entry, head, tile in np.ndindex(batch, heads, row_tiles):
            rows = numbers[tile * TILE : (tile + 1) * TILE][:, None]
            pairs = sees(numbers[entry], numbers[head], rows % p.q_len, keys % p.kv_len)
            pairs = pairs & (rows < p.q_len) & (keys < p.kv_len)
            of_tiles = pairs.reshape(TILE, key_tiles, TILE).swapaxes(0, 1).reshape(key_tiles, TILE * TILE)
            any_seen[entry, head, tile] = of_tiles.any(axis=1).cpu().numpy()
            all_seen[entry, head, tile] = of_tiles.all(axis=1).cpu().numpy()
        return any_seen, all_seen

    def _listed(self, chosen: np.ndarray) -> tuple[Any, Any]:
        """How many tiles of keys are chosen for each tile of rows, and their numbers, before those of all others."""
        numbers = np.argsort(~chosen, axis=-1, kind="stable")
        count, order = (
            self._torch.as_tensor(each.astype(np.int32), device=self._inputs[0]["Q"].device)
            for each in (chosen.sum(axis=-1), numbers)
        )
        return count, order


def score_rule(torch: Any, problem: Problem, slopes: Any) -> Callable[[Any], Callable[..., Any] | None]:
    """Return a function from the bias to a `score_mod` of `flex_attention`, which changes scores before the mask.

    The `score_mod` is None if scores do not change. `slopes` are those of the heads and the bias has three axes, both
    on the GPU; None if the problem has none. Slopes follow from the problem, but each set of inputs has its own bias.
    """
    softcap, diagonal = problem.softcap, problem.diagonal
    # An index has to be a tensor, so axes over which the bias does not vary are left out.
    varies = tuple(axis in (problem.bias or ()) for axis in AXES)
    whole = tuple(slice(None) if each else 0 for each in varies)

    def rule(bias: Any) -> Callable[..., Any] | None:
        if softcap is None and slopes is None and bias is None:
            return None
        values = None if bias is None else bias[whole]

        def becomes(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            if slopes is not None:
                score = score - slopes[head] * torch.abs(row + diagonal - key)
            if values is not None:
                place = [index for index, each in zip((head, row, key), varies) if each]
                score = score + values[tuple(place)]
            return score

        return becomes

    return rule


def share_beside_sinks(torch: Any, lse: Any, sinks: Any) -> Any:
    """What is left to the keys of the softmax: exp(lse) of exp(lse) + exp(sink); nothing where a row sees no key.

    `lse` is (batch, heads, rows), without the sinks, one for each head.
    """
    return torch.where(torch.isneginf(lse), 0.0, torch.sigmoid(lse - sinks[:, None]))
