"""Whatever a plugin does, it does to its own process: an error of its variant, in every study, and the others come."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main
from harness.execution.isolation import process
from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles

PLUGINS = Path(__file__).parents[2] / "plugins"
HOSTILE = ["--plugin", str(PLUGINS / "hostile.py")]
RIGHT = ["--plugin", str(PLUGINS / "one_thread_per_row.py")]
NAME = "one-thread-per-row"
SMALL = ["--heads", "1", "--q-len", "4", "--kv-len", "6", "--head-dim", "4", "--device", "emulator"]
REASONS = {
    "ends": "exit status 0",
    "crashes": "signal SIGSEGV",
    "loops": "no answer within",
    "sleeps": "no answer within",
    "interrupts": "KeyboardInterrupt",
    "exits": "SystemExit: 0",
    "exits-a-generator": "GeneratorExit",
}
PLACES = ("plan", "supports", "claim", "tiles")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes no time here is given little, and who sleeps is not waited for long."""
    monkeypatch.setattr(process, "CALL_SECONDS", 0.5)
    monkeypatch.setattr(process, "LOAD_SECONDS", 2.0)
    monkeypatch.setattr(process, "PATIENCE", 1.5)


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]):
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main([str(each) for each in arguments])
        captured = capfd.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return status, captured.out, captured.err

    return run


def rows_of(out: str) -> dict[str, dict[str, object]]:
    return {row["variant"]: row for row in json.loads(out)["rows"]}


@pytest.mark.parametrize("place", PLACES)
def test_compare_has_a_row_for_each_and_the_right_one_passes(call, place: str):
    names = [f"{deed}-in-{place}" for deed in REASONS]
    variants = ["--variants", ",".join([*names, NAME])]
    status, out, _ = call("compare", *SMALL, *HOSTILE, *RIGHT, *variants, "--format", "json")
    rows = rows_of(out)
    assert status == 1 and rows[NAME]["verdict"] == "pass"
    for name, reason in zip(names, REASONS.values(), strict=True):
        row = rows[name]
        assert row["verdict"] in ("error", "fail") and row["verdict"] != "pass", row
        assert reason in row["reason"] and f"{place}()" in row["reason"], row
