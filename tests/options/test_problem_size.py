"""A command that takes long says so before it begins; one that memory cannot hold does not begin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import harness.execution.comparison
from harness.cli import main
from harness.execution.run_settings import RunSettings
from harness.operations.attention.problem import Problem
from harness.options import problem_size
from harness.options.exit_status import INTERRUPTED, WRONG_CALL
from harness.options.problem_size import check_size

EMULATOR = ["--device", "emulator"]
GIB = 2**30


@pytest.fixture
def arrays(tmp_path: Path) -> list[str]:
    words = []
    for name in "qkv":
        np.save(tmp_path / f"{name}.npy", np.ones((64, 64), np.float32))
        words += [f"--{name}", str(tmp_path / f"{name}.npy")]
    return [*words, "--out", str(tmp_path / "out.npy")]


@pytest.mark.parametrize("study", ["compare", "traffic", "sweep", "why", "tune", "report", "run"])
def test_what_memory_cannot_hold_is_refused_in_one_line(
    study: str, arrays: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(problem_size, "available_bytes", lambda: 300_000)
    monkeypatch.setenv("ATTENTION_SANDBOX_RESULTS_DIR", str(tmp_path))
    size = ["--heads", "1", "--seq-len", "64", *EMULATOR]
    words = {
        "compare": ["compare", "--variants", "fa2-cupy", *size],
        "traffic": ["traffic", "fa2-cupy", *size],
        "sweep": ["traffic", "fa2-cupy", "--sweep", "q_len=32,64", "--heads", "1", "--kv-len", "64", *EMULATOR],
        "why": ["why", "fa2-cupy", *size],
        "tune": ["tune", "fa2-cupy", *size],
        "report": ["report", "--variants", "fa2-cupy", "--output", str(tmp_path / "page.html"), *size],
        "run": ["run", "fa2-cupy", *arrays, *EMULATOR],
    }[study]
    assert main(words) == WRONG_CALL
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert "about 328,960 bytes" in shown.err and "300,000 are available" in shown.err
    assert "choose smaller sizes" in shown.err and "Q 16,384" in shown.err


def test_hours_are_said_before_they_begin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupted(*args: object, **rest: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(harness.execution.comparison, "compare", interrupted)
    monkeypatch.setattr(problem_size, "available_bytes", lambda: 1000 * GIB)
    words = ["compare", "--seq-len", "1000000", "--variants", "fa2-cupy", "--threads", "2", *EMULATOR]
    assert main(words) == INTERRUPTED
    assert "this takes about 4 days (5.1e+14 floating-point operations, 1 variant on" in capsys.readouterr().err


def test_no_warning_for_minutes_or_for_variants_on_a_gpu(capsys: pytest.CaptureFixture[str]):
    two = RunSettings(threads=2)
    check_size(two, [Problem(heads=2, q_len=1024, kv_len=1024)], 10)
    check_size(two, [Problem(heads=8, q_len=8192, kv_len=8192)], 10, emulated=False)
    assert capsys.readouterr().err == ""
    check_size(two, [Problem(heads=8, q_len=8192, kv_len=8192)], 10)
    assert "about 12 minutes" in capsys.readouterr().err
