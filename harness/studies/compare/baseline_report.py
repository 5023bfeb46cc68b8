"""The changes relative to a baseline, as a part of the report of a comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.execution.results.change import Figures
from harness.studies.compare.baseline import BaselineComparison
from harness.text.report import Report, Table, Title
from harness.text.tables import UNKNOWN, finite, mib, smallest_of

_ADDED = (
    "against", "changed", "against_verdict", "against_total_bytes", "against_error_over_budget", "against_time_ms",
)  # fmt: skip
"""Columns of csv that identify the baseline."""


def with_changes(report: Report, found: Sequence[BaselineComparison], what: str) -> Report:
    """The comparison's report with the changes after its table. `what` names the baseline."""
    named = {each.variant: each for each in found}

    def records() -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
        rows, keys = report.records()
        return [{**row, **_columns(named.get(row["variant"]))} for row in rows], [*keys, *_ADDED]

    return dataclasses.replace(
        report,
        paragraphs=lambda: [*report.paragraphs(), Title(f"Compared with {what}:"), _table(found)],
        records=records,
        document=lambda: {**report.document(), "against": {"what": what, "variants": [_object(e) for e in found]}},
    )


def _table(found: Sequence[BaselineComparison]) -> Table:
    shown = [each for each in found if not each.never_ran]
    cells = [(each.variant, each.then, _kernel(each), "; ".join(_changes_in_words(each))) for each in shown]
    return Table(("variant", "then", "kernel", "what changed"), cells, (False, False, False, False))


def _kernel(each: BaselineComparison) -> str:
    if each.before is None or not (each.before.kernel_digest and each.after.kernel_digest):
        return UNKNOWN
    return "changed" if "kernel_digest" in each.changed else "same"


def _changes_in_words(each: BaselineComparison) -> Iterator[str]:
    """Describe each changed figure by its old and new value."""
    before, after = each.before, each.after
    if before is None:
        yield f"it {each.absent}"
        return
    figures = [name for name in each.changed if name != "kernel_digest"]
    if "verdict" in figures:
        yield f"{before.verdict} -> {after.verdict}"
    if {"read_bytes", "write_bytes", "local_bytes"}.intersection(figures):
        yield from _bytes(before, after)
    elif "claimed_bytes" in figures:
        yield f"claimed {_arrow_of_bytes(before.claimed_bytes, after.claimed_bytes)}"
    if "error_over_budget" in figures:
        old, new = before.error_over_budget, after.error_over_budget
        assert old is not None and new is not None
        digits = next((n for n in (3, 4, 5) if f"{old:.{n}f}" != f"{new:.{n}f}"), 9)
        yield f"error / budget {old:.{digits}f} -> {new:.{digits}f}"
    if "time" in figures:
        assert before.time is not None and after.time is not None
        yield f"time {_arrow(before.time.median, after.time.median, 4)} ms"
    if not figures:
        yield "nothing" if before.time is None or after.time is None else _within_noise(before, after)


def _bytes(before: Figures, after: Figures) -> Iterator[str]:
    """The total, and reads and writes if the total is the same or hides half of the change."""
    if before.total_bytes != after.total_bytes:
        yield f"total {_arrow_of_bytes(before.total_bytes, after.total_bytes)}"
    else:
        yield f"read {_arrow_of_bytes(before.read_bytes, after.read_bytes)}"
        yield f"written {_arrow_of_bytes(before.write_bytes, after.write_bytes)}"
        if before.local_bytes != after.local_bytes and None not in (before.local_bytes, after.local_bytes):
            yield f"local {_arrow_of_bytes(before.local_bytes, after.local_bytes)}"


def _arrow_of_bytes(old: int | None, new: int | None) -> str:
    assert old is not None and new is not None
    smallest = smallest_of([old, new, max(1, abs(new - old))])
    then, now = mib(old, smallest), mib(new, smallest)
    if then == now or abs(new - old) < 0.0001 * old:
        return f"{old:,} -> {new:,} bytes ({new - old:+,})"
    return f"{then} -> {now} MiB ({_percent(old, new)})"


def _arrow(old: float, new: float, digits: int) -> str:
    return f"{old:,.{digits}f} -> {new:,.{digits}f} ({_percent(old, new)})"


def _percent(old: float, new: float) -> str:
    return f"{100 * (new / old - 1):+.2f} %" if old else "from 0"


def _within_noise(before: Figures, after: Figures) -> str:
    assert before.time is not None and after.time is not None
    return f"nothing beyond noise: time {before.time.median:,.4f} -> {after.time.median:,.4f} ms"


def _columns(each: BaselineComparison | None) -> dict[str, Any]:
    if each is None:
        return {}
    before = each.before
    columns: dict[str, Any] = {"against": each.then, "changed": None if before is None else " ".join(each.changed)}
    if before is not None:
        columns |= {
            "against_verdict": before.verdict,
            "against_total_bytes": before.total_bytes,
            "against_error_over_budget": finite(before.error_over_budget),
            "against_time_ms": None if before.time is None else before.time.median,
        }
    return columns


def _object(each: BaselineComparison) -> dict[str, Any]:
    return {
        "variant": each.variant,
        "then": each.then,
        "absent": each.absent,
        "changed": None if each.before is None else list(each.changed),
        "before": _figures_object(each.before),
        "after": _figures_object(each.after),
    }


def _figures_object(figures: Figures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    names = [field.name for field in dataclasses.fields(figures) if field.name != "time"]
    own = {name: finite(getattr(figures, name)) for name in names}
    time = figures.time
    ends = (None, None, None) if time is None else (time.low, time.median, time.high)
    return own | dict(zip(("time_low_ms", "time_ms", "time_high_ms"), map(finite, ends)))
