"""Each variant's launches, files and source lines, with the cost of every line."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.execution.outcome import Comparison
from harness.execution.traffic.line_costs import LineCost
from harness.execution.variant_report import VariantReport
from harness.support.source_text import short_name, source_line, source_lines
from harness.text.findings import finding_text
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.page.templates import render
from harness.text.tables import mib, smallest_of

AROUND = 2
"""Lines of context around a line that costs something, in files that a kernel only includes."""
MOST_WHOLE = 1500
"""Maximum lines of a file that is shown whole; of longer ones only lines that cost something are shown."""


def sources_section(comparison: Comparison, reports: Mapping[str, VariantReport], own: Collection[str] = ()) -> Section:
    """A collapsible part per variant, in the order of the ranking; the user's `own` are open, or else the first."""
    shown = [row.variant for row in comparison.rows if row.variant in reports]
    opened = [name for name in shown if name in own] or shown[:1]
    html = render(
        "kernel_sources.html",
        variants=[(row, reports[row.variant]) for row in comparison.rows if row.variant in reports],
        files=_files,
        opened=opened,
        costliest=_costliest,
        extents=_extents,
        finding_text=finding_text,
    )
    script, style = resource("kernel_sources.js"), resource("kernel_sources.css")
    return Section("sources", "Source, line by line", html, {}, script, style)


def _extents(extents: Sequence[int], unit: str) -> str:
    whole = math.prod(extents)
    many = f"{whole:,} {unit}{'' if whole == 1 else 's'}"
    return f"{' x '.join(map(str, extents))} = {many}" if len(extents) > 1 else many


@dataclass(frozen=True)
class _Costliest:
    """The line that moves most bytes."""

    place: str
    size: str
    """MiB."""
    percent: str
    text: str


def _costliest(report: VariantReport) -> _Costliest | None:
    """None if no line with a place moves bytes."""
    line = max((cost for cost in report.lines if cost.line), key=lambda cost: cost.moved_bytes, default=None)
    if line is None or not line.moved_bytes:
        return None
    return _Costliest(
        f"{short_name(line.file)}:{line.line}",
        mib(line.moved_bytes, smallest_of([line.moved_bytes])),
        f"{100 * line.moved_bytes / _bytes(report.lines):.0f}",
        source_line(line.file, line.line) or "",
    )


@dataclass(frozen=True)
class _Line:
    """A line of a file, or the place of lines that are left out."""

    number: int
    """Line number; 0 if the compiler names none."""
    source: str
    """Its text, or what is left out."""
    cost: LineCost | None = None
    gap: bool = False
    """Whether lines are left out here."""


@dataclass(frozen=True)
class _File:
    """A source file with its lines."""

    name: str
    size: str
    """MiB."""
    most: int
    """Bytes of the variant's costliest line."""
    lines: Sequence[_Line]


def _files(report: VariantReport) -> list[_File]:
    """Files that define one of the kernels first, then by bytes."""
    by_file: dict[str, list[LineCost]] = {}
    for cost in report.lines:
        by_file.setdefault(cost.file, []).append(cost)
    kernels = [launch.kernel for launch in report.launches]
    most = max((cost.moved_bytes for cost in report.lines), default=0)
    return [
        _File(
            short_name(file) if file else "where the compiler names no file",
            mib(_bytes(costs), smallest_of([_bytes(costs)])),
            most,
            list(_file_lines(file, costs, _defines(file, kernels))),
        )
        for file, costs in sorted(
            by_file.items(), key=lambda item: (not _defines(item[0], kernels), -_bytes(item[1]), item[0])
        )
    ]


def _bytes(costs: Iterable[LineCost]) -> int:
    return sum(cost.moved_bytes for cost in costs)


def _defines(file: str, kernels: Sequence[str]) -> bool:
    """Whether the file defines one of the kernels, so that all of it is shown."""
    lines = source_lines(file)
    text = "\n".join(lines if len(lines) <= MOST_WHOLE else ())
    return any(re.search(rf"\b{re.escape(kernel)}\b\s*\(", text) for kernel in kernels)


def _file_lines(file: str, costs: Sequence[LineCost], whole: bool) -> Iterable[_Line]:
    text = source_lines(file)
    by_line = {cost.line: cost for cost in costs}
    near = {at + off for at in by_line for off in range(-AROUND, AROUND + 1)}
    lines = [n for n in range(1, len(text) + 1) if whole or n in near]
    lines += sorted(n for n in by_line if not 1 <= n <= len(text))  # lines whose text is not available
    before = 0
    for at in lines:
        if at > before + 1 and before + 1 <= len(text):
            yield _left_out(before + 1, min(at - 1, len(text)))
        before = at
        yield _Line(at, text[at - 1].expandtabs(4) if 1 <= at <= len(text) else "", by_line.get(at))
    if text and before < len(text):
        yield _left_out(before + 1, len(text))


def _left_out(first: int, last: int) -> _Line:
    text = f"line {first} costs nothing" if first == last else f"lines {first} to {last} cost nothing"
    return _Line(first, text, gap=True)
