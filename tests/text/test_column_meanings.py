"""`--explain`: every column of a table has a meaning."""

from __future__ import annotations

import pytest

from harness import compare, fuzz, traffic, why
from harness.cli import main
from harness.model.operation import operation_named
from harness.studies.listing.command import ListRequest, regimes_report, variants_report
from harness.text.bench_report import bench_columns
from harness.text.column_meanings import MEANINGS
from harness.text.report import Report, Table
from harness.text.terminal import Terminal


def without_meaning(report: Report) -> set[str]:
    tables = (part for part in report.paragraphs() if isinstance(part, Table))
    return {" ".join(header.split()) for table in tables for header in table.headers} - set(MEANINGS)


def test_every_column_of_bench_and_list_has_a_meaning() -> None:
    assert {" ".join(column.header.split()) for column in bench_columns(None)} <= set(MEANINGS)
    assert not without_meaning(regimes_report(operation_named("attention")))
    registry = ListRequest().discover().registry
    assert not without_meaning(variants_report(registry.select("fa2-*", None), registry))


@pytest.mark.compiles
def test_every_column_of_a_study_has_a_meaning() -> None:
    small = {"seq_len": 16, "device": "emulator"}
    studies = (
        compare(variants="fa2-cupy", sanitize=True, **small),
        traffic("fa2-cupy", lines=True, **small),
        fuzz("fa2-cupy", examples=1, device="emulator", seed=1),
    )
    assert [without_meaning(study.report) for study in studies] == [set()] * 3
    # The names of the variants are columns of `why`.
    assert without_meaning(why("fa2-cupy", "two-pass-cupy", **small).report) == {"fa2-cupy", "two-pass- cupy"}


REPORT = Report(
    paragraphs=lambda: [
        "headline",
        Table(("variant", "total\nMiB", "mine"), [["fa2", "1.00", "2"]], (False, True, True)),
    ],
    notes=lambda: ["a note"],
    records=lambda: ([], ()),
    document=lambda: {},
)


def test_the_meanings_follow_the_notes_and_fit_the_terminal() -> None:
    assert "Columns:" not in REPORT.render("table") and "Columns:" not in REPORT.render("markdown")
    text = REPORT.render("table", Terminal(width=40), explain=True)
    assert text.index("a note") < text.index("Columns:\nvariant: one implementation") < text.index("total MiB: MiB")
    assert "mine:" not in text and max(map(len, text.splitlines())) <= 40
    assert "\n\ntotal MiB: MiB (2^20 bytes) read and written" in REPORT.render("markdown", explain=True)
    assert REPORT.render("json", explain=True) == REPORT.render("json")


def test_the_option_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--regimes", "--explain"]) == 0
    assert "\nregime: how the values of the inputs are drawn.\n" in capsys.readouterr().out
