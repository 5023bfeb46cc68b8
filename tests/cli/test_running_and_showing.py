"""What `run` does with arrays of the user, and what `show` prints."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from command_lines import BROKEN, NAME, RIGHT, SMALL, arrays, run_arguments

from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

# --- run -------------------------------------------------------------------------------------------------------------


def test_run_on_the_users_own_arrays(call, tmp_path: Path):
    problem = Problem(batch=2, heads=4, kv_heads=2, q_len=9, kv_len=7, head_dim=6, mask="causal", scale=0.3)
    reference = attention(problem, arrays(tmp_path, problem))
    done = call(*run_arguments(tmp_path, lse=tmp_path / "lse.npy"), "--causal", "--scale", "0.3")
    assert done.status == 0, done.err
    assert "the user's arrays" in done.out
    assert np.allclose(np.load(tmp_path / "out.npy"), reference["O"], atol=1e-5)
    assert np.allclose(np.load(tmp_path / "lse.npy"), reference["lse"], atol=1e-5)
    assert np.load(tmp_path / "out.npy").dtype == np.float32


def test_run_on_a_single_head(call, tmp_path: Path):
    problem = Problem(heads=1, q_len=9, kv_len=7, head_dim=6)
    reference = attention(problem, arrays(tmp_path, problem, single_head=True))
    assert call(*run_arguments(tmp_path)).status == 0
    out = np.load(tmp_path / "out.npy")
    assert out.shape == (9, 6)
    assert np.allclose(out, reference["O"][0, 0], atol=1e-5)


def test_run_with_bfloat16_bits(call, tmp_path: Path):
    if "fa2-cupy" not in call("list").out:
        pytest.skip("needs a variant that takes bfloat16")
    problem = Problem(heads=1, q_len=9, kv_len=7, head_dim=8, dtype="bfloat16")
    reference = attention(problem, arrays(tmp_path, problem))
    arguments = run_arguments(tmp_path)
    arguments[1] = "fa2-cupy"
    assert "--dtype bfloat16" in call(*arguments).err
    assert call(*arguments, "--dtype", "bfloat16").status == 0
    out = np.load(tmp_path / "out.npy")
    assert out.dtype == np.uint16
    assert np.allclose(out.view(ml_dtypes.bfloat16).astype(np.float32), reference["O"], atol=0.05)


def test_a_variant_without_lse_is_not_asked_for_one(call, tmp_path: Path):
    arrays(tmp_path, Problem(q_len=4, kv_len=4, head_dim=4))
    arguments = run_arguments(tmp_path, lse=tmp_path / "lse.npy")
    arguments[1] = "bad-answer"
    done = call(*arguments, "--plugin", BROKEN)
    assert done.status == 2
    assert done.err == "harness: bad-answer stores no lse; leave out --lse\n"
    assert not (tmp_path / "out.npy").exists()


def test_a_wrong_answer_is_written_all_the_same_and_the_status_says_so(call, tmp_path: Path):
    arrays(tmp_path, Problem(q_len=4, kv_len=4, head_dim=4))
    arguments = run_arguments(tmp_path)
    arguments[1] = "bad-answer"
    done = call(*arguments, "--plugin", BROKEN)
    assert done.status == 1
    assert "bad-answer: fail: " in done.out
    assert (tmp_path / "out.npy").exists()


def test_a_kernel_that_faults_leaves_the_old_output_alone(call, tmp_path: Path):
    arrays(tmp_path, Problem(q_len=4, kv_len=4, head_dim=4))
    (tmp_path / "out.npy").write_text("precious")
    arguments = run_arguments(tmp_path)
    arguments[1] = "bad-address"
    assert call(*arguments, "--plugin", BROKEN).status == 1
    assert (tmp_path / "out.npy").read_text() == "precious"


# --- show ------------------------------------------------------------------------------------------------------------


def test_show_source_and_resources(call):
    done = call("show", NAME, "--plugin", RIGHT)
    assert (done.status, done.err) == (0, "")
    assert "__global__ void one_thread_per_row(" in done.out
    assert "registers" in done.out
    assert "2^" not in done.out
    line = next(line for line in done.out.splitlines() if line.startswith("one_thread_per_row "))
    assert "4 x 2 = 8 blocks" in line
    assert "64 threads" in line


def test_show_ptx(call):
    out = call("show", NAME, "--plugin", RIGHT, "--ptx").out
    assert ".visible .entry one_thread_per_row(" in out
    assert "__global__" not in out


def test_show_a_numba_kernel(call):
    if "fa2-numba" not in call("list").out:
        pytest.skip("needs a Numba variant")
    out = call("show", "fa2-numba").out
    assert "def " in out
    assert ".entry" in call("show", "fa2-numba", "--ptx").out


def test_show_order(call):
    done = call("show", NAME, "--plugin", RIGHT, "--order", *SMALL, "--variants", NAME)
    assert (done.status, done.err) == (0, "")
    assert f"{NAME}: the order in which it adds; batch 1, 2 heads, 20 x 20, head_dim 8" in done.out
    assert (
        "O = sum of P V over keys: 20 terms, each rounded at most 19 times\n    one after the other: keys 0" in done.out
    )
    assert "__global__" not in done.out


@pytest.mark.exhaustive
def test_show_order_beside_another_variant(call, tmp_path: Path):
    path = tmp_path / "order.json"
    kernel = Path(RIGHT).read_text()
    plugin = tmp_path / "backwards.py"
    plugin.write_text(kernel.replace("for (int j = 0; j < keys; ++j)", "for (int j = keys - 1; j >= 0; --j)")
                      .replace(f'"{NAME}"', '"backwards"'))  # fmt: skip
    options = ["--plugin", RIGHT, "--plugin", plugin, "--variants", "backwards", "--format", "json", "--output", path]
    done = call("show", NAME, "--order", *SMALL, *options)
    assert (done.status, done.out, done.err) == (0, "", "")
    order = json.loads(path.read_text())
    assert [(row["variant"], row["sum"], row["order"]) for row in order["variants"]] == [
        (NAME, "O", "A"), (NAME, "l", "A"), (NAME, "S", "A"),
        ("backwards", "O", "B"), ("backwards", "l", "B"), ("backwards", "S", "A"),
    ]  # fmt: skip
    assert order["sums"][0]["additions"][:2] == [[0, 1], [20, 2]]
