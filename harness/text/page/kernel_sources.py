"""Each variant's launches, files and source lines, with the cost of every line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from harness.execution.outcome import Comparison, Row
from harness.execution.traffic.line_costs import LineCost
from harness.execution.variant_report import LaunchShape, VariantReport
from harness.support.source_text import short_name, source_lines
from harness.text.comparison_report import finding_text
from harness.text.page.markup import (
    Cell,
    Header,
    escape,
    heat,
    identifier,
    number,
    paragraph,
    row,
    scrolling,
    table,
    text_cell,
)
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.tables import UNKNOWN, mib, smallest_of

AROUND = 2
"""Lines of context around a line that costs something, in files that a kernel only includes."""
MOST_WHOLE = 1500
"""Maximum lines of a file that is shown whole; of longer ones only lines that cost something are shown."""


def sources_section(comparison: Comparison, reports: Mapping[str, VariantReport]) -> Section:
    """A collapsible part per variant, in the order of the ranking, with the first one open."""
    rows = [each for each in comparison.rows if each.variant in reports]
    parts = [_variant(each, reports[each.variant], number_of == 0) for number_of, each in enumerate(rows)]
    controls = (
        '<div class="controls" id="source-controls" hidden><label><input type="checkbox" id="source-costly">'
        "only lines that cost something</label>"
        '<button type="button" id="source-open">Open all</button>'
        '<button type="button" id="source-close">Close all</button></div>'
    )
    legend = paragraph(
        "MiB: read and written at the sectors level, all launches together, shaded by the share of the variant's "
        "costliest line. sectors / request and wavefronts / request (bank conflicts of shared memory): beside each the "
        "fewest possible, shaded by the waste. Inlined functions count at the line that calls them; of files that are "
        "only included, the lines that cost something, and those around them."
    )
    html = f"{legend}{controls}{''.join(parts)}"
    return Section(
        "sources", "Source, line by line", html, {}, resource("kernel_sources.js"), resource("kernel_sources.css")
    )


def _variant(ranked: Row, report: VariantReport, is_open: bool) -> str:
    account = report.account
    smallest = ranked.compulsory_bytes
    total = "bytes not counted" if account is None else f"{mib(account.moved_bytes, smallest)} MiB"
    launches = f"{len(report.launches)} launch{'es' if len(report.launches) != 1 else ''}"
    said = [ranked.verdict, total if report.launches else "", launches if report.launches else ""]
    found = len(ranked.findings or ())
    if found:
        said.append(f"{found} finding{'s' if found > 1 else ''}")
    summary = "".join(f'<span class="muted">{escape(text)}</span>' for text in said if text)
    body = []
    if ranked.reason is not None:
        body.append(paragraph(f"{ranked.verdict}: {ranked.reason}"))
    # Findings with a place are shown at their line.
    body += [paragraph(finding_text(each), "bad") for each in ranked.findings or () if each.place is None]
    if report.launches:
        body.append(_launches(ranked.variant, report, smallest))
        body += _files(ranked.variant, report)
        body += _unmeasured(report)
    return (
        f'<details class="sources-of" id="source-{identifier(ranked.variant)}"{" open" if is_open else ""}>'
        f"<summary><b>{escape(ranked.variant)}</b>{summary}</summary><div>{''.join(body)}</div></details>"
    )


def _unmeasured(report: VariantReport) -> Iterable[str]:
    """The kernels' source texts, if the cost of their lines is not known."""
    for kernel, text in report.texts:
        yield f'<h3><span class="code">{escape(kernel)}</span> <span class="muted">lines not counted</span></h3>'
        yield scrolling(f"Source of {kernel}", f"<pre>{escape(text)}</pre>")


def _launches(name: str, report: VariantReport, smallest: float) -> str:
    headers = [
        Header("launch"), Header("grid"), Header("block"), Header("dynamic shared\nbytes", True),
        Header("read\nMiB", True), Header("written\nMiB", True), Header("warp\ninstructions", True),
    ]  # fmt: skip
    parts = report.account.launches if report.account is not None else ()
    rows = []
    for position, launch in enumerate(report.launches):
        part = parts[position] if position < len(parts) else None
        moved = (UNKNOWN, UNKNOWN)
        if part is not None:
            moved = mib(part.read.sector_bytes, smallest), mib(part.written.sector_bytes, smallest)
        rows.append(row([*_shape(position, launch), number(moved[0]), number(moved[1]), _instructions(launch)]))
    return table(f"Launches of {name}", headers, rows)


def _shape(position: int, launch: LaunchShape) -> list[Cell]:
    clusters = "" if launch.cluster is None else f" in clusters of {_extents(launch.cluster, 'block')}"
    return [
        Cell(f"{position + 1} {escape(launch.kernel)}", is_head=True),
        text_cell(f"{_extents(launch.grid, 'block')}{clusters}"),
        text_cell(_extents(launch.block, "thread")),
        number(f"{launch.shared_bytes:,}"),
    ]


def _extents(extents: Sequence[int], unit: str) -> str:
    whole = math.prod(extents)
    many = f"{whole:,} {unit}{'' if whole == 1 else 's'}"
    return f"{' x '.join(map(str, extents))} = {many}" if len(extents) > 1 else many


def _instructions(launch: LaunchShape) -> Cell:
    return number(UNKNOWN if launch.warp_instructions is None else f"{launch.warp_instructions:,}")


# Files ---------------------------------------------------------------------------------------------------------------

HEADERS = (
    Header("line", True),
    Header("MiB", True),
    Header("sectors /\nrequest", True),
    Header("wavefronts /\nrequest", True),
    Header("source"),
    Header("buffers"),
)


def _files(name: str, report: VariantReport) -> Iterable[str]:
    by_file: dict[str, list[LineCost]] = {}
    for cost in report.lines:
        by_file.setdefault(cost.file, []).append(cost)
    kernels = [launch.kernel for launch in report.launches]
    order = sorted(by_file, key=lambda file: (not _defines(file, kernels), -_bytes(by_file[file]), file))
    for file in order:
        called = short_name(file) if file else "where the compiler names no file"
        size = mib(_bytes(by_file[file]), smallest_of([_bytes(by_file[file])]))
        yield f'<h3><span class="code">{escape(called)}</span> <span class="muted">{size} MiB</span></h3>'
        rows = _file_rows(file, by_file[file], _defines(file, kernels), report)
        yield table(f"{name}: {called}", HEADERS, rows).replace("<table>", '<table class="source">', 1)


def _bytes(costs: Iterable[LineCost]) -> int:
    return sum(cost.moved_bytes for cost in costs)


def _defines(file: str, kernels: Sequence[str]) -> bool:
    """Whether the file defines one of the kernels, so that all of it is shown."""
    lines = source_lines(file)
    text = "\n".join(lines if len(lines) <= MOST_WHOLE else ())
    return any(re.search(rf"\b{re.escape(kernel)}\b\s*\(", text) for kernel in kernels)


def _file_rows(file: str, costs: Sequence[LineCost], whole: bool, report: VariantReport) -> Iterable[str]:
    text = source_lines(file)
    by_line = {cost.line: cost for cost in costs}
    most = max((cost.moved_bytes for cost in report.lines), default=0)
    near = {at + off for at in by_line for off in range(-AROUND, AROUND + 1)}
    lines = [n for n in range(1, len(text) + 1) if whole or n in near]
    lines += sorted(n for n in by_line if not 1 <= n <= len(text))  # lines whose text is not available
    before = 0
    for at in lines:
        if at > before + 1 and before + 1 <= len(text):
            yield f'<tr class="gap quiet"><td colspan="6">{_left_out(before + 1, min(at - 1, len(text)))}</td></tr>'
        before = at
        source = text[at - 1].expandtabs(4) if 1 <= at <= len(text) else ""
        yield from _line_rows(at, source, by_line.get(at), most)
    if text and before < len(text):
        yield f'<tr class="gap quiet"><td colspan="6">{_left_out(before + 1, len(text))}</td></tr>'


def _left_out(first: int, last: int) -> str:
    return f"line {first} costs nothing" if first == last else f"lines {first} to {last} cost nothing"


def _line_rows(at: int, source: str, cost: LineCost | None, most: int) -> Iterable[str]:
    code = Cell(escape(source), classes="code")
    label = Cell(str(at) if at else UNKNOWN, True, "line")
    if cost is None:
        yield row([label, Cell("", span=3), code, Cell("")], "quiet")
        return
    cells = [
        label,
        number(mib(cost.moved_bytes, 0) if cost.moved_bytes else "", heat(cost.moved_bytes / max(1, most))),
        _rate(cost.sectors_per_request, cost.fewest_sectors_per_request),
        _rate(cost.wavefronts_per_request, cost.fewest_wavefronts_per_request),
        code,
        text_cell(", ".join([*cost.uses, *(["shared"] if cost.shared_requests else [])]), "use"),
    ]
    yield row(cells, "most" if cost.moved_bytes == most > 0 else "")
    for finding in cost.findings:
        yield row([Cell(""), Cell(escape(finding_text(finding)), span=5)], "finding")


def _rate(rate: float | None, fewest: float | None) -> Cell:
    """Such as `4.00 (4.00)`, shaded by the wasted share."""
    if rate is None or fewest is None:
        return number("")
    waste = 1 - fewest / rate if rate else 0.0
    return Cell(f'{rate:.2f} <span class="muted fewest">({fewest:.2f})</span>', True, heat(waste, "bad"))
