"""`harness.run`: arrays of a caller in Python, their strides, and outputs of the same library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import harness
from harness import UnsupportedProblem, UsageError
from harness.cli import main
from harness.model.operation import draw_inputs
from harness.operations.attention_backward.problem import BackwardProblem
from harness.studies.run.python_arrays import as_numpy, layout_of
from harness.support.errors import ProblemError

SHAPES = {"q": (1, 2, 40, 16), "k": (1, 2, 50, 16), "v": (1, 2, 50, 16)}
EMULATED = {"device": "emulator"}


def drawn(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()}


class WithDlpack:
    """An array of some library in host memory."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_it_does_what_the_command_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arrays = drawn()
    words = ["run", "fa2-cupy", "--causal", "--device", "emulator"]
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        words += [f"--{name}", str(tmp_path / f"{name}.npy")]
    written = {"out": tmp_path / "o.npy", "lse": tmp_path / "lse.npy"}
    assert main([*words, *(word for name, path in written.items() for word in (f"--{name}", str(path)))]) == 0
    found = harness.run("fa2-cupy", **arrays, causal=True, **EMULATED)
    assert f"{found!r}\n" == capsys.readouterr().out
    assert found.passed and found.result.rows[0].verdict == "pass"
    assert np.array_equal(found.outputs["O"], np.load(written["out"]))
    assert np.array_equal(found.outputs["lse"], np.load(written["lse"]))


def test_strides_reach_the_kernel_only_if_asked():
    arrays = drawn(np.float16)
    apart = {
        name: np.ascontiguousarray(each.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for name, each in arrays.items()
    }
    copied, lying = (harness.run("fa2-cupy", **apart, layout=layout, **EMULATED) for layout in (None, "given"))
    assert copied.result.problem.layout.text == "bhsd"
    assert lying.result.problem.layout.text == "strides:Q=1280/16/32/1,K=1600/16/32/1,V=1600/16/32/1,O=1280/16/32/1"
    assert np.array_equal(copied.outputs["O"], lying.outputs["O"]) and lying.passed
    with pytest.raises(
        UnsupportedProblem, match="row-wise-cupy does not support this problem: it does not support layout"
    ):
        harness.run("row-wise-cupy", **apart, layout="given", **EMULATED)


def test_gradients_take_the_strides_of_their_inputs():
    problem = BackwardProblem(heads=2, q_len=5, kv_len=7, head_dim=8, v_head_dim=12)
    drawn = {name.lower(): array for name, array in draw_inputs(problem, "normal", 0).items()}
    apart = {
        name: array
        if name in ("lse", "do")
        else np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        for name, array in drawn.items()
    }
    options = {"operation": "attention-backward", **EMULATED}
    copied, lying = (
        harness.run("bwd-fa2-ordered-cupy", **apart, layout=layout, **options) for layout in (None, "given")
    )
    placed = {tensor.name: tensor.strides[1:] for tensor in lying.result.problem.tensors}
    assert placed["O"] == (12, 24, 1) and placed["dO"] == (60, 12, 1) and placed["dV"] == (12, 24, 1)
    assert lying.passed
    assert all(np.array_equal(copied.outputs[name], lying.outputs[name]) for name in ("dQ", "dK", "dV"))


@pytest.mark.compiles(False)
def test_an_axis_of_one_may_have_any_stride():
    arrays = {
        name.upper(): np.lib.stride_tricks.as_strided(each, strides=(4, *each.strides[1:]))
        for name, each in drawn().items()
    }
    assert dict(layout_of(arrays, 0).strides)["K"] == (1600, 800, 16, 1)


@pytest.mark.compiles(False)
def test_rows_of_the_output_are_as_long_as_those_of_v():
    arrays = {name.upper(): each for name, each in drawn().items()}
    assert dict(layout_of(arrays | {"V": arrays["V"][..., :8]}, 0).strides)["O"] == (640, 320, 8, 1)


@pytest.mark.compiles(False)
def test_a_layout_that_kernels_cannot_have_is_refused():
    arrays = {name.upper(): each for name, each in drawn().items()}
    with pytest.raises(UsageError, match="needs arrays"):
        layout_of(arrays, 2)
    with pytest.raises(UsageError, match="whole elements, forwards"):
        layout_of(arrays | {"K": arrays["K"][:, :, ::-1]}, 0)
    with pytest.raises(ProblemError, match="last axis of K has stride 2"):
        layout_of(arrays | {"K": np.repeat(arrays["K"], 2, axis=-1)[..., ::2]}, 0)


def test_one_head_of_bfloat16_by_dlpack_and_a_bias():
    heads = {name: each[0, 0] for name, each in drawn(ml_dtypes.bfloat16).items()}
    bias = np.zeros((1, 1, 50), np.float32)
    found = harness.run("fa2-cupy", **heads, bias=bias, **EMULATED)
    assert found.outputs["O"].shape == (40, 16) and found.outputs["O"].dtype == ml_dtypes.bfloat16
    assert found.result.problem.bias
    again = {name: WithDlpack(each.view(np.uint16)) for name, each in heads.items()}
    assert np.array_equal(
        harness.run("fa2-cupy", **again, dtype="bfloat16", bias=bias, **EMULATED).outputs["O"], found.outputs["O"]
    )


@pytest.mark.compiles(False)
def test_wrong_calls_are_one_line():
    arrays = drawn()
    for wrong, said in {
        "run() needs k, v: an array for each of Q, K, V": {"q": arrays["q"]},
        "Q is a list; pass an array of NumPy, PyTorch or CuPy, or one that has __dlpack__": arrays | {"q": [1.0]},
        "Q: the array holds float64; it has to be float32": arrays | {"q": arrays["q"].astype(np.float64)},
        "run() has no option 'seq_len'": arrays | {"seq_len": 4},
        "run() has no option 'heads': the arrays say what it is": arrays | {"heads": 4},
        "K has shape (1, 2, 49, 16) and V (1, 2, 50, 16)": arrays | {"k": arrays["k"][:, :, :49]},
    }.items():
        with pytest.raises(UsageError) as caught:
            harness.run("fa2-cupy", **said, **EMULATED)
        assert wrong in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=r"'fa\*' is a pattern; give the full name of one variant"):
        harness.run("fa*", **arrays, **EMULATED)


@pytest.mark.compiles(False)
def test_numpy_arrays_are_not_copied():
    array = drawn()["q"]
    assert as_numpy("Q", array) is array


def test_unpadded_sequences_go_in_as_flash_attn_varlen_func_takes_them():
    """The answer is that of each sequence alone; a strided view goes in as it lies."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 2, 16)).astype(np.float32) for n in (7, 9, 9))
    starts = {"cu_seqlens_q": np.array([0, 5, 5, 7], np.int32), "cu_seqlens_k": np.array([0, 4, 6, 9], np.int64)}
    found = harness.run("fa2-cupy", q=q, k=k, v=v, causal=True, **starts, **EMULATED)
    assert found.passed and found.outputs["O"].shape == (7, 2, 16) and found.outputs["lse"].shape == (2, 7)
    for rows, keys in ((slice(0, 5), slice(0, 4)), (slice(5, 7), slice(6, 9))):
        alone = harness.run("fa2-cupy", q=q[None, rows].transpose(0, 2, 1, 3), k=k[None, keys].transpose(0, 2, 1, 3),
                            v=v[None, keys].transpose(0, 2, 1, 3), causal=True, **EMULATED)  # fmt: skip
        np.testing.assert_allclose(found.outputs["O"][rows], alone.outputs["O"][0].transpose(1, 0, 2), atol=1e-6)
        np.testing.assert_allclose(found.outputs["lse"][:, rows], alone.outputs["lse"][0], atol=1e-6)
    packed = np.concatenate([q, q, q], axis=1)
    views = {name: packed[:, 2 * n : 2 * n + 2] for n, name in enumerate("qkv")}
    again = harness.run("fa2-cupy", **views, cu_seqlens_q=starts["cu_seqlens_q"], layout="given", **EMULATED)
    assert again.passed and again.outputs["O"].shape == (7, 2, 16)
    for wrong, message in (
        ({"cu_seqlens_q": np.array([0, 5, 6])}, r"Q has shape \(7, 2, 16\); with cu_seqlens it has to be \(6, heads"),
        ({"cu_seqlens_q": np.array([1, 5, 7])}, "begins with 1"),
        ({"cu_seqlens_q": np.array([0.0, 7.0])}, "has to be"),
    ):
        with pytest.raises(UsageError, match=message):
            harness.run("fa2-cupy", q=q, k=q, v=q, **wrong, **EMULATED)


def test_gradients_of_unpadded_sequences_have_the_shapes_of_what_they_are_gradients_of():
    rng = np.random.default_rng(1)
    q, k, v, do = (rng.standard_normal((n, 2, 16)).astype(np.float32) for n in (7, 9, 9, 7))
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": np.array([0, 5, 5, 7]), "cu_seqlens_k": np.array([0, 4, 6, 9])}
    o, lse = (harness.run("fa2-cupy", **given, **EMULATED).outputs[name] for name in ("O", "lse"))
    given |= {"operation": "attention-backward", "o": o, "do": do}
    found = harness.run("bwd-fa2-cupy", **given, lse=lse, **EMULATED)
    assert found.passed
    assert {name: x.shape for name, x in found.outputs.items()} == {"dQ": q.shape, "dK": k.shape, "dV": v.shape}
    assert not found.outputs["dK"][4:6].any()  # keys of the sequence without rows
    with pytest.raises(UsageError, match=r"lse has shape \(2, 6\); with cu_seqlens it has to be \(heads, 7\)"):
        harness.run("bwd-fa2-cupy", **given, lse=lse[:, 1:], **EMULATED)
