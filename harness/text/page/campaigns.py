"""Campaigns of `fuzz`: the cases tried, and the smallest failing case with the pattern of its errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.model.cases.case import Case
from harness.text.page.markup import Cell, Header, escape, number, paragraph, row, table, text_cell
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.tables import UNKNOWN


def campaigns_section(campaigns: Sequence[Mapping[str, Any]] | None) -> Section:
    """`campaigns` are those in the JSON of `fuzz`; None if none were requested."""
    title = "Campaigns"
    if campaigns is None:
        return Section(
            "campaigns", title, paragraph("No campaign was asked for; --fuzz N tries N problems of each variant.")
        )
    rows = [_row(each) for each in campaigns]
    failed = [_failure(each) for each in campaigns if each["verdict"] != "pass"]
    note = paragraph(
        "Each campaign draws problems for one variant, small ones mostly, and holds every answer against the oracle; "
        "what fails is shrunk. refused: not taken, so unknown. error / budget: the largest of the examples that passed."
    )
    html = table("Campaigns", HEADERS, rows, sortable=True) + note + "".join(failed)
    return Section("campaigns", title, html, style=resource("campaigns.css"))


HEADERS = (
    Header("variant"),
    Header("verdict"),
    Header("examples", True),
    Header("refused", True),
    Header("error /\nbudget", True),
    Header("seed", True),
    Header("what fails"),
)


def _row(each: Mapping[str, Any]) -> str:
    ratio = each["error_over_budget"]
    passed = each["verdict"] == "pass"
    return row(
        [
            Cell(escape(each["variant"]), is_head=True),
            text_cell(each["verdict"], "good" if passed else "bad"),
            number(f"{each['examples']:,}"),
            number(f"{each['refused']:,}"),
            number(UNKNOWN if ratio is None else f"{ratio:.3f}"),
            number(str(each["seed"])),
            text_cell(each["kind"] or ("" if passed else each["reason"]), "wrap"),
        ]
    )


def _failure(each: Mapping[str, Any]) -> str:
    failure = each["failure"]
    if failure is None:
        return f"<h3>{escape(each['variant'])}: {escape(each['verdict'])}</h3>" + paragraph(each["reason"])
    lines = [("smallest case", _case(failure["case"])), ("what is wrong", failure["reason"])]
    first = failure["first_wrong"]
    if first is not None:
        place = ", ".join(f"{axis} {index}" for axis, index in zip(first["axes"], first["index"]))
        got, answer = (UNKNOWN if first[key] is None else f"{first[key]:.9g}" for key in ("got", "answer"))
        lines.append(("first wrong", f"{first['output']} at {place}: got {got}, expected {answer}"))
    if failure["wrong"] is not None:
        lines.append(("wrong", f"{failure['wrong']:,} of {failure['elements']:,} elements"))
    if failure["pattern"] is not None:
        lines.append(("looks like", failure["pattern"]))
    if (sanitized := failure.get("sanitizer")) is not None:
        lines.append(("the sanitizer finds", f"{sanitized['kind']}: {sanitized['reason']}"))
    lines += [("fails at", tried["text"]) for tried in failure.get("lengths", {}).values()]
    larger = {_case(failure["larger_case"]): ("larger case", failure["larger"])}
    larger[_case(failure["first_case"])] = "case as found", failure["first"]
    for case, (name, finding) in larger.items():
        if case != _case(failure["case"]):
            lines += [(name, case), ("there it looks like", finding["pattern"] or finding["reason"])]
    if not failure["repeatable"]:
        lines.append(("beware", "in a fresh process it did not fail the same way again"))
    details = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in lines)
    details += f"<dt>replay</dt><dd><pre>{escape(each['replay'])}</pre></dd>"
    kind = escape(failure["kind"])
    return f'<h3>{escape(each["variant"])}: {kind}</h3><dl class="case">{details}</dl>'


def _case(fields: Mapping[str, Any]) -> str:
    """The problem and its inputs in one line."""
    case = Case.from_json(json.dumps(fields))
    parts = [case.problem.headline, f"inputs {case.regime}, seed {case.seed}"]
    parts += [f"{e.array}[{', '.join(map(str, e.index))}] = {e.value:g}" for e in case.edits]
    parts += [f"tile {case.tile}"] if case.tile is not None else []
    parts += [f"held: {case.check}"] if case.check is not None else []
    return "; ".join(parts)
