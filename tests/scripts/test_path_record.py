"""The record of the learning path's figures, made with stand-ins for a GPU and for ncu, and the pages that show it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.execution.planning.variant_calls import make_plan
from harness.execution.timings import BenchRow
from harness.gpu.hardware_counters import Run
from harness.gpu.nsight_compute import Counters
from harness.model.discovery import discover
from harness.model.operation import operation_of
from harness.model.problem import BaseProblem
from harness.studies.learn.steps import cuda_variant, find_lessons, numba_variant
from scripts import record_path
from scripts.path_pages import MEASURED, OVERVIEW, RUN_TIMES, pages_with_times, shown_predictions
from scripts.record_traffic import text_of
from scripts.recording.path_problems import FLASH, LIBRARY, own_and_largest, problems_of, published, runs
from scripts.recording.path_record import PathRecord, path_record
from scripts.recording.path_tables import T4, measured_section, published_table, times_rows

pytestmark = pytest.mark.compiles(False)

LESSONS = find_lessons()
REAL = path_record()


def bench_on_gpu(
    variants: Sequence[Any], problem: Any, settings: Any, *, libraries: bool, left_out: Sequence[str], step: Any
) -> SimpleNamespace:
    """Play a GPU on which a run takes a microsecond for each key, and on which Numba's kernels are wrong."""
    ms = problem.kv_len / 1000
    right = BenchRow(variant="", kind="variant", verdict="pass", time_ms=ms, time_low_ms=ms, time_high_ms=ms, samples=9)
    wrong = BenchRow(variant="", kind="variant", verdict="fail", reason="wrong")
    timed = [name for name in operation_of(problem).libraries if libraries and name not in left_out]
    names = [*(variant.name for variant in variants), *timed]
    return SimpleNamespace(rows=[replace(wrong if "numba" in name else right, variant=name) for name in names])


def profile(cases: Sequence[Run], metrics: Sequence[str], plugins: Sequence[Path]) -> list[tuple[Counters, ...]]:
    """Play ncu: launch n of a plan counts 1000 n of every metric."""
    registry = discover(plugins).registry
    launches = [make_plan(registry.get(case.variant), case.problem).launches for case in cases]
    return [
        tuple(
            Counters(launch.kernel_name, dict.fromkeys(metrics, 1000.0 * n)) for n, launch in enumerate(plan, start=1)
        )
        for plan in launches
    ]


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """The record of steps 1 and 2."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_path, "bench_on_gpu", bench_on_gpu)
        patch.setattr(record_path, "profile", profile)
        patch.setattr(record_path, "ncu_version", lambda: "none")
        made_on = {"gpu": "NVIDIA H200", "driver": "580.1", "date": "2026-01-02"}
        patch.setattr(record_path, "environment", lambda: made_on)
        patch.setattr(record_path, "find_lessons", lambda: {number: LESSONS[number] for number in ("1", "2")})
        *_, whole = record_path.record(counters=True)
    return json.loads(text_of(whole))


def test_a_step_shows_what_was_measured(recorded: dict[str, Any]) -> None:
    section = measured_section(LESSONS["2"], LESSONS, PathRecord(recorded), ["32.5", "32.9"])
    cells = ([cell.strip() for cell in line.split("|")] for line in section.splitlines() if "|" in line)
    rows = {line[1]: line[2:-1] for line in cells}
    assert rows["figure"] == ["step 1", "step 2", "Numba twin", "unit"]
    assert rows["predicted time, 256 keys"] == ["32.5", "32.9", "", "us"]
    assert rows["measured time, 256 keys"] == ["256", "256", "-", "us"]
    assert rows["measured time, 16,384 keys"] == ["16,384", "16,384", "-", "us"]
    assert rows["bytes counted, 256 keys"] == ["18,153,472", "18,415,616", "18,415,616", "bytes"]
    assert [row for row in rows if row.startswith(("bytes measured", "of these", "bytes in DRAM"))] == [
        "bytes measured, 256 keys", "of these in DRAM, 256 keys", "bytes in DRAM, 16,384 keys"
    ]  # fmt: skip
    assert "on an NVIDIA H200, driver 580.1, 2026-01-02" in " ".join(section.split())
    assert shown_predictions(section) == ["32.5", "32.9"]
    first = next(iter(times_rows(LESSONS, PathRecord(recorded))))
    assert first[:4] == [
        "us measured, 256 keys",
        "256",
        "256",
        "-",
    ]


def test_bytes_of_all_launches_are_added_up(recorded: dict[str, Any]) -> None:
    lesson, record = LESSONS["1"], PathRecord(recorded)
    variant, reads_and_writes = cuda_variant(lesson), 2
    assert record.bytes_at("DRAM", variant, lesson.problem) == reads_and_writes * (1000 + 2000 + 3000)
    assert record.bytes_at("DRAM", variant, problems_of(lesson)[1]) is None


def test_times_of_a_kernel_that_has_changed_since_are_not_shown(recorded: dict[str, Any]) -> None:
    lesson = LESSONS["2"]
    assert PathRecord(recorded).us(cuda_variant(lesson), lesson.problem) == 256
    stale = recorded | {"times": [row | {"hash": "another"} for row in recorded["times"]]}
    assert PathRecord(stale).us(cuda_variant(lesson), lesson.problem) is None
    assert measured_section(lesson, LESSONS, PathRecord(stale), ["1.0", "2.0"]) == ""


def test_published_times_have_the_measured_ones_beside_them(recorded: dict[str, Any]) -> None:
    assert PathRecord(recorded).us(LIBRARY, published(512)) == 512
    lines = published_table(PathRecord(recorded)).splitlines()
    row = next(line for line in lines if line.startswith("|  512"))
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["512", *T4[512], *["0.512"] * 4]
    assert "T4" not in published_table(None) and FLASH not in published_table(None)


def test_every_step_is_measured_beside_the_one_before() -> None:
    found: dict[BaseProblem, list[str]] = {p: [v.name for v in variants] for p, variants in runs(LESSONS).items()}
    for lesson in LESSONS.values():
        for problem in problems_of(lesson):
            missing = {cuda_variant(lesson).name, numba_variant(lesson).name} - {*found[problem]}
            assert not missing or (lesson.number == "6" and problem.kv_len == 16_384)
    assert all(problem in found for counted in own_and_largest(LESSONS) for problem in counted)
    decoding = problems_of(LESSONS["a"])[0]
    assert cuda_variant(LESSONS["9"]).name in found[decoding]


@pytest.mark.parametrize("number", LESSONS)
def test_the_measured_figures_of_a_page_are_those_of_the_record(number: str) -> None:
    lesson = LESSONS[number]
    expected = "" if REAL is None else measured_section(lesson, LESSONS, REAL, shown_predictions(lesson.page))
    assert MEASURED.findall(lesson.page) == [expected], "run scripts/path_pages.py"


def test_the_measured_times_of_the_overview_are_those_of_the_record() -> None:
    assert RUN_TIMES.findall(OVERVIEW.read_text()) == [f"\n{published_table(REAL)}\n\n"], "run scripts/path_pages.py"
    rows = [f"| {' | '.join(row)} |" for row in times_rows(LESSONS, REAL)]
    for page in pages_with_times(LESSONS):
        assert [line for line in page.read_text().splitlines() if line.startswith("| us measured")] == rows
