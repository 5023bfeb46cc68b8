"""The command line with --operation softmax, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main

pytestmark = pytest.mark.compiles

SMALL = ("--operation", "softmax", "--rows", "8", "--columns", "100")


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def rows_of(text: str) -> dict[str, dict[str, object]]:
    return {row["variant"]: row for row in json.loads(text)["rows"]}


def test_list_shows_one_operation_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]):
    _, out, _ = call(capsys, "list", "--operation", "softmax", "--format", "json")
    listed = json.loads(out)["variants"]
    assert {"softmax-native-cupy", "softmax-online-numba"} <= {each["name"] for each in listed}
    assert {each["operation"] for each in listed} == {"softmax"}
    _, out, _ = call(capsys, "list", "--format", "json")
    assert {each["operation"] for each in json.loads(out)["variants"]} >= {"attention", "softmax"}
    status, _, error = call(capsys, "list", "--operation", "softmx")
    assert status == 2 and "did you mean 'softmax'?" in error


def test_compare_ranks_by_the_sweeps(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "compare", *SMALL, "--variants", "softmax-*", "--format", "json")
    rows = rows_of(out)
    assert status == 0 and json.loads(out)["problem"] == {"rows": 8, "columns": 100, "dtype": "float32"}
    assert {name: row["rank"] for name, row in rows.items() if name.endswith("cupy")} == {
        "softmax-pipelined-cupy": 1,  # a tile of rows that begin within a sector is copied as one run
        "softmax-on-chip-cupy": 3,
        "softmax-native-cupy": 5,
        "softmax-online-cupy": 5,
        "softmax-safe-cupy": 9,
    }
    assert all(row["verdict"] == "pass" and row["claimed_bytes"] == row["total_bytes"] for row in rows.values())


def test_compare_shows_the_overflow_that_is_declared(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "compare", *SMALL, "--regime", "hot", "--variants", "softmax-*-cupy")
    assert status == 1
    assert "softmax-native-cupy: fail: " in out and "elements of Y are NaN, the first at row 0" in out
    assert "softmax-native-cupy: it declares that it fails where inputs are hot" in out
    assert "softmax-safe-cupy" in out and "softmax-safe-cupy: it declares" not in out
    status, out, _ = call(capsys, "compare", *SMALL, "--variants", "softmax-native-cupy")
    assert status == 0 and "it declares" not in out


def test_traffic_speaks_of_the_buffers_and_of_no_theorem_on_attention(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "traffic", "softmax-online-cupy", *SMALL)
    assert status == 0 and "Claim: exact." in out and "\nX " in out and "\nY " in out
    assert "Saha" not in out
    words = ("--variants", "softmax-*-cupy", "--sweep", "columns=32,64", "--format", "csv")
    status, out, _ = call(capsys, "traffic", "--operation", "softmax", "--rows", "4", *words)
    assert status == 0 and "softmax-safe-cupy" in out


def test_fuzz_leaves_out_where_a_variant_fails_as_declared(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "fuzz", "softmax-safe-cupy", "softmax-native-cupy", "--examples", "9", "--seed", "1")
    assert status == 0
    assert "softmax-native-cupy: declared to fail, not drawn: hot, negative" in out
    assert "softmax-safe-cupy: declared" not in out
    case = json.dumps({"operation": "softmax", "rows": 2, "columns": 40, "regime": "hot", "seed": 0})
    status, out, _ = call(capsys, "fuzz", "softmax-native-cupy", "--replay", case)
    assert status == 1 and "softmax, 2 rows x 40 columns, float32; inputs hot" in out


def test_run_takes_a_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    X = np.sin(np.arange(60, dtype=np.float32)).reshape(3, 20)
    np.save(tmp_path / "X.npy", X)
    words = ("--x", str(tmp_path / "X.npy"), "--out", str(tmp_path / "Y.npy"))
    status, out, _ = call(capsys, "run", "softmax-online-cupy", "--operation", "softmax", *words)
    assert status == 0 and "the user's arrays" in out
    weights = np.exp(X.astype(np.float64))
    np.testing.assert_allclose(np.load(tmp_path / "Y.npy"), weights / weights.sum(axis=1, keepdims=True), rtol=1e-5)


def test_show_prints_the_kernel_with_what_it_shares(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "show", "softmax-online-cupy", "--operation", "softmax")
    assert status == 0 and "online_softmax" in out and "variants/_rows/rows.cuh" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--columns", "0"), "columns is 0; it has to be a whole number of at least 1"),
        (("--dtype", "float8"), "dtype is 'float8'; choose one of float32, float16, bfloat16"),
        (("--regime", "overflow"), "no regime 'overflow'"),
        (("--variants", "fa2*"), "no variant 'fa2*'"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]):
    status, out, error = call(capsys, "compare", "--operation", "softmax", *words)
    assert status == 2 and not out and said in error and len(error.splitlines()) == 1
