"""The command line with the operations over devices besides ring attention, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main
from harness.model.operation import draw_inputs, operation_named
from harness.operations.ring_attention_backward.problem import RingBackwardProblem

pytestmark = pytest.mark.compiles

BACKWARD, TREE = (("--operation", name) for name in ("ring-attention-backward", "tree-attention"))
SIZES = ("--heads", "2", "--kv-heads", "1", "--head-dim", "16", "--devices", "3", "--causal", "--dtype", "float16")


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_compare_counts_gradients_and_their_links(capsys: pytest.CaptureFixture[str]):
    words = (*SIZES, "--seq-len", "26", "--row-order", "striped", "--variants", "ring-bwd-cupy")
    status, out, err = call(capsys, "compare", *BACKWARD, *words, "--format", "json")
    assert status == 0, err
    (row,) = json.loads(out)["rows"]
    assert row["verdict"] == "pass" and row["claim_holds"] is True
    # K and V twice, and in float32 dK and dV twice: in striped order, every device has a part of every sum.
    assert row["link_bytes"] == 2 * 26 * 16 * 2 * (2 + 4)


def test_run_takes_arrays_of_the_whole_sequence_and_returns_its_gradients(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    sizes = {"heads": 2, "kv_heads": 1, "q_len": 26, "kv_len": 26, "head_dim": 16, "dtype": "float16"}
    problem = RingBackwardProblem(**sizes, devices=3, row_order="zigzag", mask="causal")
    inputs = draw_inputs(problem)
    words: list[str] = []
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
        words += [f"--{name.lower()}", str(tmp_path / f"{name}.npy")]
    for option, name in (("out", "dQ"), ("dk", "dK"), ("dv", "dV")):
        words += [f"--{option}", str(tmp_path / f"{name}.npy")]
    words += ["--devices", "3", "--row-order", "zigzag", "--causal"]
    status, _, err = call(capsys, "run", "ring-bwd-cupy", *BACKWARD, *words)
    assert status == 0, err
    expected = operation_named("attention-backward").answer(problem.whole, inputs)
    for name in ("dQ", "dK", "dV"):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy").astype(float), expected[name], atol=1e-2)


def test_trees_take_few_rows_and_have_no_order(capsys: pytest.CaptureFixture[str]):
    words = (*SIZES, "--q-len", "2", "--kv-len", "31", "--variants", "tree-cupy")
    status, out, err = call(capsys, "compare", *TREE, *words, "--format", "json")
    assert status == 0, err
    told = json.loads(out)
    assert (told["problem"]["q_len"], told["problem"]["kv_len"]) == (2, 31) and "row_order" not in told["problem"]
    (row,) = told["rows"]
    assert row["verdict"] == "pass" and row["link_bytes"] == 2 * (2 * 2 * (16 * 2 + 4))
    status, _, err = call(capsys, "compare", *TREE, "--row-order", "striped")
    assert status == 2 and "--row-order" in err
