"""Renders the outcomes of a conformance battery as Markdown for a CI job's summary: a row per variant, and failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.studies.fuzz.conformance import DEMANDS
from harness.text.report import Paragraph, Report, Table, Title, Verbatim
from harness.text.tables import UNKNOWN

WORDS = {"passed": "pass", "failed": "**fail**", "skipped": UNKNOWN}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one demand on one variant."""

    variant: str
    demand: str
    """A name in `DEMANDS`."""
    outcome: str
    """`passed`, `failed` or `skipped`, as in pytest."""
    text: str = ""
    """What is wrong, or why the demand does not apply."""


def battery_report(outcomes: Sequence[Outcome], tables: Iterable[str] = ()) -> str:
    """Markdown that ends in a line break. `tables` are further tables in Markdown."""
    found: dict[str, dict[str, Outcome]] = {}
    for each in outcomes:
        found.setdefault(each.variant, {})[each.demand] = each
    report = Report(
        paragraphs=lambda: [*_paragraphs(found), *tables],
        notes=lambda: [f"{demand.name}: {demand.idea}." for demand in DEMANDS.values()],
        records=lambda: ([vars(each) for each in outcomes], ("variant", "demand", "outcome", "text")),
        document=lambda: {"outcomes": [vars(each) for each in outcomes]},
    )
    return report.render("markdown")


def _paragraphs(found: Mapping[str, Mapping[str, Outcome]]) -> list[Paragraph]:
    cells = [
        [variant, *(WORDS[by_demand[name].outcome] if name in by_demand else UNKNOWN for name in DEMANDS)]
        for variant, by_demand in found.items()
    ]
    parts: list[Paragraph] = [
        Title("Attention kernels, on an emulated GPU"),
        Table(["variant", *DEMANDS], cells, [False] * (1 + len(DEMANDS))),
    ]
    for by_demand in found.values():
        for each in by_demand.values():
            if each.outcome == "failed":
                parts += [Title(f"{each.variant}: {each.demand}"), Verbatim(each.text)]
    return parts
