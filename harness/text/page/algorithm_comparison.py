"""Two variants next to each other, by line of the paper's algorithm: its source lines and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.execution.outcome import Comparison
from harness.execution.traffic.line_costs import LineCost
from harness.execution.variant_report import VariantReport
from harness.support.algorithm_lines import (
    AlgorithmStep,
    algorithm_steps,
    cited_algorithm,
    enclosing_function,
    indent_of,
    steps_that_call,
)
from harness.support.source_text import short_name, source_lines
from harness.text.page.markup import escape, heat, identifier, paragraph
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.tables import mib

OUTSIDE = "outside of any line that the comments name"


@dataclass(frozen=True)
class StepCost:
    """One line of the algorithm, as one kernel implements it."""

    file: str
    """File as the compiler names it; empty for the rest outside of any line."""
    step: AlgorithmStep | None
    """The step; None for the rest outside of any line."""
    costs: tuple[LineCost, ...]
    """Costs of its source lines, and of functions that no other line of the algorithm calls."""

    @property
    def sector_bytes(self) -> int:
        """Bytes read plus written at the `sectors` level."""
        return sum(cost.sector_bytes for cost in self.costs)


def step_costs(report: VariantReport) -> tuple[StepCost, ...]:
    """The steps of all of a variant's files, then the rest; their costs add up to the total."""
    found: list[StepCost] = []
    outside: list[LineCost] = []
    for file in dict.fromkeys(cost.file for cost in report.lines):
        steps = algorithm_steps(source_lines(file))
        costs: dict[int | None, list[LineCost]] = {}
        for cost in report.lines:
            if cost.file == file:
                costs.setdefault(_step_of(cost, steps), []).append(cost)
        found += [StepCost(file, step, tuple(costs.get(number, ()))) for number, step in enumerate(steps)]
        outside += costs.get(None, ())
    if found and outside:
        found.append(StepCost("", None, tuple(outside)))
    return tuple(found)


def _step_of(cost: LineCost, steps: Sequence[AlgorithmStep]) -> int | None:
    """Index of the step that contains a line, or of the only step that calls the function that contains it."""
    own = next((number for number, step in enumerate(steps) if cost.line in step.lines), None)
    text = source_lines(cost.file)
    if own is not None or not 1 <= cost.line <= len(text):
        return own
    function = enclosing_function(text, cost.line)
    calling = [] if function is None else steps_that_call(text, steps, function)
    if len({step.numbers for step in calling}) != 1:
        return None
    return steps.index(calling[0])


def algorithm_section(comparison: Comparison, reports: Mapping[str, VariantReport]) -> Section:
    """A section with every variant whose kernels name lines of an algorithm; two of them are shown at a time."""
    title = "Two variants, line by line of the algorithm"
    step_costs = {
        each.variant: steps
        for each in comparison.rows
        if (report := reports.get(each.variant)) is not None and (steps := step_costs(report))
    }
    if not step_costs:
        nobody = "No kernel here names lines of an algorithm; a comment like '// Line 8: S = Q K^T.' does."
        return Section("algorithm", title, paragraph(nobody))
    pair = _first_pair(comparison, step_costs)
    columns = "".join(
        _column(name, steps, comparison.problem.compulsory_bytes, pair.index(name) if name in pair else None)
        for name, steps in step_costs.items()
    )
    parts = [
        paragraph(
            "Comments in the kernels name the lines of the paper's algorithm. Where both follow the same one, equal "
            "lines stand beside each other, in the paper's order; else each has its own, in the order of its source. "
            "MiB at the sectors level, and the share of the variant's total; wavefronts / request of shared memory "
            "with the fewest possible."
        ),
        '<div class="controls" id="algorithm-controls" hidden>',
        *(_select(side, step_costs, pair) for side in (0, 1)),
        "</div>",
        f'<div class="algorithms" id="algorithms">{columns}</div>',
    ]
    return Section(
        "algorithm",
        title,
        "\n".join(parts),
        {},
        resource("algorithm_comparison.js"),
        resource("algorithm_comparison.css"),
    )


def _first_pair(comparison: Comparison, step_costs: Mapping[str, Sequence[StepCost]]) -> tuple[str, str]:
    """The best variant and the best one of another algorithm, else the next best, else itself."""
    ranked = [row for row in comparison.rows if row.variant in step_costs]
    others = [row for row in ranked[1:] if row.algorithm != ranked[0].algorithm] or ranked[1:] or ranked
    return ranked[0].variant, others[0].variant


def _select(side: int, step_costs: Mapping[str, Sequence[StepCost]], pair: tuple[str, str]) -> str:
    options = "".join(
        f'<option value="{escape(name)}"{" selected" if name == pair[side] else ""}>{escape(name)}</option>'
        for name in step_costs
    )
    words = "Left" if side == 0 else "Right"
    return f'<label>{words} <select id="algorithm-{side}">{options}</select></label>'


def _column(name: str, steps: Sequence[StepCost], smallest: float, side: int | None) -> str:
    total = sum(step.sector_bytes for step in steps)
    cited = {text for step in steps if step.file and (text := cited_algorithm(source_lines(step.file)))}
    algorithm = ", ".join(sorted(cited))
    files = " and ".join(short_name(file) for file in dict.fromkeys(step.file for step in steps if step.file))
    head = f"<h3>{escape(name)} <small>{escape(algorithm)}; <span class=code>{escape(files)}</span></small></h3>"
    shown = "".join(_step(name, step, total, smallest) for step in steps)
    return (
        f'<div class="algorithm" id="algorithm-of-{identifier(name)}" data-variant="{escape(name)}" '
        f'data-algorithm="{escape(algorithm)}"{"" if side is not None else " hidden"}>{head}{shown}</div>'
    )


def _step(name: str, each: StepCost, total: int, smallest: float) -> str:
    share = each.sector_bytes / total if total else 0.0
    size = f"{mib(each.sector_bytes, smallest)} MiB, {100 * share:.1f} %" if each.sector_bytes else "no bytes"
    label = OUTSIDE if each.step is None else f"Line{'s' if len(each.step.numbers) > 1 else ''} {each.step.label}"
    number = "" if each.step is None or not each.step.numbers else str(each.step.numbers[0])
    idea = "" if each.step is None else f"<p>{escape(each.step.idea.partition(': ')[2] or each.step.idea)}</p>"
    lines = _outside_rows(each) if each.step is None else _step_rows(each)
    code = ""
    if lines:
        head = "<tr><th>line</th><th>MiB</th><th>wavefronts / request</th><th>source</th></tr>"
        code = (
            f'<div class="scroll" tabindex="0" role="region" aria-label="Source of {escape(label)}"><table>'
            f'<thead class="unseen">{head}</thead><tbody>{lines}</tbody></table></div>'
        )
    return (
        f'<article class="step" data-number="{number}" data-of="{escape(name)}"><h4>{escape(label)} '
        f'<span class="{heat(share)}">{size}</span></h4>{idea}{code}</article>'
    )


def _step_rows(each: StepCost) -> str:
    assert each.step is not None
    text = source_lines(each.file)
    costs = {cost.line: cost for cost in each.costs}
    first_code = next((n for n in each.step.lines if not text[n - 1].lstrip().startswith(("//", "# "))), None)
    lines = [n for n in each.step.lines if first_code is not None and n >= first_code]
    indent = min((n for line in lines if (n := indent_of(text[line - 1]))), default=0)
    called = [_line(cost.line, _text(cost).strip(), cost) for cost in each.costs if cost.line not in each.step.lines]
    return "".join(
        [*(_line(n, text[n - 1][min(indent, indent_of(text[n - 1])) :], costs.get(n)) for n in lines), *called]
    )


def _outside_rows(each: StepCost) -> str:
    return "".join(
        _line(cost.line, (_text(cost) or short_name(cost.file)).strip(), cost)
        for cost in each.costs
        if cost.sector_bytes
    )


def _text(cost: LineCost) -> str:
    lines = source_lines(cost.file)
    return lines[cost.line - 1] if 1 <= cost.line <= len(lines) else ""


def _line(at: int, source: str, cost: LineCost | None) -> str:
    size, banks = "", ""
    if cost is not None and cost.count.requests:
        size = mib(cost.sector_bytes, 0)
    if cost is not None and cost.wavefronts_per_request is not None:
        fewest = cost.fewest_wavefronts_per_request or 0.0
        banks = f"{cost.wavefronts_per_request:.2f} ({fewest:.2f})"
    return (
        f'<tr><td class="number line">{at}</td><td class="number">{size}</td><td class="number">{banks}</td>'
        f'<td class="code">{escape(source)}</td></tr>'
    )
