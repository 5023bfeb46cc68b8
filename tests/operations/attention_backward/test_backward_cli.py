"""The command line with --operation attention-backward, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main
from harness.model.operation import draw_inputs, operation_named
from harness.operations.attention_backward.problem import BackwardProblem

pytestmark = pytest.mark.compiles

OPERATION = ("--operation", "attention-backward")
SMALL = (*OPERATION, "--seq-len", "70", "--head-dim", "16", "--causal")


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("variants", "count"),
    [
        ("bwd-fa2-cupy,bwd-three-pass-cupy", 2),
        pytest.param("bwd-fa[12]*-cupy,bwd-three-pass-cupy", 4, marks=pytest.mark.thorough),
    ],
)
def test_compare_ranks_by_what_is_moved_and_names_the_operation(
    capsys: pytest.CaptureFixture[str], variants: str, count: int
):
    status, out, _ = call(capsys, "compare", *SMALL, "--variants", variants, "--format", "json")
    found = json.loads(out)
    rows = {row["variant"]: row for row in found["rows"]}
    assert status == 0 and found["problem"]["mask"] == "causal"
    assert all(row["verdict"] == "pass" and row["claimed_bytes"] == row["total_bytes"] for row in rows.values())
    assert rows["bwd-three-pass-cupy"]["rank"] == len(rows) == count


@pytest.mark.thorough
def test_sums_by_atomics_that_are_declared_are_no_finding(capsys: pytest.CaptureFixture[str]):
    words = (*OPERATION, "--heads", "1", "--q-len", "20", "--kv-len", "320", "--head-dim", "16", "--sanitize")
    status, out, _ = call(capsys, "compare", *words, "--variants", "bwd-fa2-cupy", "--format", "json")
    (row,) = json.loads(out)["rows"]
    assert (status, row["verdict"]) == (0, "pass")


def test_traffic_counts_an_atomic_as_read_and_written(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "traffic", "bwd-fa2-cupy", *SMALL, "--lines", "--format", "json")
    found = json.loads(out)
    (added,) = (line for line in found["lines"] if line["kind"] == "atomic")
    dQ = next(buffer for buffer in found["buffers"] if buffer["name"] == "dQ")
    assert status == 0 and added["buffer"] == "dQ" and dQ["read_bytes"] == 32 * added["sectors"]
    assert dQ["write_bytes"] > dQ["read_bytes"]


def test_fuzz_replays_a_case_of_it(capsys: pytest.CaptureFixture[str]):
    case = {"operation": "attention-backward", "heads": 1, "q_len": 3, "kv_len": 40, "head_dim": 16}
    words = ("--replay", json.dumps({**case, "regime": "few-gradients", "seed": 0}))
    status, out, _ = call(capsys, "fuzz", "bwd-fa2-cupy", *words)
    assert status == 0 and "few-gradients" in out


def test_show_prints_the_kernel_with_what_it_shares(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "show", "bwd-fa2-cupy", *OPERATION)
    assert status == 0 and "bwd_fa2_prepare" in out and "variants/_tiles/backward.cuh" in out


def files(folder: Path, arrays: dict[str, np.ndarray]) -> list[str]:
    words = []
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
        words += [f"--{name.lower()}", str(folder / f"{name}.npy")]
    return words


@pytest.mark.parametrize("matrices", [False, True])
def test_run_takes_six_arrays_and_gives_three(tmp_path: Path, capsys: pytest.CaptureFixture[str], matrices: bool):
    problem = BackwardProblem(heads=1, q_len=9, kv_len=12, head_dim=16, dtype="float16", mask="causal")
    inputs = draw_inputs(problem, "normal", 1)
    expected = operation_named("attention-backward").answer(problem, inputs)
    given = files(tmp_path, {name: array[0, 0] if matrices else array for name, array in inputs.items()})
    targets = {"dQ": "--out", "dK": "--dk", "dV": "--dv"}
    for name, option in targets.items():
        given += [option, str(tmp_path / f"{name}.npy")]
    status, out, error = call(capsys, "run", "bwd-fa2-ordered-cupy", *OPERATION, *given, "--causal")
    assert status == 0, out + error
    for name in targets:
        found = np.load(tmp_path / f"{name}.npy")
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, expected[name][0, 0] if matrices else expected[name], rtol=2e-2, atol=2e-3)


def test_arrays_that_do_not_fit_are_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    problem = BackwardProblem(heads=1, q_len=9, kv_len=12, head_dim=16)
    inputs = draw_inputs(problem, "normal", 1)
    out = ("--out", str(tmp_path / "dQ.npy"))

    def said(**changed: np.ndarray) -> str:
        given = files(tmp_path, {**inputs, **changed})
        status, _, error = call(capsys, "run", "bwd-fa2-cupy", *OPERATION, *given, *out)
        assert status == 2 and len(error.splitlines()) == 1
        return error

    assert "lse has shape (1, 1, 8)" in said(lse=inputs["lse"][:, :, :8])
    assert "Q has shape (1, 1, 9, 16) and dO (1, 1, 8, 16)" in said(dO=inputs["dO"][:, :, :8])
    assert "lse (batch, head, row)" in said(lse=inputs["lse"][..., None])
    assert "--dtype is float32; nothing is converted" in said(lse=inputs["lse"].astype(np.float16))
