"""Campaigns of `fuzz`: the cases tried, and the smallest failing case with the pattern of its errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.model.cases.case import Case
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.page.templates import render
from harness.text.tables import UNKNOWN


def campaigns_section(campaigns: Sequence[Mapping[str, Any]]) -> Section:
    """`campaigns` are those in the JSON of `fuzz`."""
    html = render("campaigns.html", campaigns=campaigns, facts=_facts)
    return Section("campaigns", "Campaigns", html, style=resource("campaigns.css") if campaigns else "")


def _facts(failure: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is known of a failure, by name."""
    diagnosis = failure.get("diagnosis")
    lines = [] if diagnosis is None else [("diagnosis", diagnosis)]
    lines += [("smallest case", _case(failure["case"])), ("what is wrong", failure["reason"])]
    first = failure["first_wrong"]
    if first is not None:
        place = ", ".join(f"{axis} {index}" for axis, index in zip(first["axes"], first["index"]))
        got, answer = (UNKNOWN if first[key] is None else f"{first[key]:.9g}" for key in ("got", "answer"))
        lines.append(("first wrong", f"{first['output']} at {place}: got {got}, expected {answer}"))
    if failure["wrong"] is not None:
        lines.append(("wrong", f"{failure['wrong']:,} of {failure['elements']:,} elements"))
    if failure["pattern"] is not None:
        lines.append(("pattern", failure["pattern"]))
    if (sanitized := failure.get("sanitizer")) is not None:
        lines.append(("the sanitizer finds", f"{sanitized['kind']}: {sanitized['reason']}"))
    lines += [("fails at", tried["text"]) for tried in failure.get("lengths", {}).values()]
    larger = {_case(failure["larger_case"]): ("larger case", failure["larger"])}
    larger[_case(failure["first_case"])] = "case as found", failure["first"]
    for case, (name, finding) in larger.items():
        if case != _case(failure["case"]):
            lines += [(name, case), ("pattern there", finding["pattern"] or finding["reason"])]
    if not failure["repeatable"]:
        lines.append(("warning", "in a fresh process, it did not fail in the same way again"))
    return lines


def _case(fields: Mapping[str, Any]) -> str:
    """The problem and its inputs in one line."""
    case = Case.from_json(json.dumps(fields))
    parts = [case.problem.headline, f"inputs {case.regime}, seed {case.seed}"]
    parts += [f"{e.array}[{', '.join(map(str, e.index))}] = {e.value:g}" for e in case.edits]
    parts += [f"tile {case.tile}"] if case.tile is not None else []
    parts += [f"property checked: {case.check}"] if case.check is not None else []
    return "; ".join(parts)
