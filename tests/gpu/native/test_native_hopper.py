"""On a GPU: products of warpgroups and boxes of tensors are, bit by bit, what the emulator makes of them."""

from __future__ import annotations

from typing import Any

import cupy
import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from harness.gpu.context import GpuContext, gpu_available
from harness.gpu.executor import GpuExecutor
from harness.model.operation import draw_inputs
from harness.model.plan import Launch
from harness.model.tensor_map import TensorMap
from tests.emulator.bulk_copies import WHOLE, X
from tests.emulator.bulk_reductions import FORMS, TENSOR, drawn, every_form
from tests.emulator.hopper_kernel import HEAD, run_hopper
from tests.emulator.numba_boxes import PROBLEM, moved, moves_boxes, whole
from tests.emulator.warpgroup_kernels import COLUMNS, ROWS, TYPES, fragments, register_count

pytestmark = pytest.mark.skipif(not gpu_available(), reason="needs a GPU")

FORMATS = {
    "tf32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
BLOCKS = 1024
"""Of (64, 16) elements each: a million of them."""


def native(body: str, arrays: dict[str, np.ndarray], args: tuple[Any, ...], **launch: Any) -> dict[str, np.ndarray]:
    """As `run_hopper`, on the GPU."""
    context = GpuContext()
    kernel = cupy.RawKernel(f"{HEAD}\n{body}", "k", options=("-arch=sm_90a",))
    on_gpu = {name: cupy.asarray(array) for name, array in arrays.items()}
    cupy.cuda.Device().synchronize()
    shared = launch.get("shared_bytes", 0)
    context.bind(Launch(kernel, launch.get("grid", (1,)), launch.get("block", (32,)), args, shared), on_gpu)()
    cupy.cuda.Device().synchronize()
    return {name: array.get() for name, array in on_gpu.items()}


def patterns(kind: str, depth: int, rows: int, draw: str) -> np.ndarray:
    """Factors of many blocks: normal numbers with exponents apart, or any patterns whatever."""
    rng = np.random.default_rng(rows)
    shape = (BLOCKS * rows, depth)
    word = {"tf32": np.uint32, "f16": np.uint16, "bf16": np.uint16}.get(kind, np.uint8)
    if draw == "any" or kind in ("s8", "u8"):
        return rng.integers(0, np.iinfo(word).max, shape, word, endpoint=True)
    spread = 8 if word != np.uint8 else 4
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread, shape)
    return values.astype(FORMATS[kind]).view(word)


@pytest.mark.parametrize("draw", ["normal", "any"])
@pytest.mark.parametrize(("types", "depth"), TYPES)
def test_bits_of_products(types: str, depth: int, draw: str) -> None:
    kinds = types.split(".")[1:3]
    arrays = {
        name: patterns(kind, depth, rows, draw).view(np.uint32)
        for name, kind, rows in zip("ab", kinds, (ROWS, COLUMNS), strict=True)
    }
    arrays["y"] = np.zeros((BLOCKS, 128, register_count(types)), np.uint32)
    call = fragments(types, depth), arrays, ("a", "b", "y", np.int32(2))
    launch: dict[str, Any] = {"grid": (BLOCKS, 1, 1), "block": (128, 1, 1)}
    expected, found = native(*call, **launch)["y"], run_hopper(*call, **launch)[0]["y"]
    wrong = np.argwhere(found != expected)
    first = tuple(wrong[0]) if len(wrong) else None
    assert first is None, f"{len(wrong)} of {found.size} words, first {first}: {found[first]:#x}, {expected[first]:#x}"


def test_every_reduction() -> None:
    """In one kernel, on operands that differ from those of the emulator's own test."""
    rng = np.random.default_rng(99)
    arrays = {name: np.concatenate([drawn(form, rng).view(np.uint8) for form in FORMS]) for name in "xy"}
    call = every_form(), arrays, ("x", "y")
    launch: dict[str, Any] = {"block": (1, 1, 1), "shared_bytes": arrays["x"].size}
    expected, found = run_hopper(*call, **launch)[0]["y"], native(*call, **launch)["y"]
    assert np.array_equal(found, expected)


def test_a_box_that_is_added() -> None:
    arrays = {"y": np.arange(64 * 32, dtype=np.float32).reshape(64, 32), "x": np.arange(256, dtype=np.float32)}
    args = (TensorMap("y", (30, 40), (128,), (16, 16), "float32"), "x", np.int32(20), np.int32(27))
    expected = run_hopper(TENSOR, arrays, args, grid=(2, 1, 1))[0]["y"]
    assert np.array_equal(native(TENSOR, arrays, args, grid=(2, 1, 1))["y"], expected)


@pytest.mark.parametrize(
    ("columns", "swizzle", "x", "y"), [(16, 0, 4, 3), (32, 128, 44, 60), (16, 64, 16, 1), (8, 32, 8, 0)]
)
def test_boxes_of_a_tensor(columns: int, swizzle: int, x: int, y: int) -> None:
    arrays = {"X": X, "Z": np.full((64, 64), -1, np.float32), "Y": np.zeros(4096, np.float32)}
    arrays["early"] = np.zeros(32, np.float32)
    maps = (TensorMap(name, (60, 62), (256,), (columns, 16), "float32", swizzle) for name in "XZ")
    call = WHOLE, arrays, (*maps, "Y", "early", np.int32(x), np.int32(y), np.int32(columns * 64))
    expected, (found, _) = native(*call, shared_bytes=8192), run_hopper(*call, shared_bytes=8192)
    for name in "YZ":
        assert np.array_equal(found[name], expected[name])


@pytest.mark.parametrize("kernel", [moves_boxes, cuda.jit(moves_boxes.py_func)], ids=["launched as PTX", "by Numba"])
def test_numba_is_given_the_address_of_a_tensor_map(kernel: Any) -> None:
    inputs = draw_inputs(PROBLEM, "normal", 1)
    plan = moved(whole("Q"), whole("O", 2), kernel=kernel)
    executor = GpuExecutor(timed=False)
    for _ in range(2):
        assert np.array_equal(executor.run(PROBLEM, plan, inputs).outputs["O"], inputs["Q"])
