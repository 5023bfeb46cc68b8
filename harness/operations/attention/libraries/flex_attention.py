"""PyTorch's `flex_attention`, compiled for the problem: the rival where no other row has its mask or its scores.

Its kernel is written for the mask and the scores by `torch.compile` (Dong et al. 2024, arXiv 2412.05496), which takes
seconds; a block mask, made once, tells it which tiles of keys it may leave out. Both are made outside of the clock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from harness.model.contenders.torch_contender import Tensors
from harness.operations.attention.libraries.scaled_dot_product import OWN_MASKS
from harness.operations.attention.libraries.torch_attention import TorchAttention
from harness.operations.attention.masks import BLOCKS, Rule, rule_of_arrays
from harness.operations.attention.problem import V_HEAD_DIM, Problem
from harness.operations.attention.score_term import ScoreTerm
from harness.operations.attention.score_terms import SINKS, TERMS
from harness.support.errors import UnsupportedProblem
from harness.support.override import override

NAME = "torch-flex"
FEATURES = tuple(t.field for t in TERMS if type(t).score_mod is not ScoreTerm.score_mod or not t.changes_scores)
TILE = 128
"""Rows, and keys, of a tile that its kernel may leave out: as many as PyTorch takes unless told otherwise."""


class FlexAttention(TorchAttention):
    """Any mask and score terms in the kernel; sinks by its log-sum-exp, in a second pass over O."""

    def __init__(self, stage: Any) -> None:
        problem: Problem = stage.problem
        if problem.mask.text in OWN_MASKS and not set(problem.compiled_features) - {V_HEAD_DIM}:
            raise UnsupportedProblem(NAME, f"PyTorch's other rows have mask {problem.mask}")
        super().__init__(NAME, stage, takes=FEATURES)

    @override
    def attend(self, given: Tensors) -> Any:
        return self._compiled(given["Q"], given["K"], given["V"], given.get(SINKS), *self._drawn(given))

    def _drawn(self, given: Tensors) -> list[Any]:
        """The inputs of score terms that each set of inputs has of its own."""
        return [given[name] for name in self._drawn_names]

    @functools.cached_property
    def _drawn_names(self) -> list[str]:
        return [name for term in self._problem.score_terms if not term.inputs_follow for name in term.input_names]

    def attend_with_lse(self, given: Tensors) -> tuple[Any, Any]:
        """O and the natural logarithm of sum exp(scores), (batch, heads, q_len) in float32, without sinks."""
        O, lse = self._compiled_with_lse(given["Q"], given["K"], given["V"])
        return O, lse

    @functools.cached_property
    def _compiled(self) -> Any:
        torch, with_lse = self._torch, self._with_lse
        from torch.nn.attention.flex_attention import flex_attention

        options, rule = self._options, self._score_rule

        def attend(Q: Any, K: Any, V: Any, sinks: Any, *drawn: Any) -> Any:
            if sinks is None:
                return flex_attention(Q, K, V, score_mod=rule(*drawn), **options)
            O, lse = with_lse(Q, K, V, *drawn)
            return (O * share_beside_sinks(torch, lse, sinks)[..., None]).to(O.dtype)

        return self._compile(attend)

    @functools.cached_property
    def _compiled_with_lse(self) -> Any:
        return self._compile(self._with_lse)

    @functools.cached_property
    def _with_lse(self) -> Callable[..., tuple[Any, Any]]:
        from torch.nn.attention.flex_attention import AuxRequest, flex_attention

        options, rule = self._options, self._score_rule

        def attend(Q: Any, K: Any, V: Any, *drawn: Any) -> tuple[Any, Any]:
            O, aux = flex_attention(Q, K, V, score_mod=rule(*drawn), return_aux=AuxRequest(lse=True), **options)
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
    def _score_rule(self) -> Callable[..., Callable[..., Any] | None]:
        return score_rule(self._torch, self._problem, self._inputs[0], self._drawn_names)

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


def score_rule(
    torch: Any, problem: Problem, inputs: Tensors, drawn_names: Sequence[str]
) -> Callable[..., Callable[..., Any] | None]:
    """Return a function from the inputs `drawn_names` to a `score_mod` of `flex_attention`.

    A `score_mod` changes scores before the mask; it is None if scores do not change. Other `inputs`, on the GPU, are
    those of every call.
    """
    terms = problem.score_terms

    def rule(*drawn: Any) -> Callable[..., Any] | None:
        given = {**inputs, **dict(zip(drawn_names, drawn))}
        changes = [term.score_mod(torch, problem, given) for term in terms]

        def becomes(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
            for change in changes:
                score = change(score, head, row, key)
            return score

        return becomes if changes else None

    return rule


def share_beside_sinks(torch: Any, lse: Any, sinks: Any) -> Any:
    """What is left to the keys of the softmax: exp(lse) of exp(lse) + exp(sink); nothing where a row sees no key.

    `lse` is (batch, heads, rows), without the sinks, one for each head.
    """
    return torch.where(torch.isneginf(lse), 0.0, torch.sigmoid(lse - sinks[:, None]))
