"""`compute-sanitizer` driven on a plan: its logs become findings, and where it cannot look that is one line."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from harness.emulator.executor import EmulatorExecutor
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.gpu import compute_sanitizer
from harness.gpu.compute_sanitizer import ComputeSanitizer, parse_log
from harness.model.discovery import discover
from harness.model.finding import Finding, Place
from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem
from harness.support.errors import SandboxError
from tests.fakes.fake_compute_sanitizer import LOGS

FAKE = Path(__file__).resolve().parents[1] / "fakes" / "fake_compute_sanitizer.py"
PLUGIN = FAKE.parents[1] / "plugins" / "hidden_mistakes.py"
PROBLEM = Problem(heads=1, q_len=8, kv_len=8, head_dim=64)
INPUTS = draw_inputs(PROBLEM)
VARIANT = discover([PLUGIN]).registry.get("adds-up")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "compute-sanitizer"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


def check() -> tuple[Finding, ...]:
    return ComputeSanitizer(plugins=[PLUGIN]).check(VARIANT, PROBLEM, VARIANT.plan(PROBLEM), INPUTS)


def test_all_tools_run_and_their_reports_are_findings(installed: None) -> None:
    stray, race, unwritten, hole = check()
    assert (stray.kind, stray.kernel, stray.count) == ("memcheck", "stray", 2)
    assert stray.place == Place("stray.cu", 17, (2, 0, 0), (5, 0, 0))
    assert stray.message.startswith("Invalid __global__ write of size 4 bytes at stray+0xe0 in stray.cu:17 by thread")
    assert "Host Frame" not in stray.message and "backtrace" not in stray.message
    assert (race.kind, race.kernel, race.count) == ("racecheck", "racy", 512)
    assert [(p.file, p.line) for p in (race.place, race.other) if p] == [("racy.cu", 5), ("racy.cu", 6)]
    assert (unwritten.kind, unwritten.kernel) == ("initcheck", "racy_numba")
    assert "at planted::racy_numba+0x210 in planted.py:35 by thread (0,0,0)" in unwritten.message
    assert (hole.kernel, hole.place) == (None, None) and "on access by cudaMemcpy source" in hole.message


def test_a_clean_log_has_no_findings(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SANITIZER", "clean")
    assert check() == ()


@pytest.mark.thorough
def test_a_missing_program_is_one_line_and_the_row_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"compute-sanitizer is not on the PATH; .* --device emulator needs none"):
        check()
    variant = discover([]).registry.get("fa2-cupy")
    question = Question.pose(PROBLEM, INPUTS)
    row = attempt(variant, PROBLEM, EmulatorExecutor(), question=question, sanitizer=ComputeSanitizer())
    assert row.verdict == "pass" and row.findings is None
    assert row.note is not None and row.note.startswith("not sanitized: compute-sanitizer is not on the PATH")


@pytest.mark.parametrize(
    ("mode", "words"), [("no gpu", "memcheck: no usable GPU: none at all"), ("hangs", "did not end well")]
)
def test_a_tool_that_cannot_look_says_why(
    installed: None, monkeypatch: pytest.MonkeyPatch, mode: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_SANITIZER", mode)
    monkeypatch.setattr(compute_sanitizer, "_SECONDS", 1 if mode == "hangs" else 30)
    with pytest.raises(SandboxError, match=words):
        check()


def test_a_program_that_the_tool_killed_still_has_its_findings(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SANITIZER", "crash")
    # The other tools, which found nothing, cannot say that there is nothing.
    with pytest.raises(SandboxError, match="synccheck: the program ended too early"):
        check()


def test_summaries_and_notes_are_no_findings() -> None:
    assert list(parse_log("synccheck", LOGS["synccheck"])) == []
    assert list(parse_log("memcheck", "some output\n========= Target application returned an error\n")) == []
