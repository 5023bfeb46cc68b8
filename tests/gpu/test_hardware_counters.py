"""From runs to counters and into the tables of `traffic`, with a stand-in for ncu (tests/fakes/fake_ncu.py)."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path

import pytest
from fake_ncu import counter

from harness.cli import main
from harness.execution.protocol import Device
from harness.gpu.executor import GpuExecutor
from harness.gpu.hardware_counters import Run, measure_hardware, profile
from harness.gpu.nsight_compute import BULK_LOADS, BULK_REDUCTIONS, BULK_STORES, Replay
from harness.operations.attention.problem import Problem
from harness.support.errors import CountersUnavailable

PLUGIN = Path(__file__).parents[1] / "plugins" / "unpadded_column.py"
SMALL = Problem(heads=1, q_len=16, kv_len=16, head_dim=16)
GPU = Device("gpu", "a GPU", "sm_90")


@pytest.fixture(autouse=True)
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ncu"
    path.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).parents[1] / "fakes" / "fake_ncu.py"}" "$@"\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("FAKE_NCU", raising=False)


def test_counters_are_dealt_out_to_runs_and_launches():
    runs = [Run("three-pass-cupy", SMALL), Run("fa2-numba", SMALL), Run("column-cupy", SMALL)]
    three, one, column = profile(runs, ["a", "nonsense"], plugins=[PLUGIN])
    assert [c.name for c in three] == ["three_pass_scores", "three_pass_softmax", "three_pass_output"]
    assert [c.values["a"] for c in (*three, *one, *column)] == [counter(n, "a") for n in range(5)]
    assert column[0].name == "column"
    assert column[0].values["nonsense"] is None


def test_no_runs_have_no_counters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_NCU", "denied")
    assert profile([], ["a"]) == []


def test_a_plan_as_a_whole_has_one_set_of_counters():
    wholes = profile([Run("three-pass-cupy", SMALL), Run("fa2-cupy", SMALL)], ["a"], replay=Replay.PLAN)
    assert [[c.values["a"] for c in whole] for whole in wholes] == [[counter(0, "a")], [counter(1, "a")]]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("denied", "ERR_NVGPUCTRPERM"),
        ("no gpu", "the run under ncu failed: no usable GPU: none at all"),
        ("lost", "ncu has counters of 2 launches where 3 were run"),
        ("other", "ncu has counters of kernel other where three_pass_scores was run"),
        ("crash", "the program that ncu ran ended too early"),
    ],
)
def test_what_goes_wrong_is_said(mode: str, words: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_NCU", mode)
    with pytest.raises(CountersUnavailable, match=words):
        profile([Run("three-pass-cupy", SMALL)], ["a"])


def test_bytes_of_every_level():
    found = measure_hardware(Run("fa2-cupy", SMALL), GPU)
    l1, l2, dram = found.levels
    sectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_"
    both = counter(0, f"{sectors}atom.sum") + counter(0, f"{sectors}red.sum") + counter(0, BULK_REDUCTIONS)
    assert (l1.name, l1.read_bytes) == (
        "sectors",
        32 * (counter(0, f"{sectors}ld.sum") + counter(0, BULK_LOADS) + both),
    )
    assert l1.write_bytes == 32 * (counter(0, f"{sectors}st.sum") + counter(0, BULK_STORES) + both)
    assert (l2.name, l2.read_bytes) == ("L2", 32 * counter(0, "l1tex__m_xbar2l1tex_read_sectors.sum"))
    assert (dram.name, dram.write_bytes) == ("DRAM", counter(0, "dram__bytes_write.sum"))


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuExecutor, "available", staticmethod(lambda: True))
    monkeypatch.setattr(GpuExecutor, "__init__", lambda self: setattr(self, "device", GPU))


ARGUMENTS = ["traffic", "three-pass-cupy", "--seq-len", "16", "--heads", "1", "--head-dim", "16", "--device", "gpu"]


@pytest.mark.usefixtures("gpu")
def test_the_hardwares_columns(capsys: pytest.CaptureFixture[str]):
    assert main([*ARGUMENTS, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["hardware"]
    assert found["device"]["name"] == "a GPU"
    assert [level["name"] for level in found["levels"]] == ["sectors", "L2", "DRAM"]
    dram = [counter(launch, "dram__bytes_read.sum") for launch in range(3)]
    assert found["levels"][2]["read_bytes"] == sum(dram)
    assert [launch["levels"][2]["read_bytes"] for launch in found["launches"]] == dram
    assert main([*ARGUMENTS, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    launches = [row for row in rows if row["table"] == "hardware launch" and row["level"] == "DRAM"]
    assert [row["read_bytes"] for row in launches] == [str(size) for size in dram]
    assert [row["name"] for row in rows if row["table"] == "hardware level"] == ["sectors", "L2", "DRAM"]
    assert main(ARGUMENTS) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 120, [x for x in shown.splitlines() if len(x) > 120]
    line = next(line.split() for line in shown.splitlines() if line.startswith("DRAM"))
    assert line[5] == f"{sum(dram) / 2**20:.4f}"  # behind what the emulator says
    assert "Nsight Compute's counters on a GPU (sm_90)" in " ".join(shown.split())


@pytest.mark.usefixtures("gpu")
def test_without_permission_the_counted_levels_are_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_NCU", "denied")
    assert main([*ARGUMENTS, "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("harness: warning: no hardware counters: ncu may not read")
    assert captured.err.count("\n") == 1
    found = json.loads(captured.out)
    assert found["hardware"] is None
    assert [level["name"] for level in found["levels"]][:4] == ["compulsory", "claimed", "requested", "sectors"]
    assert found["levels"][3]["read_bytes"] > 0


@pytest.mark.skipif(GpuExecutor.available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_ask(capsys: pytest.CaptureFixture[str]):
    assert main(ARGUMENTS) == 2
    assert "--device gpu: CuPy finds no GPU" in capsys.readouterr().err
