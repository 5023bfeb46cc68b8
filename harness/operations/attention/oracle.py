"""Computes the answer: attention in float64 from the stored inputs. Shares no masking or tiling with any kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Float64Array, Mask
from harness.model.operation import WHOLE, Part
from harness.model.reference import Reference
from harness.operations.attention.dropout import kept_keys
from harness.operations.attention.masks import NO_MASK
from harness.operations.attention.problem import Problem
from harness.operations.attention.products import Products
from harness.operations.attention.scores import ScoreRule
from harness.support.cores import on_all_cores

BLOCK_BYTES = 4 * 2**20
"""Maximum size of a float64 matrix of scores, chosen so that several fit a core's cache. Problems are divided into
blocks of that size."""
FEWEST_SCORES_TO_SPREAD = 2**24
"""Minimum number of scores for which blocks are distributed over cores: a tenth of a second on one."""


@dataclass(frozen=True)
class Block:
    """Some query rows of one or more heads with all their keys, in float64. Axes b and h are batches and query heads.

    A sink is represented by an additional last key: a row of zeros in `k` and `v`, which all rows see.
    """

    where: tuple[slice, slice, slice]
    """Batches, query heads and rows: an index into O and lse of the requested problem or part."""
    whole_heads: tuple[slice, slice]
    """Batches and query heads: an index into the problem's Q that selects all rows of the block's heads."""
    q: Float64Array
    """(b, h, rows, head_dim)."""
    k: Float64Array
    """(b, h, kv_len, head_dim); each key/value head is repeated for its query heads."""
    v: Float64Array
    """(b, h, kv_len, v_width), repeated as `k`."""
    visible: Mask
    """(b or 1, h or 1, rows, kv_len): which keys each row sees; 1 if they are the same for all. A key is not visible if
    the mask or a bias of -inf hides it."""
    scores: Float64Array
    """(b, h, rows, kv_len): `rule` applied to tau q.k, and -inf for keys that are not visible."""
    rule: ScoreRule
    tau: float
    """Factor on the products q.k."""
    kept: Mask | None = None
    """(b, h, rows, kv_len): which weights are not dropped. None without dropout."""
    kept_factor: float = 1.0
    """Factor on the weights that are not dropped."""
    hidden: Mask | None = None
    """(b, h, rows, kv_len): which keys a bias of -inf hides; None if there are none."""

    @cached_property
    def keys_seen(self) -> npt.NDArray[np.int64]:
        """(b or 1, h or 1, rows): number of keys that each row sees, including a sink."""
        seen: npt.NDArray[np.int64] = np.count_nonzero(self.visible, axis=-1)
        return seen

    @cached_property
    def without_keys(self) -> Mask:
        """(b or 1, h or 1, rows): which rows see no key, or only a sink."""
        alone: Mask = self.keys_seen == (self.rule.sinks is not None)
        return alone

    @cached_property
    def blind(self) -> Mask:
        """(b or 1, h or 1, rows): which rows see neither a key nor a sink above -inf."""
        sinks = self.rule.sinks
        none = np.ones((1, 1), np.bool_) if sinks is None else np.isneginf(sinks)[:, None]
        return self.without_keys & none

    @cached_property
    def products(self) -> Products:
        """The products tau q.k, with what bounds on their errors need of q and k."""
        return Products.of(self.q, self.k, self.tau, self.finite_scores if self.rule.keeps_products else None)

    @cached_property
    def finite_scores(self) -> Float64Array:
        """(b, h, rows, kv_len): the scores, with those that are not finite replaced by the row's largest."""
        is_finite = np.isfinite(self.scores)
        return self.scores if is_finite.all() else np.where(is_finite, self.scores, self.largest_scores()[..., None])

    @cached_property
    def row_maxima(self) -> Float64Array:
        """(b, h, rows): the maximum of all scores; NaN if any is NaN."""
        # np.max and not np.fmax: the latter swallows NaN.
        largest: Float64Array = np.max(self.scores, axis=-1)
        return largest

    @property
    def weighted(self) -> Mask:
        """(b, h, rows, kv_len): which keys have a nonzero weight in exact arithmetic."""
        weighted: Mask = self.scores > -np.inf
        return weighted if self.kept is None else weighted & self.kept

    def after_dropout(self, weights: Float64Array) -> Float64Array:
        """Return the factors on values, given softmax weights; both (b, h, rows, kv_len)."""
        return weights if self.kept is None else weights * (self.kept_factor * self.kept)

    def largest_scores(self) -> Float64Array:
        """Return the maximum score of each row, (b, h, rows): NaN if a visible score is NaN, 0 for a blind row."""
        return np.where(self.blind, 0.0, self.row_maxima)


def blocks_of(problem: Problem, inputs: Mapping[str, np.ndarray], part: Part = WHOLE) -> Iterator[Block]:
    """Yield the query rows of the problem, or of a part of it, in blocks, so that memory stays bounded.

    `inputs` has Q of shape (batch, heads, q_len, head_dim), K of (batch, kv_heads, kv_len, head_dim) and V of (batch,
    kv_heads, kv_len, v_width).
    """
    extents = _part_slices(problem, part)
    for where in _slices(problem, extents):
        yield _block(problem, inputs, extents, where)


def over_blocks(
    problem: Problem,
    inputs: Mapping[str, np.ndarray],
    work: Callable[[Block], None],
    part: Part = WHOLE,
    kept: Iterable[Block] | None = None,
) -> None:
    """Call `work` with every block of `blocks_of`, or of `kept` if given. Blocks of large problems run in threads.

    So `work` must write only to the elements of its block, and must set its own `np.errstate`.
    """
    extents = _part_slices(problem, part)
    scores = problem.kv_len * math.prod(extent.stop - extent.start for extent in extents)
    if kept is None and scores >= FEWEST_SCORES_TO_SPREAD:
        on_all_cores(lambda where: work(_block(problem, inputs, extents, where)), list(_slices(problem, extents)))
    else:
        for block in blocks_of(problem, inputs, part) if kept is None else kept:
            work(block)


def _block(
    problem: Problem,
    inputs: Mapping[str, np.ndarray],
    extents: tuple[slice, slice, slice],
    where: tuple[slice, slice, slice],
) -> Block:
    batches, heads, rows = (slice(a.start + w.start, a.start + w.stop) for a, w in zip(extents, where))
    kv_heads = np.arange(heads.start, heads.stop) // problem.group
    q = inputs["Q"][batches, heads, rows].astype(np.float64)
    rule = ScoreRule.of(problem, inputs, heads, rows)
    k = rule.with_sink(inputs["K"][batches, kv_heads].astype(np.float64))
    v = rule.with_sink(inputs["V"][batches, kv_heads].astype(np.float64))
    with np.errstate(invalid="ignore", over="ignore"):
        scores = rule.scores(problem.tau * (q @ k.mT))
    visible = _visible(problem, batches, heads, rows, keys=k.shape[-2])
    if problem.mask != NO_MASK:
        scores = np.where(visible, scores, -np.inf)
    hidden = rule.hidden(scores)
    if hidden is not None:
        visible = visible & ~hidden
    kept = None
    if problem.dropout:
        kept = np.ones(scores.shape, np.bool_)  # includes a sink, whose values are zeros
        kept[..., : problem.kv_len] = kept_keys(problem, batches, heads, rows)
    return Block(
        where, (batches, heads), q, k, v, visible, scores, rule, problem.tau, kept, problem.kept_factor, hidden
    )


def _visible(problem: Problem, batches: slice, heads: slice, rows: slice, keys: int) -> Mask:
    """Return which keys the mask shows to each row, as `Block.visible`. All rows see sinks, the last of `keys`."""
    mask = problem.mask
    sequences = range(batches.start, batches.stop if mask.sequences > 1 else batches.start + 1)
    own_heads = range(heads.start, heads.stop if mask.tells_heads_apart else heads.start + 1)
    visible = np.ones((len(sequences), len(own_heads), rows.stop - rows.start, keys), dtype=np.bool_)
    if mask == NO_MASK:
        return visible
    row_index, key_index = np.arange(rows.start, rows.stop)[:, None], np.arange(problem.kv_len)[None, :]
    for b, sequence in enumerate(sequences):
        for h, head in enumerate(own_heads):
            of_head = mask.of_sequence(sequence).of_head(head)
            # A mask may return an axis of length 1 if its rule does not depend on rows or keys.
            visible[b, h, :, : problem.kv_len] = of_head.visible(row_index, key_index, problem.q_len, problem.kv_len)
    return visible


def _part_slices(problem: Problem, part: Part) -> tuple[slice, slice, slice]:
    """Return the batches, query heads and rows of a part as slices with explicit bounds."""
    lengths = (problem.batch, problem.heads, problem.q_len)
    chosen = (*part.where, *(slice(None),) * (3 - len(part.where)))
    batches, heads, rows = (slice(*each.indices(length)[:2]) for each, length in zip(chosen, lengths))
    return batches, heads, rows


def _slices(problem: Problem, extents: tuple[slice, slice, slice]) -> Iterator[tuple[slice, slice, slice]]:
    """Yield blocks as indices into the part: several batches each if they fit, else several heads, else some rows."""
    all_batches, all_heads, all_rows = (s.stop - s.start for s in extents)
    rows = max(1, BLOCK_BYTES // (8 * problem.kv_len))
    heads = max(1, rows // all_rows)
    batches = max(1, heads // all_heads)
    for batch in range(0, all_batches, batches):
        for head in range(0, all_heads, heads):
            for row in range(0, all_rows, rows):
                yield (
                    slice(batch, min(batch + batches, all_batches)),
                    slice(head, min(head + heads, all_heads)),
                    slice(row, min(row + rows, all_rows)),
                )


def shapes_of(problem: Problem, part: Part) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of O and lse of a part of the problem."""
    rows = tuple(s.stop - s.start for s in _part_slices(problem, part))
    return (*rows, problem.v_width), rows


def attention(problem: Problem, inputs: Mapping[str, np.ndarray], part: Part = WHOLE) -> Reference[Block]:
    """Compute O = softmax(tau Q K^T + mask) V and its log-sum-exp in float64 (Vaswani et al. 2017, equation 1).

    `ScoreRule` changes scores before the mask, and `kept_keys` selects the weights that are not dropped. Rows of which
    the mask or a bias of -inf hides all keys have O = 0, and lse = -inf or the sink. A NaN in a key reaches exactly the
    rows that see the key, even if its weight is dropped, because 0 x NaN is NaN. O has shape (batch, heads, q_len,
    v_width), lse (batch, heads, q_len).
    """
    O, lse = (np.empty(shape) for shape in shapes_of(problem, part))
    kept = tuple(blocks_of(problem, inputs, part)) if 8 * lse.size * problem.kv_len <= BLOCK_BYTES else None

    def answer_block(block: Block) -> None:
        answer = answer_of(block)
        O[block.where], lse[block.where] = answer["O"], answer["lse"]

    over_blocks(problem, inputs, answer_block, part, kept)
    return Reference({"O": O, "lse": lse}, kept)


def answer_of(block: Block) -> dict[str, Float64Array]:
    """Compute O, (b, h, rows, v_width), and lse, (b, h, rows), of one block."""
    m = block.largest_scores()
    with np.errstate(invalid="ignore"):
        weights = np.exp(block.scores - m[..., None])
        denominator = np.sum(weights, axis=-1)
        sums = _weighted_sums(block.after_dropout(weights), block)
    denominator = np.where(block.blind, 1.0, denominator)
    O = np.where(block.without_keys[..., None], 0.0, sums / denominator[..., None])
    return {"O": O, "lse": np.where(block.blind, -np.inf, m + np.log(denominator))}


def _weighted_sums(weights: Float64Array, block: Block) -> Float64Array:
    finite = np.isfinite(block.v)
    if finite.all():
        sums: Float64Array = weights @ block.v
        return sums
    # 0 x NaN is NaN, but a nonfinite value must not reach rows that do not see it. A row that does sees it with a
    # positive weight, unless the score is -inf or the weight is dropped.
    sums = weights @ np.where(finite, block.v, 0.0)
    weighted = block.weighted.astype(np.float64)
    seen = np.broadcast_to(block.visible, block.scores.shape).astype(np.float64)
    plus, minus = (weighted @ (block.v == infinity) > 0 for infinity in (np.inf, -np.inf))
    no_number = seen @ np.isnan(block.v) + (seen - weighted) @ np.isinf(block.v) > 0
    sums += np.where(plus, np.inf, 0.0) - np.where(minus, np.inf, 0.0)
    return np.where(no_number, np.nan, sums)
