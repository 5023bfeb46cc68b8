"""Computes the gradients in float64 from the stored inputs. Shares no masking or tiling with any kernel.

lse and O are used as they are stored, rounded, so that the answer does not depend on errors of the forward pass (Dao et
al. 2022, arXiv 2205.14135, appendix B.2):

    P_ij = exp(s_ij - lse_i)                if row i sees key j, else 0             s_ij = f(z_ij), z_ij = tau q_i.k_j
    delta_i = dO_i.O_i                      dP_ij = D_ij dO_i.v_j
    dS_ij = P_ij (dP_ij - delta_i)          dZ_ij = f'(z_ij) dS_ij
    dQ_i = tau sum_j dZ_ij k_j              dK_j = tau sum_i dZ_ij q_i              dV_j = sum_i P_ij D_ij dO_i

where f are the score terms, of which only a cap has a derivative other than 1. Sums over i are over the rows of all
query heads that share the key. dbias is dS, summed over the batch and the axes that the bias does not vary over. A sink
is a key without a value, so its dP is 0; see `sinks`. D_ij is 1 without dropout; with it, 0 for dropped weights and
1 / (1 - P) for others, and O and delta include it. A row that sees no key has gradients of exactly 0 and does not
contribute to others. If a nonfinite number affects a row, its dQ is arbitrary, and so are dK, dV and dbias of the keys
that it sees; it must not affect other gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Arrays, Float64Array
from harness.model.operation import WHOLE, Part
from harness.model.reference import Reference
from harness.operations.attention.bias import AXES, BIAS
from harness.operations.attention.dropout import kept_keys
from harness.operations.attention.score_term import Effect
from harness.operations.attention_backward.problem import GRADIENT_OF, BackwardProblem
from harness.operations.attention_backward.sinks import DSINKS, sink_gradients

Bools = npt.NDArray[np.bool_]
Index = tuple[slice, ...]

BLOCK_BYTES = 4 * 2**20
"""Maximum size of a float64 matrix of scores, chosen so that several fit a core's cache."""
DBIAS = GRADIENT_OF + BIAS


@dataclass(frozen=True)
class Block:
    """Some rows of query heads with some of the keys that they share, in float64.

    Axes: b batches, h key/value heads, g query heads of each, r rows, c keys, d elements of Q and K, e of V and O.
    Nonfinite numbers are replaced by 0; `nonfinite` marks the rows that they affect.
    """

    problem: BackwardProblem
    rows: Index | None
    """(b, h, g, r): an index into the requested part of dQ; None if dQ is not requested."""
    keys: Index | None
    """(b, h, c): an index into the requested parts of dK and dV, which are summed; None if they are not requested."""
    q: Float64Array
    """(b, h, g, r, d)."""
    k: Float64Array
    """(b, h, 1, c, d)."""
    v: Float64Array
    """(b, h, 1, c, e)."""
    o: Float64Array
    """(b, h, g, r, e)."""
    do: Float64Array
    """(b, h, g, r, e)."""
    lse: Float64Array
    """(b, h, g, r, 1); 0 if the row sees no key."""
    visible: Bools
    """(r, c), or (b, h, g, r, c) if a bias hides keys: which keys each row sees; none in rows whose lse is -inf."""
    nonfinite: Bools
    """(b, h, g, r, 1): whether a nonfinite number affects the row."""
    first_key: int
    kept: Float64Array | float = 1.0
    """(b, h, g, r, c): D, with dropout."""
    effects: tuple[Effect, ...] = ()
    """Of the problem's score terms, in their order."""
    bias: Index | None = None
    """(heads, r, c): an index into the requested part of dbias; None if dbias is not requested."""

    @cached_property
    def stages(self) -> tuple[Float64Array, ...]:
        """(b, h, g, r, c) each: tau q.k, and the scores after each term; 0 for keys that the row does not see."""
        scores = [self.problem.tau * (self.q @ self.k.mT)]
        if not self.effects:
            return (scores[0],)
        shape, (b, h, g, r, c) = scores[0].shape, scores[0].shape
        for effect in self.effects:
            with np.errstate(invalid="ignore"):
                scores.append(effect.apply(scores[-1].reshape(b, h * g, r, c)).reshape(shape))
        return tuple(np.where(self.visible & np.isfinite(each), each, 0.0) for each in scores)

    @property
    def s(self) -> Float64Array:
        """(b, h, g, r, c): scores. Without terms, they include those of keys that the row does not see."""
        return self.stages[-1]

    @cached_property
    def derivative(self) -> Float64Array | None:
        """(b, h, g, r, c): the derivative f' of scores with respect to tau q.k; None if it is 1."""
        found: Float64Array | None = None
        for effect, before in zip(self.effects, self.stages):
            b, h, g, r, c = before.shape
            own = effect.derivative(before.reshape(b, h * g, r, c))
            if own is not None:
                found = own.reshape(before.shape) * (1.0 if found is None else found)
        return found

    @cached_property
    def p(self) -> Float64Array:
        """(b, h, g, r, c): weights P, 0 for keys that the row does not see."""
        with np.errstate(over="ignore"):
            return np.where(self.visible, np.exp(np.where(self.visible, self.s - self.lse, 0.0)), 0.0)

    @cached_property
    def dropped_p(self) -> Float64Array:
        """(b, h, g, r, c): P o D, the factors on values."""
        return self.p * self.kept

    @cached_property
    def products(self) -> Float64Array:
        """(b, h, g, r, c): dO V^T, without D."""
        products: Float64Array = self.do @ self.v.mT
        return products

    @cached_property
    def dp(self) -> Float64Array:
        """(b, h, g, r, c): dP."""
        return self.products * self.kept

    @cached_property
    def delta(self) -> Float64Array:
        """(b, h, g, r, 1): delta = dO.O."""
        sums: Float64Array = (self.do * self.o).sum(axis=-1, keepdims=True)
        return sums

    @cached_property
    def ds(self) -> Float64Array:
        """(b, h, g, r, c): dS, the gradient of the scores."""
        return self.p * (self.dp - self.delta)

    @cached_property
    def dz(self) -> Float64Array:
        """(b, h, g, r, c): dZ, the gradient of tau q.k."""
        return self.before_terms(self.ds)

    def before_terms(self, weights: Float64Array) -> Float64Array:
        """Return gradients of tau q.k, given those of scores."""
        return weights if self.derivative is None else self.derivative * weights

    def over_batch(self, x: Float64Array) -> Float64Array:
        """Return the sum of (b, h, g, r, c) over the batch and the axes that the bias does not vary over.

        Its shape is that of an element of the bias: (heads or 1, r or 1, c or 1).
        """
        b, h, g, r, c = x.shape
        own = self.problem.bias or ()
        fixed = tuple(1 + axis for axis, name in enumerate(AXES) if name not in own)
        summed: Float64Array = x.reshape(b, h * g, r, c).sum(axis=(0, *fixed), keepdims=True)[0]
        return summed


def blocks_of(problem: BackwardProblem, inputs: Arrays, part: Part = WHOLE) -> Iterator[Block]:
    """Yield blocks that cover, once, every requested row with all keys and every requested key with all rows."""
    if part is WHOLE:
        everywhere = (_all(problem.batch), _all(problem.kv_heads_count))
        of_bias = tuple(map(_all, problem.bias_shape))
        yield from _blocks(
            problem, inputs, everywhere, slice(None), _all(problem.q_len), _all(problem.kv_len), True, True, of_bias
        )
        return
    batches, heads, rows = part.of("dQ")
    kv_heads = slice(heads.start // problem.group, (heads.stop - 1) // problem.group + 1)
    members = slice(heads.start - kv_heads.start * problem.group, heads.stop - kv_heads.start * problem.group)
    yield from _blocks(problem, inputs, (batches, kv_heads), members, rows, _all(problem.kv_len), True, False)
    batches, kv_heads, keys = part.of("dK")
    yield from _blocks(problem, inputs, (batches, kv_heads), slice(None), _all(problem.q_len), keys, False, True)
    if problem.bias:
        yield from _blocks_of_bias(problem, inputs, part.of(DBIAS))


def _blocks_of_bias(problem: BackwardProblem, inputs: Arrays, part: tuple[slice, ...]) -> Iterator[Block]:
    """Yield blocks that cover, once, all that is summed in this part of dbias."""
    varies = [axis in (problem.bias or ()) for axis in AXES]
    extents = problem.q_len, problem.kv_len
    rows, keys = (own if each else _all(extent) for own, each, extent in zip(part[1:], varies[1:], extents))
    everywhere = (_all(problem.batch), _all(problem.kv_heads_count))
    if not varies[0]:
        yield from _blocks(problem, inputs, everywhere, slice(None), rows, keys, False, False, part)
        return
    for head in range(part[0].start, part[0].stop):
        kv_head, member = divmod(head, problem.group)
        own = everywhere[0], slice(kv_head, kv_head + 1)
        yield from _blocks(problem, inputs, own, slice(member, member + 1), rows, keys, False, False, part)


def _all(extent: int) -> slice:
    return slice(0, extent)


def _blocks(
    problem: BackwardProblem,
    inputs: Arrays,
    heads: tuple[slice, slice],
    members: slice,
    rows: slice,
    keys: slice,
    needs_rows: bool,
    needs_keys: bool,
    of_bias: Index = (),
) -> Iterator[Block]:
    """Yield blocks of these batches, key/value heads, rows and keys, with the query heads `members` of each group.

    `of_bias`: the requested part of dbias, if it is requested.
    """
    batches, kv_heads = heads
    group = len(range(*members.indices(problem.group)))
    most_rows = max(1, BLOCK_BYTES // (8 * (keys.stop - keys.start)))
    few_rows = max(1, min(rows.stop - rows.start, most_rows // group))
    few_heads = max(1, most_rows // (group * (rows.stop - rows.start)))
    # One sequence at a time if the mask differs between sequences.
    few_batches = max(1, few_heads // (kv_heads.stop - kv_heads.start)) if problem.mask.sequences == 1 else 1
    for b in _runs(batches, few_batches):
        for h in _runs(kv_heads, few_heads):
            for r in _runs(rows, few_rows):
                at = (_from(b, batches), _from(h, kv_heads))
                yield _block(
                    problem,
                    inputs,
                    (b, h, members, r, keys),
                    (*at, slice(None), _from(r, rows)) if needs_rows else None,
                    at if needs_keys else None,
                    of_bias,
                )


def _runs(whole: slice, length: int) -> Iterator[slice]:
    for start in range(whole.start, whole.stop, length):
        yield slice(start, min(start + length, whole.stop))


def _from(run: slice, whole: slice) -> slice:
    return slice(run.start - whole.start, run.stop - whole.start)


def _block(
    problem: BackwardProblem,
    inputs: Arrays,
    where: tuple[slice, ...],
    rows_at: Index | None,
    keys_at: Index | None,
    of_bias: Index,
) -> Block:
    b, h, members, r, keys = where
    by_group = (problem.batch, problem.kv_heads_count, problem.group)

    def of_rows(name: str) -> Float64Array:
        array = np.asarray(inputs[name])
        return array.reshape(*by_group, *array.shape[2:])[b, h, members, r].astype(np.float64)

    q, o, do, lse = of_rows("Q"), of_rows("O"), of_rows("dO"), of_rows("lse")[..., None]
    k, v = (inputs[name][b, h, keys][:, :, None].astype(np.float64) for name in "KV")
    rows, all_keys = np.arange(r.start, r.stop)[:, None], np.arange(problem.kv_len)[None, :]
    mask = problem.mask.of_sequence(b.start)  # the same for all sequences of the block
    visible = np.broadcast_to(mask.visible(rows, all_keys, problem.q_len, problem.kv_len), (len(rows), problem.kv_len))
    finite = _all_finite(q) & _all_finite(o) & _all_finite(do)
    finite &= np.isfinite(lse) | np.isneginf(lse)  # the latter if a row sees no key
    nonfinite: Bools = np.logical_not(finite)
    poisoned: Bools = np.logical_not(_all_finite(inputs["K"][b, h]) & _all_finite(inputs["V"][b, h]))
    if poisoned.any():
        seen_poisoned = visible.astype(np.float32) @ poisoned.astype(np.float32) > 0
        nonfinite = nonfinite | seen_poisoned[:, :, None]
    visible = visible[:, keys]
    heads = _query_heads(problem, h, members)
    effects = tuple(term.effect(problem, inputs, heads, r, keys) for term in problem.score_terms)
    for effect in effects:
        if effect.hides is not None:
            by_head = (h.stop - h.start, -1) if effect.hides.shape[0] > 1 else (1, 1)
            # If the score is NaN, it stays NaN, and the key is seen.
            visible = visible & ~(effect.hides.reshape(*by_head, *effect.hides.shape[1:]) & ~nonfinite)
    nonfinite = nonfinite | np.isneginf(lse)
    q, k, v, o, do, lse = (np.where(np.isfinite(x), x, 0.0) for x in (q, k, v, o, do, lse))
    return Block(
        problem=problem,
        rows=rows_at,
        keys=keys_at,
        q=q,
        k=k,
        v=v,
        o=o,
        do=do,
        lse=lse,
        visible=visible,
        nonfinite=nonfinite & visible.any(axis=-1, keepdims=True),
        first_key=keys.start,
        kept=_kept(problem, b, h, members, r)[..., keys] if problem.dropout else 1.0,
        effects=effects,
        bias=_index_of_bias(problem, (heads, r, keys), of_bias) if problem.bias and of_bias else None,
    )


def _all_finite(rows: np.ndarray) -> Bools:
    """Return whether all elements of each row are finite: (..., elements) -> (..., 1)."""
    finite: Bools = np.isfinite(rows).all(axis=-1, keepdims=True)
    return finite


def _query_heads(problem: BackwardProblem, kv_heads: slice, members: slice) -> slice:
    """Return the query heads `members` of these key/value heads, which are all members, or of one key/value head."""
    first, end, _ = members.indices(problem.group)
    return slice(kv_heads.start * problem.group + first, (kv_heads.stop - 1) * problem.group + end)


def _index_of_bias(problem: BackwardProblem, where: Index, part: Index) -> Index:
    """Return where in a part of dbias these query heads, rows and keys are added."""
    own = problem.bias or ()
    return tuple(_from(each, of) if axis in own else slice(0, 1) for each, of, axis in zip(where, part, AXES))


def _kept(problem: BackwardProblem, b: slice, h: slice, members: slice, rows: slice) -> Float64Array:
    """Return D of all keys, (b, h, g, r, kv_len)."""
    kept = kept_keys(problem, b, slice(h.start * problem.group, h.stop * problem.group), rows)
    by_group = kept.reshape(kept.shape[0], -1, problem.group, *kept.shape[2:])[:, :, members]
    return np.where(by_group, problem.kept_factor, 0.0)


class Summands(NamedTuple):
    """A block's contributions to each gradient; None if it is not requested."""

    dQ: Float64Array | None = None
    """(b, h, g, r, d)."""
    dK: Float64Array | None = None
    """(b, h, c, d)."""
    dV: Float64Array | None = None
    """(b, h, c, e)."""
    dbias: Float64Array | None = None
    """(heads or 1, r or 1, c or 1)."""


@dataclass(frozen=True)
class Sums:
    """Gradients of the requested part, or other sums of the same shapes."""

    dQ: Float64Array
    dK: Float64Array
    dV: Float64Array
    dbias: Float64Array | None
    """None without a bias."""

    @classmethod
    def zeros(cls, problem: BackwardProblem, part: Part) -> Sums:
        """Return zeros in the shapes of the part: (b, h, g, r, d) for dQ, (b, h, c, d) for dK, (b, h, c, e) for dV."""
        bias = problem.bias_shape
        if part is WHOLE:
            rows = (problem.batch, problem.kv_heads_count, problem.group, problem.q_len, problem.head_dim)
            keys = problem.kv_shape[:3]
        else:
            batches, heads, r = (s.stop - s.start for s in part.of("dQ"))
            rows = (batches, 1, heads, r, problem.head_dim)
            b, h, c = (s.stop - s.start for s in part.of("dK"))
            keys = (b, h, c)
            bias = tuple(s.stop - s.start for s in part.of(DBIAS)) if problem.bias else ()
        of_K, of_V = (np.zeros((*keys, width)) for width in (problem.head_dim, problem.v_width))
        return cls(np.zeros(rows), of_K, of_V, np.zeros(bias) if problem.bias else None)

    def add(self, block: Block, summands: Summands) -> None:
        """Add a block's contributions."""
        if summands.dQ is not None:
            self.dQ[block.rows] += summands.dQ
        for total, summand in ((self.dK, summands.dK), (self.dV, summands.dV)):
            if summand is not None:
                total[block.keys] += summand
        if summands.dbias is not None:
            assert self.dbias is not None
            self.dbias[block.bias] += summands.dbias

    def as_outputs(self) -> dict[str, Float64Array]:
        """Return the sums by name, in the shapes of the outputs."""
        b, h, g, r, d = self.dQ.shape
        outputs = {"dQ": self.dQ.reshape(b, h * g, r, d), "dK": self.dK, "dV": self.dV}
        return outputs if self.dbias is None else {**outputs, DBIAS: self.dbias}


def gradients(problem: BackwardProblem, inputs: Arrays, part: Part = WHOLE) -> Reference[Block]:
    """Compute the gradients of the problem or of a part."""
    sums = Sums.zeros(problem, part)
    blocks: Iterable[Block] = blocks_of(problem, inputs, part)
    scores = problem.batch * problem.heads * problem.q_len * problem.kv_len
    kept = tuple(blocks) if part is WHOLE and 8 * scores <= BLOCK_BYTES else None
    for block in blocks if kept is None else kept:
        dz, p, ds = (np.where(block.nonfinite, 0.0, x) for x in (block.dz, block.dropped_p, block.ds))
        sums.add(block, products_of(block, dz, p, ds))
    outputs = sums.as_outputs()
    if problem.sinks:
        outputs[DSINKS] = sink_gradients(problem, inputs, part)
    return Reference(outputs, kept)


def products_of(
    block: Block,
    dZ: Float64Array,
    P: Float64Array,
    dS: Float64Array,
    of: Callable[[Float64Array], Float64Array] = np.asarray,
) -> Summands:
    """Return tau dZ K, tau dZ^T Q, P^T dO and sums of dS, the block's summands of dQ, dK, dV and dbias.

    `of`, such as the magnitude or the square, is applied to tau, K, Q and dO.
    """
    tau = of(np.float64(block.problem.tau))
    return Summands(
        None if block.rows is None else tau * (dZ @ of(block.k)),
        None if block.keys is None else tau * over_group(dZ, of(block.q)),
        None if block.keys is None else over_group(P, of(block.do)),
        None if block.bias is None else block.over_batch(dS),
    )


def over_group(weights: Float64Array, values: Float64Array) -> Float64Array:
    """Return weights^T @ values, summed over a group: (b, h, g, r, c), (b, h, g, r, d) -> (b, h, c, d)."""
    b, h, g, r, c = weights.shape
    summed: Float64Array = weights.reshape(b, h, g * r, c).mT @ values.reshape(b, h, g * r, -1)
    return summed
