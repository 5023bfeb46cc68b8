"""What one architecture alone has, and tensor maps, from Numba: compiled and launched without Numba's own launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from numba import cuda
from sample_kernels import ARCH, buffer

from harness.compilers import compile_kernel, tensor_maps
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.numba.function_identity import function_identity
from harness.compilers.toolchains import toolchain_of
from harness.model.plan import Launch
from harness.model.tensor_map import TensorMap
from harness.support.errors import CompileError, PlanError

MAP = TensorMap("X", (64, 64), (256,), (32, 8), "float32")
OTHER = TensorMap("Y", (64, 64), (256,), (32, 8), "float32")


def keeps(y, x_map, y_map, n):  # type: ignore[no-untyped-def]
    y[0] = x_map ^ y_map + n


def test_a_kernel_asks_for_the_features_of_one_architecture() -> None:
    kernel = cuda.jit(arch="sm_90a")(keeps)
    args = (buffer(1, dtype="int64"), MAP, OTHER, np.int32(3))
    compiled = compile_kernel(kernel, args, ARCH)
    assert (compiled.arch, ".target sm_90a" in compiled.ptx) == ("sm_90a", True)
    assert compile_kernel(kernel, args, "sm_80").arch == "sm_80"
    plain = compile_kernel(cuda.jit(keeps), args, ARCH)
    assert (plain.arch, ".target sm_90a" in plain.ptx) == (ARCH, False)
    assert function_identity(kernel) != function_identity(cuda.jit(keeps))


@pytest.mark.parametrize("arch", [90, "90a", "sm_9x"])
def test_an_architecture_that_is_none_is_said(arch: object) -> None:
    with pytest.raises(CompileError, match=r'keeps has arch=.*; write arch="sm_90a"'):
        compile_kernel(cuda.jit(arch=arch)(keeps), (buffer(1), MAP, MAP, 1), ARCH)


def test_a_tensor_map_is_typed_as_its_address() -> None:
    compiled = compile_kernel(cuda.jit(keeps), (buffer(1, dtype="int64"), MAP, OTHER, np.int32(3)), ARCH)
    assert compiled.signature[1:] == ("uint64", "uint64", "int32")
    with pytest.raises(PlanError, match="compiled for uint64 as argument 2, but it is given int32"):
        compiled.pack((buffer(1, dtype="int64"), np.int32(1), np.uint64(1), np.int32(3)))
    # What is only listed lies nowhere.
    with pytest.raises(PlanError, match="keeps: a tensor map has to lie somewhere"):
        compiled.pack((buffer(1, dtype="int64"), MAP, OTHER, np.int32(3)))


class Memory(FakeDriver):
    """A GPU whose memory begins at 0x4000: what was uploaded there."""

    def __init__(self) -> None:
        super().__init__()
        self.uploaded: list[bytes] = []

    def empty(self, shape: tuple[int, ...], dtype: type) -> Any:
        return SimpleNamespace(
            shape=shape,
            data=SimpleNamespace(ptr=0x4000),
            set=lambda values, stream: self.uploaded.append(values.tobytes()),
        )


def test_maps_are_uploaded_once_and_launched_by_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = {"X": bytes(range(128)), "Y": bytes(range(128, 256))}
    monkeypatch.setattr(tensor_maps, "encode", lambda tensor_map, address: np.void(encoded[tensor_map.buffer]))
    driver = Memory()
    array = SimpleNamespace(data=SimpleNamespace(ptr=0x1000), shape=(4,), dtype=np.dtype(np.int64))
    launch = Launch(cuda.jit(arch="sm_90a")(keeps), (2,), (32,), ("Y", MAP, OTHER, np.int32(3)), 1024)
    call = toolchain_of(launch.kernel).bind(launch, {"X": array, "Y": array}, NativeGpu(driver, None, "a GPU", ARCH))
    assert driver.uploaded == [encoded["X"] + encoded["Y"]]
    call()
    call()
    (_, image), *launches = driver.calls
    assert b".target sm_90a" in image
    assert len(launches) == 2 and len(driver.uploaded) == 1
    _, grid, block, args, shared = launches[0]
    assert (grid, block, shared) == ((2,), (32,), {"shared_mem": 1024})
    assert [int(word) for word in args[-3:]] == [0x4000, 0x4080, 3]
    assert int(args[4]) == 0x1000


def test_maps_by_value_are_not_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_maps, "encode", lambda *_: np.void(bytes(128)))
    driver = Memory()
    launch = Launch(cuda.jit(keeps), (1,), (1,), (MAP, np.int32(3)))
    array = SimpleNamespace(data=SimpleNamespace(ptr=0x1000), shape=(4,), dtype=np.dtype(np.int64))
    gpu = NativeGpu(driver, None, "a GPU", ARCH)
    args, kept = tensor_maps.uploaded(launch, {"X": array}, gpu, by_value=True)
    assert (bytes(args[0].tobytes()), args[1], kept, driver.uploaded) == (bytes(128), 3, None, [])
