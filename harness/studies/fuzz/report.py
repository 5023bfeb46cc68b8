"""Renders campaigns as text for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from typing import Any

from harness.execution.judging.accuracy import Element
from harness.model.cases.case import Case
from harness.model.finding import RACES
from harness.studies.fuzz.diagnosis import diagnosis_of, diagnosis_of_case
from harness.studies.fuzz.drawing.covering import BUILD
from harness.studies.fuzz.finding import Answer, Finding
from harness.studies.fuzz.result import CampaignResult, Failure
from harness.support.version import with_version
from harness.text.report import Report, Table, Verbatim
from harness.text.tables import UNKNOWN, finite, json_text

Larger = tuple[Case, Finding] | None
_HEADERS = ("variant", "verdict", "examples", "refused", "pairs\ncovered", "per second", "error /\nbudget")
_CSV = ("variant", "verdict", "kind", "reason", "examples", "refused", "seconds", "error_over_budget", "seed", "replay")


def campaigns_report(results: Sequence[CampaignResult], device: str, options: Sequence[str] = ()) -> Report:
    """The report of campaigns."""
    explained = [result for result in results if result.reason is not None]
    return Report(
        paragraphs=lambda: [
            _table(results),
            *(part for result in explained for part in _failure_text(result, options)),
        ],
        notes=lambda: [
            *(
                f"{r.variant}: the harness itself failed, not the variant: {fault}"
                for r in results
                for fault in r.faults
            ),
            *(f"{r.variant}: declared to fail, not drawn: {', '.join(r.left_out)}." for r in results if r.left_out),
            *(
                f"{r.variant}: not covered: {', '.join(names)}."
                for r in results
                if r.failure is None and (names := _not_met(r))
            ),
            f"Device: {device}. Seed {results[0].seed}.",
            *(_stored(result) for result in results if result.stored_failures),
            *(_undecided(result) for result in results if result.undecided),
            "error / budget: the largest among the examples that passed. refused: examples that the variant does not "
            "support, which were not checked.",
            *(
                "pairs covered: pairs of classes of values, from two different axes, that occurred together in an "
                f"example. Axes: {axes}."
                for axes in _axes(results)
            ),
        ],
        records=lambda: ([{key: _object(r, options).get(key) for key in _CSV} for r in results], _CSV),
        document=lambda: {"device": device, "campaigns": [_object(result, options) for result in results]},
    )


def _table(results: Sequence[CampaignResult]) -> Table:
    cells = [
        (
            r.variant,
            r.verdict,
            f"{r.examples:,}",
            f"{r.refused:,}",
            UNKNOWN if r.coverage is None else f"{r.coverage.met:,} of {r.coverage.pairs:,}",
            UNKNOWN if r.examples == 0 else f"{r.examples_per_second:,.{0 if r.examples_per_second >= 10 else 1}f}",
            UNKNOWN if r.hardest_ratio is None else f"{r.hardest_ratio:.3f}",
        )
        for r in results
    ]
    return Table(_HEADERS, cells, (False, False, True, True, True, True, True))


def _undecided(result: CampaignResult) -> str:
    """The share of a campaign that is not decisive."""
    ran = result.examples - result.refused
    what = f"{result.undecided:,} of {ran:,} examples {'proves' if result.undecided == 1 else 'prove'} nothing"
    return f"{result.variant}: {what}, because a trivial wrong result, such as zeros, would pass, too."


def _stored(result: CampaignResult) -> str:
    """That not all cases are the seed's."""
    number = result.stored_failures
    what = "a stored failure of an earlier campaign was" if number == 1 else f"{number} stored failures were"
    again = ""
    if result.failure and result.failure.remembered:
        again = f" and {'' if number == 1 else 'one '}failed again, so no new examples were tried"
    return f"{result.variant}: {what} tried first{again}."


def _axes(results: Sequence[CampaignResult]) -> list[str]:
    """The axes of the campaigns' operations, in words."""
    return list(dict.fromkeys(", ".join(r.coverage.axes) for r in results if r.coverage is not None))


def _not_met(result: CampaignResult) -> list[str]:
    """Features and value classes that no example had."""
    coverage = result.coverage
    if coverage is None:
        return []
    of_axes = [f"{axis} {value}" for axis, values in coverage.not_met.items() if axis != BUILD for value in values]
    return [*coverage.not_met_in_builds, *of_axes]


def render_replay(variant: str, case: Case, answer: Answer, format: str, larger: Larger = None) -> str:
    """Render one case that was run again; `larger` is a larger case that fails in the same way."""
    if format in ("json", "csv"):
        return json_text(with_version(_replay_object(variant, case, answer, larger)))
    return f"{variant}\n{_aligned(_replay_lines(case, answer, larger))}\n"


def replay_report(variant: str, case: Case, answer: Answer, larger: Larger = None) -> Report:
    """The report of a case that was run again."""
    found = {"variant": variant, "refusal": answer.refusal, "error_over_budget": finite(answer.error_over_budget)}
    if answer.finding is not None:
        found |= {"kind": answer.finding.kind, "reason": answer.finding.reason}
    return Report(
        paragraphs=lambda: [f"{variant}", Verbatim(_aligned(_replay_lines(case, answer, larger)))],
        notes=lambda: [],
        records=lambda: ([found], ("variant", "kind", "reason", "refusal", "error_over_budget")),
        document=lambda: _replay_object(variant, case, answer, larger),
    )


def _replay_object(variant: str, case: Case, answer: Answer, larger: Larger) -> dict[str, Any]:
    return {
        "variant": variant,
        "case": json.loads(case.to_json()),
        **_finding_object(answer),
        "diagnosis": None if answer.finding is None else diagnosis_of_case(case, answer.finding, larger),
        "larger_case": None if larger is None else json.loads(larger[0].to_json()),
        "larger": None if larger is None else _finding_fields(larger[1]),
    }


def _replay_lines(case: Case, answer: Answer, larger: Larger) -> list[tuple[str, str]]:
    lines = [("problem", case_line(case))]
    if answer.refusal is not None:
        lines.append(("refused", answer.refusal))
    elif answer.finding is None and answer.fault is not None:
        lines.append(("unknown", "the harness itself failed, which says nothing about the variant"))
    elif answer.finding is None:
        ratio = UNKNOWN if answer.error_over_budget is None else f"{answer.error_over_budget:.3g}"
        lines.append(("passes", f"largest error / budget {ratio}"))
        if answer.undecided is not None:
            lines.append(("undecided", f"{answer.undecided} would pass, too"))
    else:
        diagnosis = diagnosis_of_case(case, answer.finding, larger)
        lines[:0] = [] if diagnosis is None else [("diagnosis", diagnosis)]
        lines += _finding_lines(answer.finding)
        if larger is not None:
            lines += _pattern_lines("larger", *larger, answer.finding)
    if answer.fault is not None:
        lines.append(("harness", answer.fault))
    return lines


def replay_command(variant: str, case: Case, options: Sequence[str] = ()) -> str:
    """The command line that runs the case again."""
    words = ["python", "-m", "harness", "fuzz", variant, *options, "--replay", case.to_json()]
    return shlex.join(words)


def _failure_text(result: CampaignResult, options: Sequence[str]) -> list[str | Verbatim]:
    """The description of a variant that did not pass."""
    failure = result.failure
    if failure is None:
        return [f"{result.variant}: {result.verdict}: {result.reason}"]
    found = "by repeating a stored failure" if failure.remembered else f"at example {failure.examples:,}"
    diagnosis = diagnosis_of(failure)
    lines = [
        *([] if diagnosis is None else [("diagnosis", diagnosis)]),
        ("smallest", case_line(failure.case)),
        ("needs", ", ".join(_takes(failure)) or "nothing beyond the simplest problem"),
        *_finding_lines(failure.finding),
        *_sanitizer_lines(failure),
        *(("fails at", tried.text) for tried in failure.lengths),
    ]
    larger = {failure.larger_case: ("larger", failure.larger_finding)}
    larger[failure.first_case] = "as found", failure.first_finding
    for case, (name, finding) in larger.items():
        if case != failure.case:
            lines += _pattern_lines(name, case, finding, failure.finding)
    if not failure.repeatable:
        lines.append(
            ("warning", "in a fresh process, it did not fail in the same way again: the failure may depend on timing")
        )
    lines.append(("replay", replay_command(result.variant, failure.case, options)))
    headline = (
        f"{result.variant}: {failure.finding.kind}, found {found}, "
        f"shrunk with {failure.shrinking:,} more examples in {result.shrink_seconds:.1f} s"
    )
    return [headline, Verbatim(_aligned(lines))]


def _finding_lines(finding: Finding) -> list[tuple[str, str]]:
    if finding.first is None:
        return [(finding.kind, finding.reason)]
    if finding.wrong is None:
        place = f"{finding.first.output} at {finding.first.place}: {_values(finding.first)}"
        return [(finding.kind, finding.reason), ("worst", place)]
    lines = [
        ("first wrong", f"{finding.first.output} at {finding.first.place}: {_values(finding.first)}"),
        ("wrong", f"{finding.wrong:,} of {finding.elements:,} elements of {finding.first.output}"),
    ]
    if finding.pattern is not None:
        lines.append(("pattern", finding.pattern))
    return lines


def _pattern_lines(name: str, case: Case, finding: Finding, smallest: Finding) -> list[tuple[str, str]]:
    """A case that fails as the smallest one does, and its pattern."""
    lines = [(name, case_line(case))]
    is_same_race = finding.kind in RACES and finding.kind == smallest.kind
    if finding.pattern or (finding.reason != smallest.reason and not is_same_race):
        lines.append(("pattern", finding.pattern or finding.reason))
    return lines


def _sanitizer_lines(failure: Failure) -> list[tuple[str, str]]:
    """What the sanitizer finds in addition to wrong values."""
    found = failure.sanitized
    return [] if found is None else [("sanitizer", f"{found.kind}: {found.reason}")]


def evidence(failure: Failure) -> list[tuple[str, str]]:
    """The probable cause of a failure and the pattern of a larger problem, as far as they are known."""
    diagnosis = diagnosis_of(failure)
    lines = [] if diagnosis is None else [("diagnosis", diagnosis)]
    lines += _sanitizer_lines(failure)
    if failure.larger_case != failure.case and failure.larger_finding.pattern:
        lines += _pattern_lines("larger", failure.larger_case, failure.larger_finding, failure.finding)
    return lines


def _values(element: Element) -> str:
    budget = f"budget {element.allowed:.3g}" if element.allowed > 0 else "only the exact value passes"
    return f"got {element.got:.9g}, expected {element.answer:.9g}, {budget}"


def case_line(case: Case) -> str:
    """The problem and its inputs in one line."""
    parts = [f"inputs {case.regime}, seed {case.seed}"]
    for edit in case.edits:
        parts.append(f"{edit.array}[{', '.join(map(str, edit.index))}] = {edit.value:g}")
    if case.tile is not None:
        parts.append(f"tile {case.tile}")
    if case.check is not None:
        parts.append(f"property checked: {case.check}")
    return f"{case.problem.headline}; {', '.join(parts)}"


def _takes(failure: Failure) -> list[str]:
    """The features of the smallest case beyond the plainest problem, all of which it needs to fail."""
    case = failure.case
    takes = [*failure.takes]
    if case.regime != "normal":
        takes.append(f"{case.regime} inputs")
    if case.edits:
        takes.append("the edited elements")
    return takes


def _aligned(lines: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    indent = " " * (width + 4)
    return "\n".join(f"  {name:{width}}  " + text.replace("\n", f"\n{indent}") for name, text in lines)


def _object(result: CampaignResult, options: Sequence[str]) -> dict[str, Any]:
    failure = result.failure
    return {
        "variant": result.variant,
        "verdict": result.verdict,
        "reason": result.reason,
        "kind": failure.finding.kind if failure else None,
        "examples": result.examples,
        "refused": result.refused,
        "refusals": dict(result.refusals),
        "undecided": result.undecided,
        "seconds": result.seconds,
        "shrink_seconds": result.shrink_seconds,
        "seed": result.seed,
        "stored_failures": result.stored_failures,
        "error_over_budget": result.hardest_ratio,
        "left_out": list(result.left_out),
        "coverage": _coverage_object(result),
        "not_met": None if result.coverage is None else _not_met(result),
        "hardest": json.loads(result.hardest.to_json()) if result.hardest else None,
        "failure": _failure_object(failure) if failure else None,
        "harness_faults": list(result.faults),
        "replay": replay_command(result.variant, failure.case, options) if failure else None,
    }


def _coverage_object(result: CampaignResult) -> dict[str, Any] | None:
    coverage = result.coverage
    if coverage is None:
        return None
    not_met = {axis: list(values) for axis, values in coverage.not_met.items()}
    values = {axis: {"met": met, "of": of} for axis, (met, of) in coverage.values.items()}
    return {
        "values": values,
        "pairs_met": coverage.met,
        "pairs": coverage.pairs,
        "axes": list(coverage.axes),
        "not_met": not_met,
    }


def _failure_object(failure: Failure) -> dict[str, Any]:
    return {
        "case": json.loads(failure.case.to_json()),
        "tiles": list(failure.tiles),
        **_finding_fields(failure.finding),
        "first_case": json.loads(failure.first_case.to_json()),
        "first": _finding_fields(failure.first_finding),
        "larger_case": json.loads(failure.larger_case.to_json()),
        "larger": _finding_fields(failure.larger_finding),
        "diagnosis": diagnosis_of(failure),
        "takes": list(failure.takes),
        "sanitizer": _finding_fields(failure.sanitized) if failure.sanitized else None,
        "lengths": {
            each.axis: {"tile": each.tile, "fails": list(each.fails), "passes": list(each.passes), "text": each.text}
            for each in failure.lengths
        },
        "shrinking": failure.shrinking,
        "repeatable": failure.repeatable,
        "remembered": failure.remembered,
    }


def _finding_fields(finding: Finding) -> dict[str, Any]:
    fields = {key: value for key, value in dataclasses.asdict(finding).items() if key != "first"}
    element = finding.first
    # JSON has neither NaN nor infinity; `reason` and `pattern` say what they were.
    fields["first_wrong"] = (
        {key: finite(value) for key, value in dataclasses.asdict(element).items()} if element else None
    )
    return fields


def _finding_object(answer: Answer) -> dict[str, Any]:
    return {
        "finding": _finding_fields(answer.finding) if answer.finding else None,
        "refusal": answer.refusal,
        "undecided": answer.undecided,
        "error_over_budget": finite(answer.error_over_budget),
        "harness_fault": answer.fault,
    }
