from __future__ import annotations

import csv
import io
import json
import random

import pytest
from summation_orders import butterfly, running, strided, tree_of

from harness.execution.protocol import Device
from harness.model.operation import OrderedSum
from harness.operations.attention.problem import Problem
from harness.studies.show.order_report import OrderReport, order_report
from harness.studies.show.orders import RevealedOrder, VariantOrders

pytestmark = pytest.mark.compiles(False)

CHAIN = tree_of(running(range(64)))
LANES = tree_of(butterfly([strided(lane, 8, 8) for lane in range(8)], [4, 2, 1]))
SHORT = tree_of(butterfly(range(8), [4, 2, 1]))
SUMS = [
    OrderedSum(name, meaning, noun, reveal=lambda: CHAIN)
    for name, meaning, noun in (
        ("O", "sum of P V over keys", "keys"),
        ("l", "sum of P over keys", "keys"),
        ("S", "sum of Q K over the elements of a row", "elements"),
    )
]
ONCE = "with one key there is no more to see"


def orders_of(name: str, *trees) -> VariantOrders:
    return VariantOrders(
        name, tuple(RevealedOrder(sum, tree, None if tree else ONCE) for sum, tree in zip(SUMS, trees))
    )


def text(format: str = "table", others: bool = True) -> str:
    beside = (orders_of("twin", CHAIN, LANES, SHORT), orders_of("other", LANES, LANES, None))
    report = OrderReport(
        Problem(q_len=64, kv_len=64, head_dim=8),
        "Bc=64",
        Device("emulator", "32 lanes on a CPU", "sm_90"),
        orders_of("mine", CHAIN, LANES, SHORT),
        (*beside, VariantOrders("narrow", (), "only\nwide problems")) if others else (),
    )
    return order_report(report).render(format)


def test_the_outline_and_who_adds_alike():
    found = text()
    assert found.startswith(
        "mine: the order in which it adds; batch 1, 2 heads, 64 x 64, head_dim 8, float32, scale 0.353553; "
        "tile Bc=64\n\n"
        "O = sum of P V over keys: 64 terms, each rounded at most 63 times\n"
        "    one after the other: keys 0, 1, ..., 63\n\n"
        "l = sum of P over keys: 64 terms, each rounded at most 10 times\n"
        "    as a tree of pairs (4 apart, then 2, then 1): 8 parts of 8 keys, which start at 0, 1, ..., 7\n"
        "        in each, one after the other: keys 0, 8, ..., 56\n\n"
        "S = sum of Q K over the elements of a row: 8 terms, each rounded at most 3 times\n"
        "    as a tree of pairs (4 apart, then 2, then 1): elements 0, 1, ..., 7\n"
        "    ((0+4)+(2+6))+((1+5)+(3+7))\n"
    )
    rows = {line.split()[0]: line.split()[1:] for line in found.splitlines() if line[:1].isalpha()}
    assert rows["mine"] == rows["twin"] == ["A", "63", "A", "10", "A", "3"]
    assert rows["other"] == ["B", "10", "A", "10", "-"]
    assert rows["narrow"] == ["-", "-", "-"]
    assert f"other, S: not determined: {ONCE}" in found
    assert "narrow: only wide problems" in found
    assert max(map(len, found.splitlines())) <= 120


def test_one_variant_alone():
    found = text(others=False)
    assert "letter" not in found
    assert "roundings\n" not in found


def test_what_is_not_revealed_says_why():
    report = OrderReport(Problem(), None, Device("gpu", "H200", "sm_90"), orders_of("mine", None, LANES, SHORT), ())
    assert f"O = sum of P V over keys\n    not determined: {ONCE}\n" in order_report(report).render("table")
    assert "Device: H200 (sm_90)." in order_report(report).render("table")


def test_an_order_without_pattern_is_cut_off():
    drawn, parts = random.Random(0), list(range(200))
    while len(parts) > 1:
        drawn.shuffle(parts)
        parts.append((parts.pop(), parts.pop()))
    shown = orders_of("mine", tree_of(parts[0]), LANES, SHORT)
    found = order_report(OrderReport(Problem(), None, Device("gpu", "H200", "sm_90"), shown, ())).render("table")
    assert " lines more; --format json has every addition\n" in found
    assert len(found.splitlines()) < 60


def test_for_programs():
    rows = [*csv.DictReader(io.StringIO(text("csv")))]
    assert len(rows) == 12
    assert rows[6] == {"variant": "other", "sum": "O", "order": "B", "terms": "64", "roundings": "10", "reason": ""}
    assert rows[9]["reason"] == "only\nwide problems"
    found = json.loads(text("json"))
    assert (found["variant"], found["tile"], found["problem"]["kv_len"]) == ("mine", "Bc=64", 64)
    (O, _, S) = found["sums"]
    assert O["outline"] == ["one after the other: keys 0, 1, ..., 63"]
    assert O["additions"] == [[0, 1], *([63 + s, s + 1] for s in range(1, 63))]
    assert S["roundings"] == 3
    assert len(found["variants"]) == 12


def test_markdown_keeps_the_outline_and_has_a_table():
    found = text("markdown")
    assert "```text\nO = sum of P V" in found
    assert "| variant" in found
    assert "| twin" in found
