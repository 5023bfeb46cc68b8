"""Caps, ALiBi and sinks on the command line: what a user says, and gets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles

SAID = ["--softcap", "2", "--alibi", "--sinks"]
SIZES = ["--heads", "4", "--kv-heads", "2", "--seq-len", "20", "--head-dim", "16", "--causal"]


def test_compare_says_what_there_is_who_takes_it_and_who_does_not(capfd: pytest.CaptureFixture[str]):
    arguments = ["--variants", "fa2-cupy,fa1-cupy", "--device", "emulator", "--format", "json"]
    assert main(["compare", *SAID, *SIZES, *arguments]) == 0
    said = json.loads(capfd.readouterr().out)
    assert {name: said["problem"][name] for name in ("softcap", "alibi", "sinks")} == {
        "softcap": 2.0, "alibi": True, "sinks": True,
    }  # fmt: skip
    rows = {row["variant"]: row for row in said["rows"]}
    assert rows["fa2-cupy"]["verdict"] == "pass"
    assert rows["fa2-cupy"]["total_bytes"] == rows["fa2-cupy"]["claimed_bytes"]
    assert rows["fa1-cupy"]["verdict"] == "unsupported"
    assert "does not support softcap and alibi and sinks" in rows["fa1-cupy"]["reason"]


def test_a_sweep_over_a_flag(capfd: pytest.CaptureFixture[str]):
    arguments = ["--sweep", "sinks=false,true", "--variants", "fa2-cupy", "--count", "never", "--format", "json"]
    assert main(["traffic", *SIZES, *arguments]) == 0
    claimed = [point["total_bytes"] for point in json.loads(capfd.readouterr().out)["points"]]
    assert claimed[1] - claimed[0] == 4 * 4 * 32  # a sector for each of a block's warps, and a block for each head


def test_a_sweep_over_a_share_that_drops_out(capfd: pytest.CaptureFixture[str]):
    arguments = [
        "--sweep",
        "dropout=0,0.1",
        "--dropout-seed",
        "3",
        "--variants",
        "fa2-cupy,fa1-cupy",
        "--count",
        "never",
    ]
    assert main(["traffic", *SIZES, *arguments, "--format", "json"]) == 0
    points = [point for point in json.loads(capfd.readouterr().out)["points"] if point["variant"] == "fa2-cupy"]
    assert len({point["total_bytes"] for point in points}) == 1 and len(points) == 2
    assert main(["compare", *SIZES, "--dropout", "1e-9", "--variants", "fa2-cupy"]) == 2
    assert "here 0: leave it out, or take more" in capfd.readouterr().err


def test_run_with_slopes_and_sinks_of_ones_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    problem = Problem(heads=4, kv_heads=2, q_len=9, kv_len=7, head_dim=16, softcap=2.0, alibi=True, sinks=True)
    rng = np.random.default_rng(0)
    inputs = {tensor.name: rng.standard_normal(tensor.shape).astype(np.float32) for tensor in problem.inputs}
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
    files = [part for name in inputs for part in (f"--{name.lower()}", str(tmp_path / f"{name}.npy"))]
    outputs = ["--out", str(tmp_path / "O.npy"), "--lse", str(tmp_path / "lse.npy")]
    assert main(["run", "fa2-cupy", *files, *outputs, "--softcap", "2", "--device", "emulator"]) == 0
    assert "softcap 2, ALiBi, sinks" in capfd.readouterr().out
    answer = attention(problem, inputs)
    np.testing.assert_allclose(np.load(tmp_path / "O.npy"), answer["O"], atol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "lse.npy"), answer["lse"], atol=1e-5)
