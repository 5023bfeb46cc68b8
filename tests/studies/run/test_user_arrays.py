from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from harness.model.operation import operation_named
from harness.operations.attention.masks import parse_mask
from harness.studies.run.user_arrays import UserArrays, load_arrays
from harness.support.errors import UsageError

pytestmark = pytest.mark.compiles(False)

ATTENTION = operation_named("attention")
SHAPES = {"Q": (2, 4, 5, 8), "K": (2, 2, 7, 8), "V": (2, 2, 7, 8)}


def saved(folder: Path, shapes: dict[str, tuple[int, ...]] = SHAPES, **arrays: np.ndarray) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    paths = {}
    for name, shape in shapes.items():
        paths[name] = folder / f"{name}.npy"
        np.save(paths[name], arrays.get(name, rng.standard_normal(shape).astype(np.float32)))
    return paths


def test_four_axes_are_taken_as_they_are(tmp_path: Path):
    arrays = load_arrays(ATTENTION, saved(tmp_path))
    problem = arrays.problem({"mask": parse_mask("causal"), "scale": 0.5})
    assert (problem.batch, problem.heads, problem.kv_heads) == (2, 4, 2)
    assert (problem.q_len, problem.kv_len, problem.head_dim, problem.dtype) == (5, 7, 8, "float32")
    assert problem.causal
    assert problem.tau == 0.5
    assert arrays.inputs["Q"].shape == problem.q_shape


def test_two_axes_are_one_head_and_outputs_have_two_again(tmp_path: Path):
    arrays = load_arrays(ATTENTION, saved(tmp_path, {"Q": (5, 8), "K": (7, 8), "V": (7, 8)}))
    problem = arrays.problem({})
    assert problem.q_shape == arrays.inputs["Q"].shape == (1, 1, 5, 8)
    assert np.load(io.BytesIO(arrays.npy(np.ones(problem.q_shape, np.float32)))).shape == (5, 8)
    assert np.load(io.BytesIO(arrays.npy(np.ones(problem.lse_shape, np.float32)))).shape == (5,)


def test_any_memory_order_and_byte_order_gives_the_same_values(tmp_path: Path):
    q = np.random.default_rng(1).standard_normal(SHAPES["Q"]).astype(np.float32)
    for stored in (np.asfortranarray(q), q.astype(">f4")):
        arrays = load_arrays(ATTENTION, saved(tmp_path, Q=stored))
        found = arrays.all_inputs(arrays.problem({}))["Q"]
        assert found.dtype == np.float32
        assert found.dtype.isnative
        assert found.flags.c_contiguous
        assert np.array_equal(found, q)


@pytest.mark.parametrize("as_bits", [True, False])
def test_bfloat16_is_its_bits_and_comes_out_as_bits(tmp_path: Path, as_bits: bool):
    arrays = {name: np.ones(shape, ml_dtypes.bfloat16) for name, shape in SHAPES.items()}
    if as_bits:
        arrays = {name: array.view(np.uint16) for name, array in arrays.items()}
    paths = saved(tmp_path, **arrays)
    with pytest.raises(UsageError, match="--dtype bfloat16"):
        load_arrays(ATTENTION, paths)
    found = load_arrays(ATTENTION, paths, "bfloat16")
    assert found.dtype == "bfloat16"
    assert (found.inputs["Q"].astype(np.float32) == 1).all()
    out = np.load(io.BytesIO(found.npy(found.inputs["Q"])))
    assert out.dtype == np.uint16
    assert (out.view(ml_dtypes.bfloat16).astype(np.float32) == 1).all()


def broken(path: Path, kind: str) -> None:
    whole = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind == "a folder":
        path.unlink()
        path.mkdir()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("0.1 0.2 0.3")
    elif kind == "header cut":
        path.write_bytes(whole[:40])
    elif kind == "header damaged":
        path.write_bytes(whole[:12] + b"{]" + whole[14:])
    elif kind == "data cut":
        path.write_bytes(whole[:-1])
    elif kind == "too large":
        path.write_bytes(whole.replace(b"(2, 4, 5, 8)", b"(2, 4, 5e9)").replace(b"5e9", b"987654321987"))
    elif kind == "archive":
        with path.open("wb") as file:
            np.savez(file, a=np.zeros(3))
    elif kind == "pickle":
        np.save(path, np.array([{"a": 1}]), allow_pickle=True)


@pytest.mark.parametrize(
    "kind",
    [
        "missing", "a folder", "empty", "text", "header cut", "header damaged", "data cut", "too large", "archive",
        "pickle",
    ],
)  # fmt: skip
def test_a_missing_or_broken_file_is_one_line_that_names_it(tmp_path: Path, kind: str):
    paths = saved(tmp_path)
    broken(paths["Q"], kind)
    with pytest.raises(UsageError) as caught:
        load_arrays(ATTENTION, paths)
    assert str(caught.value).startswith("Q: ")
    assert str(paths["Q"]) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_in_a_file_is_ever_executed(tmp_path: Path):
    class Bomb:
        def __reduce__(self):
            return Path.write_text, (tmp_path / "exploded", "")

    paths = saved(tmp_path)
    np.save(paths["Q"], np.array([Bomb()]), allow_pickle=True)
    with pytest.raises(UsageError):
        load_arrays(ATTENTION, paths)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"Q": (5, 8)}, "all have to be (batch, head, row, column)"),
        ({"Q": (8,), "K": (8,), "V": (8,)}, "all have to be (batch, head, row, column)"),
        ({"Q": (2, 4, 0, 8)}, "no extent may be 0"),
        ({"V": (2, 2, 6, 8)}, "K has shape (2, 2, 7, 8) and V (2, 2, 6, 8)"),
        ({"Q": (3, 4, 5, 8)}, "Q has batch 3"),
        ({"Q": (2, 4, 5, 9)}, "rows of Q have 9 elements"),
        ({"Q": (2, 3, 5, 8)}, "not a multiple of kv_heads"),
    ],
)
def test_shapes_that_do_not_fit_together(tmp_path: Path, shapes: dict[str, tuple[int, ...]], words: str):
    with pytest.raises(UsageError) as caught:
        load_arrays(ATTENTION, saved(tmp_path, SHAPES | shapes)).problem({})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("dtypes", "option", "words"),
    [
        ({"Q": "f8"}, None, "float64"),
        ({"Q": "i4"}, None, "int32"),
        ({"Q": "f2"}, None, "Q is float16, K is float32"),
        ({}, "float16", "holds float32, but --dtype is float16"),
        ({}, "bfloat16", "holds float32, but --dtype is bfloat16"),
        ({}, "float64", "choose one of"),
        ({"Q": "u2"}, None, "if these are the bits of bfloat16"),
    ],
)
def test_dtypes_are_never_converted_silently(tmp_path: Path, dtypes: dict[str, str], option: str | None, words: str):
    arrays = {name: np.ones(SHAPES[name], np.dtype(dtype)) for name, dtype in dtypes.items()}
    with pytest.raises(UsageError) as caught:
        load_arrays(ATTENTION, saved(tmp_path, **arrays), option)
    assert words in str(caught.value)


HEADS = np.array([0.5, 0.25, 3.0, -np.inf], np.float32)


def saved_further(folder: Path, **arrays: np.ndarray) -> dict[str, Path]:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: folder / f"{name}.npy" for name in arrays}


def test_slopes_and_sinks_that_are_given_say_that_there_are_some(tmp_path: Path):
    arrays = load_arrays(ATTENTION, saved(tmp_path), further=saved_further(tmp_path, slopes=HEADS, sinks=HEADS))
    problem = arrays.problem({"softcap": 5.0})
    assert problem.score_features == ("softcap", "alibi", "sinks")
    inputs = arrays.all_inputs(problem)
    assert list(inputs) == [tensor.name for tensor in problem.inputs]
    assert np.array_equal(inputs["slopes"], HEADS) and np.array_equal(inputs["sinks"], HEADS)


def test_alibi_alone_has_the_papers_slopes(tmp_path: Path):
    arrays = load_arrays(ATTENTION, saved(tmp_path))
    problem = arrays.problem({"alibi": True})
    inputs = arrays.all_inputs(problem)
    assert inputs["slopes"].tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8] and "sinks" not in inputs
    assert inputs["slopes"].dtype == np.float32


@pytest.mark.parametrize(
    "array", [HEADS[:3], HEADS.astype(np.float64), HEADS[None]], ids=lambda a: f"{a.dtype}{a.shape}"
)
def test_sinks_of_another_shape_or_dtype(tmp_path: Path, array: np.ndarray):
    arrays = load_arrays(ATTENTION, saved(tmp_path), further=saved_further(tmp_path, sinks=array))
    with pytest.raises(UsageError, match=r"sinks: .*sinks\.npy holds .*; it has to be float32\(4,\): \(head\)"):
        arrays.all_inputs(arrays.problem({}))


def test_an_input_that_is_not_given_and_has_no_usual_one(tmp_path: Path):
    arrays = load_arrays(ATTENTION, saved(tmp_path))
    with pytest.raises(UsageError, match=r"this problem has an input sinks; give it with --sinks FILE\.npy"):
        arrays.all_inputs(arrays.problem({"sinks": True}))


def test_the_holder_keeps_what_it_is_given():
    arrays = UserArrays(ATTENTION, {"Q": np.zeros((1, 1, 2, 3), np.float16)}, "float16", axes_left_out=0)
    assert np.load(io.BytesIO(arrays.npy(arrays.inputs["Q"]))).dtype == np.float16


def test_gigabytes_that_do_not_fit_together_are_refused_unread(tmp_path: Path):
    paths = saved(tmp_path)
    header = {"descr": "<f4", "fortran_order": False, "shape": (1, 3, 2**22, 64)}
    with paths["K"].open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 4 * 3 * 2**22 * 64)  # 3 GiB, none of which is on the disk
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="have to be the same"):
            load_arrays(ATTENTION, paths).problem({})
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


PAGED = operation_named("paged-attention")
IN_PAGES = {"Q": (2, 4, 1, 16), "K": (3, 2, 16, 16), "V": (3, 2, 16, 16), "table": (2, 1), "lengths": (2,)}


def saved_in_8_bits(folder: Path, stored: np.ndarray, scales: np.ndarray) -> tuple[dict[str, Path], dict[str, Path]]:
    """Files of the inputs, and of the scales."""
    tables = {"table": np.array([[2], [0]], np.int32), "lengths": np.array([5, 16], np.int32)}
    paths = saved(folder, IN_PAGES, Q=np.ones(IN_PAGES["Q"], np.float16), K=stored, V=stored, **tables)
    names = ("K_scale", "V_scale")
    return paths, saved(folder, dict.fromkeys(names, scales.shape), **dict.fromkeys(names, scales))


@pytest.mark.parametrize("kind", ["float8", "uint8", "raw"])
def test_scales_say_that_keys_and_values_are_e4m3(tmp_path: Path, kind: str):
    stored = np.full(IN_PAGES["K"], 1.5, ml_dtypes.float8_e4m3fn)
    stored = {"float8": stored, "uint8": stored.view(np.uint8), "raw": stored.view("V1")}[kind]
    paths, scales = saved_in_8_bits(tmp_path, stored, np.array([2, 3], np.float32))
    arrays = load_arrays(PAGED, paths, further=scales)
    problem = arrays.problem({})
    assert (problem.kv_dtype, problem.dtype, problem.lengths) == ("e4m3", "float16", (5, 16))
    inputs = arrays.all_inputs(problem)
    assert (inputs["V"].astype(np.float32) == 1.5).all() and inputs["K_scale"].tolist() == [2, 3]
    alone = load_arrays(PAGED, paths, further={"K_scale": scales["K_scale"]})
    with pytest.raises(UsageError, match="input V_scale; give it with --v-scale FILE"):
        alone.all_inputs(alone.problem({}))
    with pytest.raises(UsageError, match=r"K: .*; it has to be float32, float16"):
        load_arrays(PAGED, paths)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 2.0**-127])
def test_scales_are_normal_numbers_above_0(tmp_path: Path, scale: float):
    paths, scales = saved_in_8_bits(tmp_path, np.ones(IN_PAGES["K"], np.uint8), np.array([1, scale], np.float32))
    with pytest.raises(UsageError, match=f"the scale of key/value head 1 is {scale}; it has to be at least 1.18e-38"):
        load_arrays(PAGED, paths, further=scales).problem({})


def test_16_bits_with_scales_are_refused(tmp_path: Path):
    paths, scales = saved_in_8_bits(tmp_path, np.ones(IN_PAGES["K"], np.float16), np.ones(2, np.float32))
    with pytest.raises(UsageError, match="holds float16; with scales it has to be float8_e4m3fn, or its bits as uint8"):
        load_arrays(PAGED, paths, further=scales)
