"""The orders of attention's sums, of kernels whose orders are known, and of those that the repository has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from emulators import emulator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy_executor import NumpyExecutor, NumpyKernel
from summation_orders import orders, running, tree_of, truncating_total

from harness.execution.planning.variant_calls import make_plan
from harness.model.arithmetic.summation_tree import SummationTree
from harness.model.discovery import discover
from harness.model.plan import Launch, Plan
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.studies.show.orders import reveal_if_it_runs, reveal_orders
from harness.support.errors import PlanError, UnsupportedProblem, UsageError

PLUGIN = Path(__file__).parents[2] / "plugins" / "one_thread_per_row.py"


def variant_of(body, supports=lambda problem: None) -> Variant:
    launch = Launch(NumpyKernel("numpy", body), (1,), (32,), ("Q", "K", "V", "O"))
    return Variant(name="mine", backend="numpy", plan=lambda problem: Plan((launch,)), supports=supports)


def attention(O: SummationTree, l: SummationTree, S: SummationTree, spoil=None):
    """The body of a kernel that adds in these orders; `spoil` edits P and V, of shape (keys, rows, d), before O."""

    def body(p: Problem, arrays: dict[str, np.ndarray]) -> None:
        for b in range(p.batch):
            for h in range(p.heads):
                q = arrays["Q"][b, h]
                k, v = (arrays[name][b, h // p.group] for name in "KV")
                scores = np.float32(p.tau) * S.total((q[:, None, :] * k[None]).transpose(2, 0, 1))
                if p.causal:
                    scores[~np.tri(p.q_len, p.kv_len, p.kv_len - p.q_len, dtype=bool)] = -np.inf
                P = np.exp(scores - scores.max(axis=1, keepdims=True)).T
                products = P[:, :, None] * v[:, None, :]
                if spoil is not None:
                    products = spoil(products)
                arrays["O"][b, h] = O.total(products) / l.total(P)[:, None]

    return body


def trees(found) -> list[SummationTree | None]:
    assert [order.sum.name for order in found.orders] == ["O", "l", "S"]
    return [order.tree for order in found.orders]


@given(orders(3, 20), st.randoms(use_true_random=False), orders(2, 12), st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_orders_of_a_known_kernel(over_keys, random, over_elements, causal: bool):
    for_O, for_S = tree_of(over_keys), tree_of(over_elements)
    keys = [*range(for_O.terms)]
    random.shuffle(keys)
    for_l = tree_of(running(keys))
    problem = Problem(
        heads=4,
        kv_heads=2,
        q_len=5,
        kv_len=for_O.terms,
        head_dim=for_S.terms,
        mask="causal" if causal and for_O.terms >= 5 else "none",
    )
    found = reveal_orders(variant_of(attention(for_O, for_l, for_S)), problem, NumpyExecutor())
    assert trees(found) == [for_O, for_l, for_S]


class TensorCores(NamedTuple):
    """Adds several at once, in a tree's order, and cuts off what is far below the largest."""

    tree: SummationTree

    def total(self, terms: np.ndarray) -> np.ndarray:
        return truncating_total(self.tree, terms).astype(np.float32)


def test_sums_of_several_at_once():
    tree = tree_of(running([tuple(range(start, start + 4)) for start in range(0, 16, 4)]))
    body = attention(TensorCores(tree), tree, TensorCores(tree))
    found = reveal_orders(variant_of(body), Problem(heads=1, q_len=16, kv_len=16, head_dim=16), NumpyExecutor())
    assert trees(found) == [tree, tree, tree]


def test_a_kernel_that_gives_nan():
    def body(problem, arrays):
        arrays["O"][...] = np.nan

    found = reveal_orders(variant_of(body), Problem(q_len=4, kv_len=4, head_dim=4), NumpyExecutor())
    assert trees(found) == [None, None, None]
    assert all("O is not finite" in order.reason for order in found.orders)


def test_a_known_order_is_tried_first():
    n = 100
    body = attention(*(tree_of(running(range(size))) for size in (n, n, 16)))
    problem = Problem(heads=1, q_len=16, kv_len=n, head_dim=16)
    first, second = NumpyExecutor(), NumpyExecutor()
    found = reveal_orders(variant_of(body), problem, first)
    assert reveal_orders(variant_of(body), problem, second, [found]) == found
    assert len(second.runs) < len(first.runs) / 2


def other_order_in_column_1(x):
    return np.concatenate([x[:, :, :1], x[::-1, :, 1:2], x[:, :, 2:]], axis=2)


def other_order_in_the_last_column(x):
    """9 keys need 8 questions, which the first 8 of 16 columns answer."""
    return np.concatenate([x[:, :, :15], x[::-1, :, 15:]], axis=2)


def other_order_in_row_0(x):
    return np.concatenate([x[::-1, :1], x[:, 1:]], axis=1)


def times(key: int, factor: float):
    return lambda x: x * np.where(np.arange(len(x)) == key, np.float32(factor), np.float32(1))[:, None, None]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (other_order_in_column_1, "do not all add in the same|contradict"),
        (other_order_in_the_last_column, "more sums differ from this order"),
        (other_order_in_row_0, "rows that see the same keys"),
        (times(0, 0.5), "has the weight 0.5,"),
        (times(5, 0.7), "factors that round"),
    ],
)
def test_what_has_no_one_order_is_not_revealed(spoil, reason: str):
    body = attention(*(tree_of(running(range(size))) for size in (9, 9, 16)), spoil)
    found = reveal_orders(variant_of(body), Problem(heads=1, q_len=3, kv_len=9, head_dim=16), NumpyExecutor())
    O = found.orders[0]
    assert O.tree is None
    assert re.search(reason, O.reason), O.reason


def test_one_key_and_one_element():
    one = tree_of(0)
    body = attention(one, one, tree_of((0, 1)))
    found = reveal_orders(variant_of(body), Problem(q_len=3, kv_len=1, head_dim=2), NumpyExecutor())
    assert trees(found) == [one, one, None]
    assert "--kv-len of at least 2" in found.orders[2].reason
    body = attention(tree_of((0, 1)), tree_of((0, 1)), one)
    found = reveal_orders(variant_of(body), Problem(q_len=3, kv_len=2, head_dim=1), NumpyExecutor())
    assert trees(found) == [tree_of((0, 1)), tree_of((0, 1)), one]


def test_what_does_not_run_says_so():
    def fails(problem, arrays):
        raise PlanError("no such thing")

    def interrupted(problem, arrays):
        raise KeyboardInterrupt

    problem, executor = Problem(q_len=2, kv_len=2, head_dim=2), NumpyExecutor()
    assert reveal_if_it_runs(variant_of(fails), problem, executor).reason == "no such thing"
    refusing = variant_of(fails, supports=lambda problem: "too small")
    assert reveal_if_it_runs(refusing, problem, executor).reason == "too small"
    with pytest.raises(UnsupportedProblem):
        reveal_orders(refusing, problem, executor)
    with pytest.raises(KeyboardInterrupt):
        reveal_if_it_runs(variant_of(interrupted), problem, executor)
    with pytest.raises(UsageError, match="leave out --dtype"):
        reveal_orders(variant_of(fails), Problem(dtype="float16"), executor)


# --- on the emulated GPU ---------------------------------------------------------------------------------------------


@pytest.mark.compiles
@pytest.mark.exhaustive
@pytest.mark.parametrize("causal", [False, True])
def test_a_thread_that_goes_through_the_keys_adds_one_after_the_other(causal: bool):
    variant = discover([PLUGIN], package="no_such_package_of_variants").registry.get("one-thread-per-row")
    problem = Problem(heads=4, kv_heads=2, q_len=21, kv_len=33, head_dim=8, mask="causal" if causal else "none")
    found = reveal_orders(variant, problem, emulator())
    assert trees(found) == [tree_of(running(range(n))) for n in (33, 33, 8)]


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["fa2-cupy", pytest.param("three-pass-numba", marks=pytest.mark.exhaustive)])
def test_adding_in_the_revealed_order_gives_the_bits_of_the_kernel(name: str):
    """Q = 0: every weight is 1 or 1 / 64, which is exact, so nothing rounds but the sum over keys."""
    variant = discover().registry.get(name)
    problem = Problem(q_len=20, kv_len=64)
    tree, *_ = trees(reveal_orders(variant, problem, emulator()))
    assert tree is not None
    rng = np.random.default_rng(1)
    V = rng.standard_normal(problem.kv_shape).astype(np.float32)
    inputs = {"Q": np.zeros(problem.q_shape, np.float32), "K": rng.standard_normal(problem.kv_shape).astype(np.float32)}
    O = emulator().run(problem, make_plan(variant, problem), inputs | {"V": V}).outputs["O"]
    terms = V.transpose(2, 0, 1, 3)
    assert np.array_equal(O, np.broadcast_to((tree.total(terms) / 64)[:, :, None], O.shape))
    # What this test rests on: another order gives other bits.
    assert not np.array_equal(O[:, :, 0], tree.total(terms[::-1]) / 64)
