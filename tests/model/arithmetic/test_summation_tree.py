from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from summation_orders import butterfly, leaves, orders, running, strided, tree_of

from harness.model.arithmetic.summation_tree import SummationTree


def test_the_same_order_is_the_same_tree():
    assert tree_of(((0, 1), (2, 3))) == tree_of(((3, 2), (1, 0)))
    assert tree_of(((0, 1), (2, 3))) != tree_of((((0, 1), 2), 3))
    assert tree_of((0, 1, 2)) != tree_of(((0, 1), 2))


def test_sums_that_lead_nowhere_are_left_out():
    assert SummationTree.of(3, [(1, 2), (0, 1), (4, 2)]) == tree_of(((0, 1), 2))


def test_what_it_says_of_itself():
    tree = tree_of((((0, 2), (1, 3)), 4))
    assert tree.brackets == "((0+2)+(1+3))+4"
    assert tree.depth == 3
    assert tree.sizes == [1, 1, 1, 1, 1, 2, 2, 4, 5]
    assert tree_of(0).brackets == "0"
    assert tree_of(0).depth == 0


def test_where_two_terms_meet():
    tree = tree_of((((0, 2), (1, 3)), (4, 5, 6)))
    assert [tree.meeting_size(0, other) for other in range(1, 7)] == [4, 2, 4, 7, 7, 7]
    assert tree.meeting_size(6, 4) == 3


def test_thousands_of_terms_one_after_the_other():
    tree = SummationTree.of(5000, [(0, 1), *((5000 + s, s + 2) for s in range(4998))])
    assert tree.depth == 4999
    assert tree.total(np.ones(5000)) == 5000


def test_it_rounds_after_each_addition():
    ulp = np.float32(2.0**-23)
    terms = [1, ulp * 0.4, ulp * 0.4]
    assert tree_of(((0, 1), 2)).total(terms) == 1
    assert tree_of((0, (1, 2))).total(terms) == 1 + ulp
    assert tree_of((0, 1, 2)).total(terms) == 1 + ulp


@given(orders())
def test_it_adds_in_its_order(nested):
    terms = np.random.default_rng(len(leaves(nested))).standard_normal((len(leaves(nested)), 3)).astype(np.float32)

    def add(part):
        if isinstance(part, int):
            return terms[part]
        return add(part[0]) + add(part[1])

    assert np.array_equal(tree_of(nested).total(terms), add(nested))


@pytest.mark.parametrize(
    ("nested", "depth"),
    [
        (running(range(64)), 63),
        (butterfly([strided(lane, 8, 4) for lane in range(8)], [4, 2, 1]), 6),
        (butterfly(range(32), [16, 8, 4, 2, 1]), 5),
        (running([tuple(range(start, start + 16)) for start in range(0, 64, 16)]), 4),
    ],
)
def test_depth(nested, depth: int):
    assert tree_of(nested).depth == depth
