"""Known orders are found again from nothing but what sums in these orders answer."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from summation_orders import (
    answers_counts,
    answers_joins,
    butterfly,
    orders,
    running,
    strided,
    tree_of,
    truncating_total,
)

from harness.model.arithmetic.accumulation_order import order_from_counts, order_from_joins
from harness.support.errors import OrderNotRevealed

TILE = [butterfly([start + lane for lane in range(8)], [4, 2, 1]) for start in range(0, 24, 8)]
KNOWN = {
    "one term": 0,
    "two terms": (0, 1),
    "sequential": running(range(100)),
    "backwards": running(range(99, -1, -1)),
    "from the middle": running([*range(50, 100), *range(50)]),
    "pairwise": butterfly(range(64), [1, 2, 4, 8, 16, 32]),
    "lanes and a butterfly": butterfly([strided(lane, 32, 4) for lane in range(32)], [16, 8, 4, 2, 1]),
    "tiles of lanes": running(TILE),
    "sums of tiles": running([strided(start, 1, 32) for start in range(0, 128, 32)]),
    "halves": (running(range(20)), running(range(39, 19, -1))),
}


class Counting:
    """Counts questions and rounds."""

    def __init__(self, ask) -> None:
        self.ask, self.questions, self.rounds = ask, 0, 0

    def __call__(self, questions):
        self.questions += len(questions)
        self.rounds += 1
        assert len(set(questions)) == len(questions)
        return self.ask(questions)


@pytest.mark.parametrize("name", KNOWN)
def test_known_orders(name: str):
    tree = tree_of(KNOWN[name])
    assert order_from_counts(tree.terms, answers_counts(tree.total, tree.terms)) == tree
    assert order_from_joins(tree.terms, answers_joins(tree.total, tree.terms)) == tree


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(orders())
def test_any_order(nested):
    tree = tree_of(nested)
    assert order_from_counts(tree.terms, answers_counts(tree.total, tree.terms)) == tree
    assert order_from_joins(tree.terms, answers_joins(tree.total, tree.terms)) == tree


@given(orders(at_once=4))
def test_several_at_once_is_a_sum_of_several(nested):
    tree = tree_of(nested)
    assert order_from_joins(tree.terms, answers_joins(tree.total, tree.terms)) == tree
    cut_off = functools.partial(truncating_total, tree)
    assert order_from_counts(tree.terms, answers_counts(cut_off, tree.terms)) == tree


def test_a_sum_in_higher_precision_shows_no_order():
    def in_float64(columns: np.ndarray) -> np.ndarray:
        return columns.sum(axis=0, dtype=np.float64).astype(np.float32)

    assert order_from_joins(20, answers_joins(in_float64, 20)) == tree_of(tuple(range(20)))


def test_a_chain_takes_a_question_per_term_and_one_round():
    tree = tree_of(KNOWN["sequential"])
    ask = Counting(answers_counts(tree.total, 100))
    order_from_counts(100, ask)
    assert (ask.questions, ask.rounds) == (99, 1)


@pytest.mark.parametrize("name", ["backwards", "from the middle", "lanes and a butterfly", "sums of tiles"])
def test_no_order_takes_questions_for_all_pairs(name: str):
    tree = tree_of(KNOWN[name])
    n = tree.terms
    counts, joins = Counting(answers_counts(tree.total, n)), Counting(answers_joins(tree.total, n))
    order_from_counts(n, counts)
    order_from_joins(n, joins)
    assert counts.questions <= 2 * n * math.log2(n)
    assert joins.questions <= 2 * n * math.log2(n) ** 2
    assert max(counts.rounds, joins.rounds) <= 80


@given(orders(least=3), orders(least=3))
def test_a_guess_is_taken_only_where_it_is_right(nested, other):
    tree, guess = tree_of(nested), tree_of(other)
    assert order_from_joins(tree.terms, answers_joins(tree.total, tree.terms), [guess]) == tree


@pytest.mark.parametrize("swapped", range(1, 30))
def test_a_guess_that_is_nearly_right_is_not_taken(swapped: int):
    terms = [*range(30)]
    terms[swapped], terms[swapped - 1] = terms[swapped - 1], terms[swapped]
    tree, guess = tree_of(running(terms)), tree_of(running(range(30)))
    assert order_from_joins(30, answers_joins(tree.total, 30), [guess]) == tree


def test_a_guess_of_pairs_is_not_taken_where_all_is_added_at_once():
    tree = tree_of(tuple(range(6)))
    assert order_from_joins(6, answers_joins(tree.total, 6), [tree_of(running(range(6)))]) == tree


def test_a_right_guess_saves_questions():
    tree = tree_of(KNOWN["lanes and a butterfly"])
    ask = Counting(answers_joins(tree.total, tree.terms))
    assert order_from_joins(tree.terms, ask, [tree_of(running(range(128))), tree]) is tree
    assert ask.questions <= 4 * tree.terms


@pytest.mark.parametrize("answer", [1, 3, 8])
def test_answers_of_no_tree(answer: int):
    with pytest.raises(OrderNotRevealed, match="contradict each other"):
        order_from_counts(10, lambda pairs: [answer] * len(pairs))
