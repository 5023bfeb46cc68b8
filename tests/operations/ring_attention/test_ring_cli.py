"""The command line with --operation ring-attention, as a user calls it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli import main

pytestmark = pytest.mark.compiles

RING = ("--operation", "ring-attention")
SMALL = (*RING, "--seq-len", "26", "--heads", "2", "--kv-heads", "1", "--head-dim", "16", "--devices", "3", "--causal")
SMALL_OF_16_BITS = (*SMALL, "--row-order", "zigzag", "--dtype", "float16")
VARIANTS = {f"{name}-{language}" for name in ("ring", "ring-mma", "ring-fa3") for language in ("cupy", "numba")}


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_compare_ranks_variants_with_bytes_of_links_and_of_a_device(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "compare", *SMALL_OF_16_BITS, "--format", "json")
    told = json.loads(out)
    assert status == 0
    assert (told["problem"]["devices"], told["problem"]["row_order"], told["problem"]["causal"]) == (3, "zigzag", True)
    assert {row["variant"] for row in told["rows"]} == VARIANTS
    for row in told["rows"]:
        rank = 5 if row["variant"].startswith("ring-fa3") else 1  # which copies whole tiles
        assert (row["verdict"], row["rank"], row["claim_holds"]) == ("pass", rank, True)
        assert row["link_bytes"] == 2 * 26 * 16 * 2 * 2  # all K and V, twice
        assert 0 < row["device_bytes"] < told["rows"][0]["allocated_bytes"]


def test_other_operations_have_no_links(capsys: pytest.CaptureFixture[str]):
    words = (
        "compare",
        "--variants",
        "fa2-cupy",
        "--seq-len",
        "26",
        "--heads",
        "2",
        "--kv-heads",
        "1",
        "--head-dim",
        "16",
    )
    _, out, _ = call(capsys, *words, "--dtype", "float16", "--format", "json")
    (row,) = json.loads(out)["rows"]
    assert row["link_bytes"] is None and row["device_bytes"] is None
    _, out, _ = call(capsys, *words, "--dtype", "float16")
    assert "links" not in out


def test_traffic_shows_each_link_and_each_device(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "traffic", "ring-cupy", *SMALL_OF_16_BITS)
    assert status == 0 and "Claim: exact." in out and "L2 and DRAM are unknown: caches of several devices" in out
    assert "\nlinks " in out and "\n2 to 0 " in out and "\nQ@2b " in out
    _, out, _ = call(capsys, "traffic", "ring-cupy", *SMALL_OF_16_BITS, "--format", "json")
    told = json.loads(out)
    assert [link["name"] for link in told["links"]] == ["0 to 1", "1 to 2", "2 to 0"]
    assert all(link["total_bytes"] == link["claimed_bytes"] > 0 for link in told["links"])
    assert all(0 < each["total_bytes"] <= each["most_bytes"] for each in told["devices"]) and len(told["devices"]) == 3
    _, out, _ = call(capsys, "traffic", "ring-cupy", *SMALL_OF_16_BITS, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["name"] for row in rows if row["table"] == "link"] == ["0 to 1", "1 to 2", "2 to 0"]


def test_show_says_what_is_copied_and_held_and_where_kernels_run(capsys: pytest.CaptureFixture[str]):
    status, out, _ = call(capsys, "show", "ring-cupy", *SMALL_OF_16_BITS)
    assert status == 0 and "24 copies between devices, 3,328 bytes" in out
    assert "Bytes that devices 0 to 2 hold: " in out and "kernel      device  grid" in out


def test_why_and_gaps_in_orders_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]):
    status, _, err = call(capsys, "why", "ring-cupy", *SMALL_OF_16_BITS)
    assert status == 2 and err.count("\n") == 1 and "it has no model of several devices and their links" in err
    status, _, err = call(capsys, "compare", *RING, "--row-order", "zigzak")
    assert status == 2 and "did you mean 'zigzag'" in err and err.count("\n") == 1


def test_run_takes_whole_arrays_and_returns_whole_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    rng = np.random.default_rng(0)
    words = []
    for name, heads in (("q", 2), ("k", 1), ("v", 1)):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((1, heads, 26, 16)).astype(np.float16))
        words += [f"--{name}", str(tmp_path / f"{name}.npy")]
    out, lse = tmp_path / "o.npy", tmp_path / "lse.npy"
    words += ["--devices", "3", "--row-order", "zigzag", "--causal", "--out", str(out), "--lse", str(lse)]
    status, _, err = call(capsys, "run", "ring-cupy", *RING, *words)
    assert status == 0, err
    assert np.load(out).shape == (1, 2, 26, 16) and np.load(lse).shape == (1, 2, 26)
    Q, K, V = (np.load(tmp_path / f"{name}.npy").astype(float) for name in "qkv")
    scores = np.where(np.tril(np.ones((26, 26), bool)), Q @ K.swapaxes(2, 3) / 4, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = weights @ V / weights.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(np.load(out).astype(float), expected, atol=2e-3)


def test_fuzz_replays_a_case(capsys: pytest.CaptureFixture[str]):
    case = {
        "operation": "ring-attention", "heads": 2, "kv_heads": 1, "q_len": 26, "kv_len": 26, "head_dim": 16,
        "dtype": "float16", "mask": "causal", "devices": 3, "row_order": "striped", "regime": "hot", "seed": 3,
    }  # fmt: skip
    status, out, _ = call(capsys, "fuzz", "ring-cupy", "--replay", json.dumps(case))
    assert status == 0 and "passes" in out and "over 3 devices in striped order" in out
