"""Determines the order in which an attention kernel adds up its sums, from its outputs for chosen inputs.

A row has three sums: S = sum q_c k_c over a row's elements, l = sum P_j over keys, and O = sum P_j V_j over keys. Only
O is read, so this works for any variant. One run contains many tests, one per column of V, per head and, if possible,
per row. The final tests check that all rows, columns and heads add in the same order.

Inputs are chosen such that only the tested sum rounds:

- O: key 0 has the score 0 and all others WEAK_SCORE. The others have the same tiny weight w, so l = 1 exactly in any
  order, and every rescaling and division is by exactly 1. Values are 1, M and -M, powers of two; that of key 0 is
  multiplied by w, which makes all terms alike.
- l: the scores are 0 for key i, SWALLOWED_SCORE for some others and ABSENT_SCORE, whose weight is 0, for the rest.
  Only V_i is not 0, so O = 1 / l shows whether l differs from 1.
- S: one key is all ones, another all zeros, and a row of Q holds the terms. Then the weights of these two keys have the
  ratio exp(scale x S).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.accumulation_order import Pair, Triple, order_from_counts, order_from_joins
from harness.model.arithmetic.summation_tree import SummationTree
from harness.model.array_types import Arrays
from harness.model.operation import OrderedSum
from harness.operations.attention.masks.arrays import mask_arrays
from harness.operations.attention.problem import Problem
from harness.support.errors import OrderNotRevealed, UsageError

Float32Array = npt.NDArray[np.float32]

HUGE = np.float32(2.0**60)
"""M: adding any number of ones to it has no effect, and its products with weights and scales do not overflow."""
WEAK_SCORE = -32.0
"""A score with exp about 2^-46, so that adding a million of these weights to 1 has no effect."""
SWALLOWED_SCORE = float(np.log(0.29 * 2.0**-23))
"""A score whose weight is 0.29 ulp of 1: adding one of them to 1 has no effect, adding the sum of two adds 1 ulp."""
ABSENT_SCORE = -1000.0
"""A score whose exp is 0 in float32."""
S_RANGE = 8.0
"""Largest score when S is tested: exp of it and of 0 are both well within float32."""
CHECKS = 64
"""Number of additional tests, whose results the determined order has to predict."""


def ordered_sums(
    problem: Problem, run: Callable[[Problem, Arrays], Arrays], known: Mapping[str, Sequence[SummationTree]]
) -> tuple[OrderedSum, ...]:
    """Return the sums O, l and S, which are tested on rows that see all keys. The problem's scale is not used.

    `known` orders of l are tried first, which is fast if they are right. Raises `UsageError` for 16-bit problems, and
    if no row sees all keys.
    """
    if problem.dtype != "float32":
        raise UsageError("--order needs float32; leave out --dtype")
    if problem.compiled_features:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in problem.compiled_features)
        raise UsageError(f"--order needs unmodified scores and weights; leave out {options}")
    tests = _OrderTests(problem, run, known.get("l", ()))
    return (
        OrderedSum("O", "sum of P V over keys", "keys", tests.order_of_O),
        OrderedSum("l", "sum of P over keys", "keys", tests.order_of_l),
        OrderedSum("S", "sum of Q K over the elements of a row", "elements", tests.order_of_S),
    )


def _signed(terms: int, pairs: Sequence[Pair]) -> Float32Array:
    """Return a column of terms for each pair: M and -M at the pair, and ones elsewhere."""
    columns = np.ones((terms, len(pairs)), np.float32)
    for column, (plus, minus) in enumerate(pairs):
        columns[plus, column], columns[minus, column] = HUGE, -HUGE
    return columns


def _counts(values: Float32Array, terms: int) -> list[int]:
    """Return how many ones remained in each sum. Sums may be rounded slightly, so they are near whole numbers."""
    counts = np.round(values)
    fits = (np.abs(values - counts) < 0.1) & (counts >= 0) & (counts <= terms - 2)
    if not np.all(fits):
        raise OrderNotRevealed(
            f"where a number of ones should be left, {values[np.argmin(fits)]:.6g} is: "
            "terms are rescaled by factors that round"
        )
    return [int(count) for count in counts]


def _require_predicted(answers: Sequence[int], predicted: Sequence[int]) -> None:
    wrong = sum(answer != expected for answer, expected in zip(answers, predicted))
    if wrong:
        raise OrderNotRevealed(
            f"{wrong} of {len(answers)} more sums differ from this order: rows, columns or heads do not all "
            "add in the same order"
        )


def _batches(terms: Float32Array, size: int) -> Iterator[Float32Array]:
    """Yield `size` columns at a time, padded with zeros."""
    for start in range(0, terms.shape[1], size):
        batch = np.zeros((terms.shape[0], size), np.float32)
        columns = terms[:, start : start + size]
        batch[:, : columns.shape[1]] = columns
        yield batch


class _OrderTests:
    """Encodes tests in Q, K and V, runs the kernel, and decodes the results from O."""

    def __init__(
        self, problem: Problem, run: Callable[[Problem, Arrays], Arrays], guesses: Sequence[SummationTree]
    ) -> None:
        self._guesses = guesses
        self._run_kernel = run
        self._problem = problem
        # Rows that see all keys.
        self._rows = np.flatnonzero((problem.keys_seen == problem.kv_len).all(axis=0))
        if not len(self._rows):
            raise UsageError("--order needs rows that see all keys, and this mask has none; leave out --mask")
        self._random = random.Random(0)

    def order_of_O(self) -> SummationTree:
        """Return the order in which P V is summed over keys. Raises `OrderNotRevealed`."""
        n = self._problem.kv_len
        if n == 1:
            return SummationTree(1, ())
        weight = self._weak_weight()

        def ask(pairs: list[Pair]) -> list[int]:
            return _counts(self._sums_of_V(_signed(n, pairs), weight) / np.float32(weight), n)

        tree = order_from_counts(n, ask)
        pairs = self._drawn_pairs(n)
        _require_predicted(ask(pairs), [n - tree.meeting_size(*pair) for pair in pairs])
        return tree

    def order_of_l(self) -> SummationTree:
        """Return the order in which weights are summed to the denominator. Raises `OrderNotRevealed`."""
        n = self._problem.kv_len

        def ask(triples: list[Triple]) -> list[bool]:
            return self._changed([(i, (j, k)) for i, j, k in triples])

        tree = order_from_joins(n, ask, self._guesses)
        # Predict results for any number of swallowed terms at a time.
        drawn = [self._random.sample(range(n), self._random.randint(1, n)) for _ in range(CHECKS)]
        terms = np.zeros((n, CHECKS), np.float32)
        for column, (strong, *swallowed) in enumerate(drawn):
            terms[swallowed, column] = np.exp(SWALLOWED_SCORE)
            terms[strong, column] = 1
        answers = self._changed([(strong, swallowed) for strong, *swallowed in drawn])
        _require_predicted(answers, [bool(total != 1) for total in tree.total(terms)])
        return tree

    def order_of_S(self) -> SummationTree:
        """Return the order in which the products of a row of Q and a row of K are summed. Raises `OrderNotRevealed`."""
        n, last_key = self._problem.head_dim, self._problem.kv_len - 1
        if n == 1:
            return SummationTree(1, ())
        if last_key == 0:
            raise OrderNotRevealed("the weight of a single key is 1 whatever its score; use a --kv-len of at least 2")

        def ask(pairs: list[Pair], key: int = 0) -> list[int]:
            return _counts(self._sums_of_Q(_signed(n, pairs), key), n)

        tree = order_from_counts(n, ask)
        pairs = self._drawn_pairs(n)
        _require_predicted(ask(pairs, last_key), [n - tree.meeting_size(*pair) for pair in pairs])
        return tree

    def _weak_weight(self) -> float:
        """Return the weight of a key of WEAK_SCORE if another key has the score 0, whose weight has to be 1."""
        strong, weak = self._sums_of_V(np.eye(self._problem.kv_len, 2, dtype=np.float32), 1.0)
        if strong != 1 or not 0 < weak < 2.0**-40:
            raise OrderNotRevealed(
                f"a key whose score is 32 above all others has the weight {strong:.9g}, the others {weak:.3g}; "
                "1 and exp(-32) would be right"
            )
        return float(weak)

    def _sums_of_V(self, terms: Float32Array, weight: float) -> Float32Array:
        """Return sums over keys of `terms`, (kv_len, tests), times the weight of key 1, using a column of V each."""
        p = self._problem
        Q, K = np.zeros(p.q_shape, np.float32), np.zeros(p.kv_shape, np.float32)
        Q[..., 0] = 1
        K[:, :, 1:, 0] = WEAK_SCORE
        terms = terms.copy()
        terms[0] *= weight  # key 0 itself weighs 1
        answers: list[Float32Array] = []
        for batch in _batches(terms, p.batch * p.kv_heads_count * p.head_dim):
            V = batch.reshape(p.kv_len, p.batch, p.kv_heads_count, p.head_dim).transpose(1, 2, 0, 3)
            O = self._run(Q, K, V)
            first = O[:, :, :1, :1]
            if not np.all(O == first):
                raise OrderNotRevealed("rows that see the same keys give different sums")
            answers.append(first.reshape(-1))
        return np.concatenate(answers)[: terms.shape[1]]

    def _changed(self, patterns: Sequence[tuple[int, Sequence[int]]]) -> list[bool]:
        """Return whether l exceeds 1 for each pattern: a key of score 0, and keys of SWALLOWED_SCORE."""
        p = self._problem
        slots = min(p.head_dim, p.group * len(self._rows))
        heads = p.batch * p.kv_heads_count
        selecting = np.zeros((p.group * len(self._rows), p.head_dim), np.float32)
        selecting[np.arange(slots), np.arange(slots)] = 1
        Q = np.zeros((p.batch, p.heads, p.q_len, p.head_dim), np.float32)
        Q[:, :, self._rows] = np.tile(
            selecting.reshape(p.group, len(self._rows), p.head_dim), (p.batch, p.kv_heads_count, 1, 1)
        )
        answers: list[bool] = []
        for start in range(0, len(patterns), heads * slots):
            K = np.full((heads, p.kv_len, p.head_dim), ABSENT_SCORE, np.float32)
            V = np.zeros((heads, p.kv_len, p.head_dim), np.float32)
            tested = patterns[start : start + heads * slots]
            for number, (strong, swallowed) in enumerate(tested):
                head, slot = divmod(number, slots)
                K[head, list(swallowed), slot] = SWALLOWED_SCORE
                K[head, strong, slot] = 0
                V[head, strong, slot] = 1
            O = self._run(Q, K.reshape(p.kv_shape), V.reshape(p.kv_shape)).reshape(heads, -1, p.head_dim)
            found = O[:, np.arange(slots), np.arange(slots)].reshape(-1)[: len(tested)]
            if not np.all(np.abs(found - 1) < 2.0**-10):
                raise OrderNotRevealed(
                    f"a weight that should be 1, or a little less, is {found[np.argmax(abs(found - 1))]:.6g}"
                )
            answers += [bool(value) for value in found != 1]
        return answers

    def _sums_of_Q(self, terms: Float32Array, key: int) -> Float32Array:
        """Return sums over elements of `terms`, (head_dim, tests), using a row of Q each, and `key` for the ones."""
        p = self._problem
        scale = S_RANGE / p.head_dim
        K, V = np.zeros(p.kv_shape, np.float32), np.zeros(p.kv_shape, np.float32)
        K[:, :, key] = 1
        V[:, :, key, 0] = 1
        V[:, :, 0 if key else 1, 1] = 1
        answers: list[Float32Array] = []
        for batch in _batches(terms, p.batch * p.heads * len(self._rows)):
            Q = np.zeros(p.q_shape, np.float32)
            Q[:, :, self._rows] = batch.T.reshape(p.batch, p.heads, len(self._rows), p.head_dim)
            O = self._run(Q, K, V, scale).reshape(-1, p.head_dim)
            with np.errstate(all="ignore"):  # a wrong kernel's weights may be 0, and then no ones are counted
                answers.append((np.log(O[:, 0] / O[:, 1]) / scale).astype(np.float32))
        return np.concatenate(answers)[: terms.shape[1]]

    def _run(self, Q: Float32Array, K: Float32Array, V: Float32Array, scale: float = 1.0) -> Float32Array:
        """Run the kernel; returns O of the rows that see all keys, (batch, kv_heads, group, rows, head_dim)."""
        p = dataclasses.replace(self._problem, scale=scale)
        inputs = {"Q": Q, "K": K, "V": np.ascontiguousarray(V), **mask_arrays(p)}
        O = self._run_kernel(p, inputs)["O"][:, :, self._rows]
        if not np.all(np.isfinite(O)):
            raise OrderNotRevealed("O is not finite, although all inputs are: 'compare' may say what is wrong")
        return O.reshape(p.batch, p.kv_heads_count, p.group, len(self._rows), p.head_dim)

    def _drawn_pairs(self, terms: int) -> list[Pair]:
        drawn = (self._random.sample(range(terms), 2) for _ in range(CHECKS))
        return [(plus, minus) for plus, minus in drawn]
