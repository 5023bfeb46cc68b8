"""Renders orders of addition: an outline of one variant's for people, all additions for programs."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.execution.protocol import Device
from harness.model.arithmetic.summation_tree import SummationTree
from harness.model.operation import OrderedSum
from harness.model.problem import BaseProblem
from harness.studies.show.order_description import INDENT, describe
from harness.studies.show.orders import RevealedOrder, VariantOrders
from harness.text.report import Report, Table, Verbatim
from harness.text.tables import UNKNOWN, device_line

BRACKETED_TERMS = 16
"""Sums of up to this many terms are also shown in brackets."""
MOST_LINES = 40
"""Maximum lines of an outline, since an irregular order would fill pages."""


@dataclass(frozen=True)
class OrderReport:
    """The result of `show --order`."""

    problem: BaseProblem
    """The problem that was computed."""
    tile: str | None
    """The requested tile sizes; None if each variant uses its default."""
    device: Device
    """The device on which the variants ran."""
    shown: VariantOrders
    """The requested variant."""
    others: tuple[VariantOrders, ...]
    """The variants that it is compared with."""


def order_report(report: OrderReport) -> Report:
    """The report of the orders of sums."""
    letters = _letters((report.shown, *report.others))
    return Report(
        paragraphs=lambda: _paragraphs(report, letters),
        notes=lambda: [*_notes(report)],
        records=lambda: _records(report, letters),
        document=lambda: _object(report, letters),
    )


def _records(
    report: OrderReport, letters: dict[tuple[str, SummationTree], str]
) -> tuple[list[dict[str, Any]], list[str]]:
    rows = [*_rows((report.shown, *report.others), _sums(report), letters)]
    return rows, [*rows[0]]


def _paragraphs(report: OrderReport, letters: dict[tuple[str, SummationTree], str]) -> list[str | Table | Verbatim]:
    headline = f"{report.shown.variant}: the order in which it adds; {report.problem.headline}"
    if report.tile is not None:
        headline += f"; tile {report.tile}"
    outline = "\n\n".join("\n".join(_outline(order)) for order in report.shown.orders)
    paragraphs: list[str | Table | Verbatim] = [headline, Verbatim(outline)]
    if report.others:
        every = (report.shown, *report.others)
        cells = [[each.variant, *(_cell(each, sum.name, letters) for sum in _sums(report))] for each in every]
        headers = ["variant", *(f"{sum.name}: order,\nroundings" for sum in _sums(report))]
        paragraphs.append(Table(headers, cells, [False] * len(headers)))
    return paragraphs


def _outline(order: RevealedOrder) -> Iterator[str]:
    title = f"{order.sum.name} = {order.sum.meaning}"
    if order.tree is None:
        yield title
        yield f"{INDENT}not determined: {order.reason}"
        return
    tree = order.tree
    yield f"{title}: {tree.terms:,} terms, each rounded at most {tree.depth:,} times"
    lines = describe(tree, order.sum.noun)
    for line in lines[:MOST_LINES]:
        yield INDENT + line
    if len(lines) > MOST_LINES:
        yield f"{INDENT}... and {len(lines) - MOST_LINES:,} lines more; --format json has every addition"
    if 2 < tree.terms <= BRACKETED_TERMS:
        yield INDENT + tree.brackets


def _notes(report: OrderReport) -> Iterator[str]:
    yield "Of identical parts, only the keys or elements of the first are shown."
    if report.others:
        yield (
            "Same letter in a column: the same additions, so the same bits from the same terms. Roundings: the largest "
            "number that one term goes through; the sum's error bound grows with it."
        )
    yield (
        "Determined from rounding errors (FPRev, USENIX ATC 2025), for rows that see all keys. "
        f"Device: {device_line(report.device)}."
    )
    for each in report.others:
        if each.reason is not None:
            yield f"{each.variant}: {' '.join(each.reason.split())}"
        for order in each.orders:
            if order.reason is not None:
                yield f"{each.variant}, {order.sum.name}: not determined: {order.reason}"


def _letters(every: Sequence[VariantOrders]) -> dict[tuple[str, SummationTree], str]:
    """A letter for each distinct order of each sum, beginning with the first variant's."""
    letters: dict[tuple[str, SummationTree], str] = {}
    seen: Counter[str] = Counter()
    for variant in every:
        for order in variant.orders:
            if order.tree is not None and (order.sum.name, order.tree) not in letters:
                letters[order.sum.name, order.tree] = _letter(seen[order.sum.name])
                seen[order.sum.name] += 1
    return letters


def _letter(number: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    round, letter = divmod(number, len(string.ascii_uppercase))
    return string.ascii_uppercase[letter] + (str(round) if round else "")


def _cell(variant: VariantOrders, name: str, letters: dict[tuple[str, SummationTree], str]) -> str:
    tree = next((order.tree for order in variant.orders if order.sum.name == name), None)
    return UNKNOWN if tree is None else f"{letters[name, tree]}  {tree.depth:,}"


def _sums(report: OrderReport) -> list[OrderedSum]:
    """The requested sums."""
    return [order.sum for order in report.shown.orders]


def _rows(
    every: Sequence[VariantOrders], sums: Sequence[OrderedSum], letters: dict[tuple[str, SummationTree], str]
) -> Iterator[dict[str, Any]]:
    for variant in every:
        orders = variant.orders or [RevealedOrder(sum, None, variant.reason) for sum in sums]
        for order in orders:
            tree = order.tree
            yield {
                "variant": variant.variant,
                "sum": order.sum.name,
                "order": None if tree is None else letters[order.sum.name, tree],
                "terms": None if tree is None else tree.terms,
                "roundings": None if tree is None else tree.depth,
                "reason": order.reason,
            }


def _object(report: OrderReport, letters: dict[tuple[str, SummationTree], str]) -> dict[str, Any]:
    """The JSON object.

    `additions` lists the operands of each sum: numbers below `terms` are terms, terms + s is the sum of additions[s].
    """
    return {
        "problem": report.problem.to_fields(),
        "tile": report.tile,
        "device": asdict(report.device),
        "variant": report.shown.variant,
        "sums": [
            {
                "sum": order.sum.name,
                "meaning": order.sum.meaning,
                "terms": None if order.tree is None else order.tree.terms,
                "roundings": None if order.tree is None else order.tree.depth,
                "reason": order.reason,
                "outline": None if order.tree is None else describe(order.tree, order.sum.noun),
                "additions": None if order.tree is None else [list(members) for members in order.tree.sums],
            }
            for order in report.shown.orders
        ],
        "variants": [*_rows((report.shown, *report.others), _sums(report), letters)],
    }
