from __future__ import annotations

import pytest
from summation_orders import butterfly, running, strided, tree_of

from harness.studies.show.order_description import describe

pytestmark = pytest.mark.compiles(False)

LANES = [[strided(start + lane, 8, 4) for lane in range(8)] for start in range(0, 128, 32)]

ORDERS = {
    "a term": (0, "keys 0"),
    "a chain": (running(range(128)), "one after the other: keys 0, 1, ..., 127"),
    "a chain backwards": (running(range(9, -1, -1)), "one after the other: keys 9, 8, ..., 0"),
    "a short chain": (running(range(4)), "one after the other: keys 0, 1, 2, 3"),
    "even ones first": (
        running([*range(0, 20, 2), *range(1, 20, 2)]),
        "one after the other: keys 0, 2, ..., 18, then 1, 3, ..., 19",
    ),
    "neighbours in pairs": (
        butterfly(range(8), [1, 2, 4]),
        "as a tree of pairs (1 apart, then 2, then 4): keys 0, 1, ..., 7",
    ),
    "tiles": (
        running([strided(start, 1, 32) for start in range(0, 96, 32)]),
        """\
one after the other: 3 parts of 32 keys, which start at 0, 32, 64
    in each, one after the other: keys 0, 1, ..., 31""",
    ),
    "two tiles of lanes": (
        running([butterfly(lanes, [4, 2, 1]) for lanes in LANES[:2]]),
        """\
one after the other: 2 parts of 32 keys, which start at 0, 32
    in each, as a tree of pairs (4 apart, then 2, then 1): 8 parts of 4 keys, which start at 0, 1, ..., 7
        in each, one after the other: keys 0, 8, 16, 24""",
    ),
    "a tile that is cut off": (
        running([*(butterfly(lanes, [4, 2, 1]) for lanes in LANES[:3]), butterfly(range(96, 104), [4, 2, 1])]),
        """\
one after the other:
    3 parts of 32 keys, which start at 0, 32, 64
        in each, as a tree of pairs (4 apart, then 2, then 1): 8 parts of 4 keys, which start at 0, 1, ..., 7
            in each, one after the other: keys 0, 8, 16, 24
    then a part of 8 keys, which starts at 96
        as a tree of pairs (4 apart, then 2, then 1): keys 96, 97, ..., 103""",
    ),
    "lanes that are not equally long": (
        butterfly([strided(lane, 4, 3 if lane < 3 else 2) for lane in range(4)], [2, 1]),
        """\
as a tree of pairs (2 apart, then 1):
    3 parts of 3 keys, which start at 0, 1, 2
        in each, one after the other: keys 0, 4, 8
    then a part of 2 keys, which starts at 3
        one after the other: keys 3, 7""",
    ),
    "several at once": (
        running([tuple(range(start, start + 16)) for start in range(0, 64, 16)]),
        """\
one after the other: 4 parts of 16 keys, which start at 0, 16, 32, 48
    in each, in one step, or too exactly to tell: keys 0, 1, ..., 15""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_orders_in_words(name: str):
    nested, words = ORDERS[name]
    assert "\n".join(describe(tree_of(nested), "keys")) == words


def test_a_running_sum_that_starts_with_a_part():
    words = describe(tree_of(running([strided(0, 1, 8), strided(8, 1, 4), strided(12, 1, 4)])), "keys")
    assert words == [
        "one after the other:",
        "    keys 0, 1, ..., 7",
        "    then 2 parts of 4 keys, which start at 8, 12",
        "        in each, one after the other: keys 8, 9, 10, 11",
    ]


def test_orders_without_pattern_stay_short():
    steps = [3, 7, 11, 0, 14, 5, 9, 1, 15, 8, 2, 13, 6, 10, 4, 12]
    assert describe(tree_of(running(steps)), "keys") == [
        "one after the other: keys 3, 7, 11, then 0, 14, then 5, 9, then 1, 15, then 8, 2, then 13, 6, and 3 more"
    ]


def test_thousands_of_terms():
    assert describe(tree_of(butterfly(range(4096), [2**k for k in range(12)])), "keys")[0].endswith(
        "keys 0, 1, ..., 4095"
    )
