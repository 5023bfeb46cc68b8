"""Computes the gradients in float64 from the stored inputs. Shares no masking or tiling with any kernel.

lse and O are used as they are stored, rounded, so that the answer does not depend on errors of the forward pass (Dao et
al. 2022, arXiv 2205.14135, appendix B.2):

    P_ij = exp(tau q_i.k_j - lse_i)         if row i sees key j, else 0
    delta_i = dO_i.O_i                      dP_ij = D_ij dO_i.v_j
    dS_ij = P_ij (dP_ij - delta_i)
    dQ_i = tau sum_j dS_ij k_j              dK_j = tau sum_i dS_ij q_i              dV_j = sum_i P_ij D_ij dO_i

where sums over i are over the rows of all query heads that share the key. D_ij is 1 without dropout; with it, 0 for
dropped weights and 1 / (1 - P) for others, and O and delta include it. A row that sees no key has gradients of exactly
0 and does not contribute to others. If a nonfinite number affects a row, its dQ is arbitrary, and so are dK and dV of
the keys that it sees; it must not affect other gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from harness.model.operation import WHOLE, Part
from harness.model.reference import Reference
from harness.operations.attention.dropout import kept_keys
from harness.operations.attention_backward.problem import BackwardProblem

Float64Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Arrays = Mapping[str, np.ndarray]
Index = tuple[slice, ...]

BLOCK_BYTES = 4 * 2**20
"""Maximum size of a float64 matrix of scores, chosen so that several fit a core's cache."""


@dataclass(frozen=True)
class Block:
    """Some rows of query heads with some of the keys that they share, in float64.

    Axes: b batches, h key/value heads, g query heads of each, r rows, c keys, d elements. Nonfinite numbers are
    replaced by 0; `nonfinite` marks the rows that they affect.
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
    """(b, h, 1, c, d)."""
    o: Float64Array
    """(b, h, g, r, d)."""
    do: Float64Array
    """(b, h, g, r, d)."""
    lse: Float64Array
    """(b, h, g, r, 1); 0 if the row sees no key."""
    visible: Bools
    """(r, c): which keys each row sees; none in rows whose lse is -inf."""
    nonfinite: Bools
    """(b, h, g, r, 1): whether a nonfinite number affects the row."""
    kept: Float64Array | float = 1.0
    """(b, h, g, r, c): D, with dropout."""

    @cached_property
    def s(self) -> Float64Array:
        """(b, h, g, r, c): scores tau q.k, including those of keys that the row does not see."""
        scores: Float64Array = self.problem.tau * (self.q @ self.k.mT)
        return scores

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
        """(b, h, g, r, c): dS."""
        return self.p * (self.dp - self.delta)


def blocks_of(problem: BackwardProblem, inputs: Arrays, part: Part = WHOLE) -> Iterator[Block]:
    """Yield blocks that cover, once, every requested row with all keys and every requested key with all rows."""
    if part is WHOLE:
        everywhere = (_all(problem.batch), _all(problem.kv_heads_count))
        yield from _blocks(
            problem, inputs, everywhere, slice(None), _all(problem.q_len), _all(problem.kv_len), True, True
        )
        return
    batches, heads, rows = part.of("dQ")
    kv_heads = slice(heads.start // problem.group, (heads.stop - 1) // problem.group + 1)
    members = slice(heads.start - kv_heads.start * problem.group, heads.stop - kv_heads.start * problem.group)
    yield from _blocks(problem, inputs, (batches, kv_heads), members, rows, _all(problem.kv_len), True, False)
    batches, kv_heads, keys = part.of("dK")
    yield from _blocks(problem, inputs, (batches, kv_heads), slice(None), _all(problem.q_len), keys, False, True)


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
) -> Iterator[Block]:
    """Yield blocks of these batches, key/value heads, rows and keys, with the query heads `members` of each group."""
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
                )


def _runs(whole: slice, length: int) -> Iterator[slice]:
    for start in range(whole.start, whole.stop, length):
        yield slice(start, min(start + length, whole.stop))


def _from(run: slice, whole: slice) -> slice:
    return slice(run.start - whole.start, run.stop - whole.start)


def _block(
    problem: BackwardProblem, inputs: Arrays, where: tuple[slice, ...], rows_at: Index | None, keys_at: Index | None
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
    finite = (np.isfinite(q) & np.isfinite(o) & np.isfinite(do)).all(axis=-1, keepdims=True) & np.isfinite(lse)
    nonfinite: Bools = np.logical_not(finite)
    finite_keys = (np.isfinite(inputs["K"][b, h]) & np.isfinite(inputs["V"][b, h])).all(axis=-1, keepdims=True)
    poisoned: Bools = np.logical_not(finite_keys)
    if poisoned.any():
        seen_poisoned = visible.astype(np.float32) @ poisoned.astype(np.float32) > 0
        nonfinite = nonfinite | seen_poisoned[:, :, None]
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
        visible=visible[:, keys],
        nonfinite=nonfinite & visible.any(axis=1, keepdims=True),
        kept=_kept(problem, b, h, members, r)[..., keys] if problem.dropout else 1.0,
    )


def _kept(problem: BackwardProblem, b: slice, h: slice, members: slice, rows: slice) -> Float64Array:
    """Return D of all keys, (b, h, g, r, kv_len)."""
    kept = kept_keys(problem, b, slice(h.start * problem.group, h.stop * problem.group), rows)
    by_group = kept.reshape(kept.shape[0], -1, problem.group, *kept.shape[2:])[:, :, members]
    return np.where(by_group, problem.kept_factor, 0.0)


@dataclass(frozen=True)
class Sums:
    """dQ, dK and dV of the requested part, or other sums of the same shapes."""

    dQ: Float64Array
    dK: Float64Array
    dV: Float64Array

    @classmethod
    def zeros(cls, problem: BackwardProblem, part: Part) -> Sums:
        """Return zeros in the shapes of the part: (b, h, g, r, d) for dQ, (b, h, c, d) for dK and dV."""
        if part is WHOLE:
            rows = (problem.batch, problem.kv_heads_count, problem.group, problem.q_len, problem.head_dim)
            keys = problem.kv_shape
        else:
            batches, heads, r = (s.stop - s.start for s in part.of("dQ"))
            rows = (batches, 1, heads, r, problem.head_dim)
            b, h, c = (s.stop - s.start for s in part.of("dK"))
            keys = (b, h, c, problem.head_dim)
        return cls(np.zeros(rows), np.zeros(keys), np.zeros(keys))

    def add(self, block: Block, dQ: Float64Array | None, dK: Float64Array | None, dV: Float64Array | None) -> None:
        """Add a block's contributions, (b, h, g, r, d) and twice (b, h, c, d); None if not requested."""
        if dQ is not None:
            self.dQ[block.rows] += dQ
        for total, summand in ((self.dK, dK), (self.dV, dV)):
            if summand is not None:
                total[block.keys] += summand

    def as_outputs(self) -> dict[str, Float64Array]:
        """Return the sums by name, in the shapes of the outputs."""
        b, h, g, r, d = self.dQ.shape
        return {"dQ": self.dQ.reshape(b, h * g, r, d), "dK": self.dK, "dV": self.dV}


def gradients(problem: BackwardProblem, inputs: Arrays, part: Part = WHOLE) -> Reference[Block]:
    """Compute the gradients of the problem or of a part."""
    sums = Sums.zeros(problem, part)
    blocks: Iterable[Block] = blocks_of(problem, inputs, part)
    scores = problem.batch * problem.heads * problem.q_len * problem.kv_len
    kept = tuple(blocks) if part is WHOLE and 8 * scores <= BLOCK_BYTES else None
    for block in blocks if kept is None else kept:
        ds, p = (np.where(block.nonfinite, 0.0, x) for x in (block.ds, block.dropped_p))
        sums.add(block, *products_of(block, ds, p))
    return Reference(sums.as_outputs(), kept)


def products_of(
    block: Block, dS: Float64Array, P: Float64Array, of: Callable[[Float64Array], Float64Array] = np.asarray
) -> tuple[Float64Array | None, Float64Array | None, Float64Array | None]:
    """Return tau dS K, tau dS^T Q and P^T dO, the block's summands of dQ, dK and dV; None if these are not requested.

    `of`, such as the magnitude or the square, is applied to tau, K, Q and dO.
    """
    tau = of(np.float64(block.problem.tau))
    return (
        None if block.rows is None else tau * (dS @ of(block.k)),
        None if block.keys is None else tau * over_group(dS, of(block.q)),
        None if block.keys is None else over_group(P, of(block.do)),
    )


def over_group(weights: Float64Array, values: Float64Array) -> Float64Array:
    """Return weights^T @ values, summed over a group: (b, h, g, r, c), (b, h, g, r, d) -> (b, h, c, d)."""
    b, h, g, r, c = weights.shape
    summed: Float64Array = weights.reshape(b, h, g * r, c).mT @ values.reshape(b, h, g * r, -1)
    return summed
