"""A bias on the command line: what a user says, and gets, with kernels of a plugin."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles

PLUGIN = str(Path(__file__).parents[2] / "plugins" / "biased_rows.py")
RIGHT = "biased-rows"
SIZES = ["--heads", "4", "--kv-heads", "2", "--seq-len", "20", "--head-dim", "16"]
ON_EMULATOR = ["--plugin", PLUGIN, "--device", "emulator"]


def test_compare_says_what_there_is_who_takes_it_and_who_does_not(capfd: pytest.CaptureFixture[str]):
    asked = ["--variants", "biased-rows*,fa1-cupy", "--causal", "--batch", "2", "--format", "json"]
    assert main(["compare", *SIZES, "--bias", *asked, *ON_EMULATOR]) == 1
    said = json.loads(capfd.readouterr().out)
    assert said["problem"]["bias"] == "heads,q_len,kv_len"
    rows = {row["variant"]: row for row in said["rows"]}
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    assert verdicts == {
        RIGHT: "pass", "biased-rows-scaled": "fail", "biased-rows-first-head": "fail",
        "biased-rows-blind": "pass", "fa1-cupy": "unsupported",
    }  # fmt: skip
    assert "it does not support bias (not listed in Variant.takes)" in rows["fa1-cupy"]["reason"]
    plain = Problem(batch=2, heads=4, kv_heads=2, q_len=20, kv_len=20, head_dim=16)
    assert rows[RIGHT]["compulsory_bytes"] == plain.compulsory_bytes + 4 * 20 * 20 * 4


@pytest.mark.parametrize("axes", ["heads", "q_len", "kv_len", "kv_len,heads", "q_len+kv_len"])
@pytest.mark.parametrize("regime", ["normal", "exact", "non-finite"])
def test_a_right_kernel_passes_with_any_axes(axes: str, regime: str, capfd: pytest.CaptureFixture[str]):
    asked = ["--variants", RIGHT, "--causal", "--kv-len", "33", "--regime", regime, "--allow-undecided", "--sanitize"]
    assert main(["compare", *SIZES[:4], "--q-len", "20", *SIZES[6:], f"--bias={axes}", *asked, *ON_EMULATOR]) == 0
    assert f"bias ({', '.join(Problem(bias=axes).bias)})" in capfd.readouterr().out


def test_a_kernel_that_forgets_rows_without_keys_is_found_out(capfd: pytest.CaptureFixture[str]):
    for regime, status in (("normal", 0), ("non-finite", 1)):
        asked = ["--variants", "biased-rows-blind", "--regime", regime, "--format", "json"]
        assert main(["compare", *SIZES, "--bias", *asked, *ON_EMULATOR]) == status
        (row,) = json.loads(capfd.readouterr().out)["rows"]
        assert row["verdict"] == ("fail" if status else "pass")


def test_a_sweep_separates_its_values_by_commas(capfd: pytest.CaptureFixture[str]):
    asked = ["--variants", RIGHT, "--count", "never", "--format", "json", *ON_EMULATOR]
    assert main(["traffic", *SIZES, "--sweep", "bias=none,kv_len,heads+kv_len", *asked]) == 0
    points = json.loads(capfd.readouterr().out)["points"]
    assert [point["problem"]["bias"] for point in points] == [None, "kv_len", "heads,kv_len"]
    compulsory = [point["compulsory_bytes"] for point in points]
    assert [size - compulsory[0] for size in compulsory] == [0, 20 * 4, 4 * 20 * 4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "--bias", "rows"], "argument --bias: bias is 'rows'; list the axes that it varies over"),
        (["compare", "--operation", "paged-attention", "--bias"], "unrecognized argument '--bias'"),
        (["run", RIGHT, "--bias"], "expected one argument"),
    ],
)
def test_what_is_not_there_is_one_line(words: list[str], message: str, capfd: pytest.CaptureFixture[str]):
    assert main([*words, "--plugin", PLUGIN]) == 2
    said = capfd.readouterr().err
    assert message in said and said.count("\n") == 1


def files_of(folder: Path, inputs: dict[str, np.ndarray]) -> list[str]:
    for name, array in inputs.items():
        np.save(folder / f"{name}.npy", array)
    return [word for name in inputs for word in (f"--{name.lower()}", str(folder / f"{name}.npy"))]


@pytest.mark.parametrize("axes", ["heads,q_len,kv_len", "q_len", "kv_len"])
def test_run_tells_the_axes_by_the_shape(axes: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    problem = Problem(heads=4, kv_heads=2, q_len=9, kv_len=7, head_dim=16, bias=axes)
    rng = np.random.default_rng(0)
    inputs = {tensor.name: rng.standard_normal(tensor.shape).astype(np.float32) for tensor in problem.inputs}
    outputs = ["--out", str(tmp_path / "O.npy"), "--lse", str(tmp_path / "lse.npy")]
    assert main(["run", RIGHT, *files_of(tmp_path, inputs), *outputs, *ON_EMULATOR]) == 0
    assert f"bias ({axes.replace(',', ', ')})" in capfd.readouterr().out
    answer = attention(problem, inputs)
    np.testing.assert_allclose(np.load(tmp_path / "O.npy"), answer["O"], atol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "lse.npy"), answer["lse"], atol=1e-5)


@pytest.mark.parametrize("shape", [(9, 7), (4, 9, 6), (1, 1, 1), (2, 9, 7)], ids=str)
def test_run_refuses_a_bias_of_another_shape(shape: tuple[int, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    problem = Problem(heads=4, q_len=9, kv_len=7, head_dim=16)
    inputs = {tensor.name: np.ones(tensor.shape, np.float32) for tensor in problem.inputs}
    words = files_of(tmp_path, {**inputs, "bias": np.ones(shape, np.float32)})
    assert main(["run", RIGHT, *words, "--out", str(tmp_path / "O.npy"), *ON_EMULATOR]) == 2
    assert f"bias.npy holds float32{shape}; it has to be float32(" in capfd.readouterr().err


@pytest.mark.thorough
def test_a_campaign_passes_the_right_kernel_and_names_the_mistakes(capfd: pytest.CaptureFixture[str]):
    asked = ["--seed", "1", "--examples", "60", "--afresh", "--format", "json"]
    assert main(["fuzz", "biased-rows*", *asked, *ON_EMULATOR]) == 1
    said = {each["variant"]: each for each in json.loads(capfd.readouterr().out)["campaigns"]}
    assert said.pop(RIGHT)["verdict"] == "pass"
    assert {each["verdict"] for each in said.values()} == {"fail"}
    cases = {name: each["failure"]["case"] for name, each in said.items()}
    assert cases["biased-rows-scaled"]["bias"] in ("heads", "q_len", "kv_len")
    assert all(case["bias"] for case in cases.values())
