"""On what the bits of each variant's result depend, as a part of the report of a comparison."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from harness.execution.invariance import Invariance, VariantInvariance
from harness.execution.outcome import Comparison, Row
from harness.model.invariance import BATCH, INVARIANCES, PADDING, SPLITS
from harness.text.report import Report, Table, Title
from harness.text.tables import UNKNOWN, finite, mib

SAME, SAME_HERE = "same bits", "same here"
_LEGEND = (
    "same bits: the variant declares that its bits do not depend on it (invariant_to), and they did not. same here: "
    "they did\nnot, but it does not declare that. N ulps: largest difference of an element, in floating-point numbers "
    "of its dtype.\nsplits: other tile sizes that the variant offers. own tile / fewest bytes: bytes with the "
    "variant's own tile size,\nrelative to the fewest with any of these."
)


def with_invariance(report: Report, comparison: Comparison, found: Sequence[VariantInvariance]) -> Report:
    """The comparison's report with what bits depend on after its table."""
    named = {each.variant: each for each in found}

    def records() -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
        rows, keys = report.records()
        added = [f"{kind}_ulps" for kind in INVARIANCES]
        return [{**row, **_columns(named.get(row["variant"]))} for row in rows], [*keys, *added]

    return dataclasses.replace(
        report,
        paragraphs=lambda: [
            *report.paragraphs(),
            Title("What bits depend on:"),
            _table(found, comparison),
        ],
        notes=lambda: [*report.notes(), _LEGEND, *_notes(found, comparison)],
        records=records,
        document=lambda: {**report.document(), "invariance": [_object(each) for each in found]},
    )


def _table(found: Sequence[VariantInvariance], comparison: Comparison) -> Table:
    headers = ["variant", "batch", "splits", "padding", "own tile /\nfewest bytes"]
    if comparison.device.is_gpu:
        headers.append("own tile /\nleast time")
    cells = []
    for each in found:
        line = [each.variant, *(_cell(each.of(kind)) for kind in (BATCH, SPLITS, PADDING)), _cost(each.bytes_of_tiles)]
        cells.append([*line, _cost(each.time_of_tiles)] if comparison.device.is_gpu else line)
    return Table(headers, cells, [False, False, False, False, *(True for _ in headers[4:])])


def _cell(of: Invariance) -> str:
    if of.ulps is None:
        return UNKNOWN
    if of.ulps == 0:
        return SAME if of.declared else SAME_HERE
    return "NaN" if math.isinf(of.ulps) else f"{of.ulps:,.0f} {'ulp' if of.ulps == 1 else 'ulps'}"


def _cost(of_tiles: Mapping[str, float]) -> str:
    """What keeping to one tile size costs, as a ratio to the best of those that were tried."""
    if len(of_tiles) < 2:
        return UNKNOWN
    return f"{next(iter(of_tiles.values())) / min(of_tiles.values()):.2f}"


def _notes(found: Sequence[VariantInvariance], comparison: Comparison) -> Iterator[str]:
    rows = {row.variant: row for row in comparison.rows}
    figures: list[tuple[str, Callable[[Row], float | None], Callable[[float], str]]] = [
        ("Fewest bytes", lambda row: row.total_bytes, lambda n: f"{mib(n, comparison.problem.compulsory_bytes)} MiB")
    ]
    if comparison.device.is_gpu:
        figures.append(("Least time", lambda row: row.time_ms, lambda ms: f"{ms:,.4f} ms"))
    for what, figure, shown in figures:
        of_all = {each.variant: value for each in found if (value := figure(rows[each.variant])) is not None}
        if of_all:
            yield f"{what}: {'; '.join(_cheapest(found, of_all, shown))}."
    for each in found:
        for of in each.kinds:
            if of.declared and of.ulps:
                yield (
                    f"{each.variant}: fail: it declares invariant_to {of.kind!r}, but {of.differing} have other bits "
                    f"in the run {of.change}, by up to {_cell(of)}"
                )


def _cheapest(
    found: Sequence[VariantInvariance], of_all: Mapping[str, float], shown: Callable[[float], str]
) -> Iterator[str]:
    """The cheapest variant, and the cheapest one of those that declare each invariance."""
    best = min(of_all, key=lambda name: of_all[name])
    yield f"{best}, {shown(of_all[best])}"
    for kind in INVARIANCES:
        declaring = [each.variant for each in found if each.variant in of_all and each.of(kind).declared]
        if not declaring:
            yield f"no variant here declares {kind}"
            continue
        name = min(declaring, key=lambda each: of_all[each])
        yield f"of those that declare {kind}: {name}, {of_all[name] / of_all[best]:.2f} times that"


def _columns(each: VariantInvariance | None) -> dict[str, Any]:
    return {} if each is None else {f"{of.kind}_ulps": finite(of.ulps) for of in each.kinds}


def _object(each: VariantInvariance) -> dict[str, Any]:
    return {
        "variant": each.variant,
        "holds": each.holds,
        "kinds": [{**dataclasses.asdict(of), "ulps": finite(of.ulps)} for of in each.kinds],
        "bytes_of_tiles": dict(each.bytes_of_tiles),
        "time_ms_of_tiles": dict(each.time_of_tiles),
    }
