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
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.page.templates import render

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

    @property
    def number(self) -> str:
        """The first line of the algorithm that the step names, if any."""
        return "" if self.step is None or not self.step.numbers else str(self.step.numbers[0])

    @property
    def label(self) -> str:
        """The heading of the step."""
        return OUTSIDE if self.step is None else f"Line{'s' if len(self.step.numbers) > 1 else ''} {self.step.label}"

    @property
    def idea(self) -> str:
        """What the step does, in the words of its comment."""
        return "" if self.step is None else self.step.idea.partition(": ")[2] or self.step.idea


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
    """A section with every variant whose kernels name lines of an algorithm; two of them are shown at a time.

    With fewer than two, it only says which variants name none.
    """
    title = "Two variants, line by line of the algorithm"
    variants = {
        each.variant: steps
        for each in comparison.rows
        if (report := reports.get(each.variant)) is not None and (steps := step_costs(report))
    }
    without = [each.variant for each in comparison.rows if each.variant in reports and each.variant not in variants]
    if len(variants) < 2:
        variants = {}  # a variant next to itself shows nothing
    html = render(
        "algorithm_comparison.html",
        without=without,
        variants=variants,
        pair=_first_pair(comparison, variants) if variants else (),
        smallest=comparison.problem.compulsory_bytes,
        algorithms_of=_algorithms,
        files_of=_files,
        lines_of=_lines,
    )
    if not variants:
        return Section("algorithm", title, html, is_empty=True)
    script, style = resource("algorithm_comparison.js"), resource("algorithm_comparison.css")
    return Section("algorithm", title, html, {}, script, style, folded="Show the kernels side by side")


def _first_pair(comparison: Comparison, variants: Mapping[str, Sequence[StepCost]]) -> tuple[str, str]:
    """The best variant and the best one of another algorithm, else the next best."""
    ranked = [row for row in comparison.rows if row.variant in variants]
    others = [row for row in ranked[1:] if row.algorithm != ranked[0].algorithm] or ranked[1:]
    return ranked[0].variant, others[0].variant


def _algorithms(steps: Sequence[StepCost]) -> str:
    return ", ".join(sorted({text for file in _names(steps) if (text := cited_algorithm(source_lines(file)))}))


def _files(steps: Sequence[StepCost]) -> str:
    return " and ".join(map(short_name, _names(steps)))


def _names(steps: Sequence[StepCost]) -> list[str]:
    return list(dict.fromkeys(step.file for step in steps if step.file))


def _lines(each: StepCost) -> list[tuple[int, str, LineCost | None]]:
    """Number, text and cost of each line of a step, then of the functions that only it calls."""
    if each.step is None:
        return [(c.line, (_text(c) or short_name(c.file)).strip(), c) for c in each.costs if c.sector_bytes]
    text = source_lines(each.file)
    costs = {cost.line: cost for cost in each.costs}
    first_code = next((n for n in each.step.lines if not text[n - 1].lstrip().startswith(("//", "# "))), None)
    lines = [n for n in each.step.lines if first_code is not None and n >= first_code]
    indent = min((n for line in lines if (n := indent_of(text[line - 1]))), default=0)
    called = [(c.line, _text(c).strip(), c) for c in each.costs if c.line not in each.step.lines]
    return [*((n, text[n - 1][min(indent, indent_of(text[n - 1])) :], costs.get(n)) for n in lines), *called]


def _text(cost: LineCost) -> str:
    lines = source_lines(cost.file)
    return lines[cost.line - 1] if 1 <= cost.line <= len(lines) else ""
