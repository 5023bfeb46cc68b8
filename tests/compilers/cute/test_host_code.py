"""Host code runs without CuTe and without a GPU, and its launches are recorded."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from sample_cute import MACHINE_CODE, fill, host_code

from harness import CuteFunction, CuteTensor
from harness.compilers import DevicePointer
from harness.compilers.cute.host_code import HostCode, machine_code, symbols
from harness.compilers.cute.tvm_ffi import PackedArguments, Tensor
from harness.support.errors import CompileError, PlanError

X = CuteTensor("x", (100,), (1,), "float32", offset=8)


def test_a_launch_has_what_the_host_code_computes() -> None:
    """The grid has an H100's multiprocessors. Parameters have the address at which the buffer lies."""
    (launch,) = fill().launches(X, np.float32(2.5))
    assert (launch.grid, launch.block, launch.cluster, launch.shared_bytes) == (
        (132, 1, 1),
        (32, 1, 1),
        (2, 1, 1),
        1024,
    )
    assert (launch.kernel_name, launch.kernel.entry, launch.args) == ("fill", "fill", ("x",))
    for address in (0x7000, 0x1_0000_0000_0000):
        words = launch.kernel.parameters((DevicePointer(address, (200,), "float32"),))
        assert words == (struct.pack("<QQ", address + 32, 100), struct.pack("<f", 2.5))


def test_the_functions_own_message() -> None:
    with pytest.raises(PlanError, match="CuTe function fill: expects two things"):
        fill().launches(X)


def test_an_attribute_that_is_not_known() -> None:
    with pytest.raises(PlanError, match=r"CuTe function fill: .* reads device attribute 999, which is unknown"):
        fill(attribute="999").launches(X, 1.0)


def test_a_function_of_the_runtime_that_is_not_there() -> None:
    more = """
declare void @_cudaGraphLaunchOfTests()
define void @more() {
  call void @_cudaGraphLaunchOfTests()
  ret void
}
"""
    with pytest.raises(CompileError, match="calls _cudaGraphLaunchOfTests, which is not supported"):
        fill(more=more).launches(X, 1.0)


def test_host_code_of_another_name() -> None:
    image = host_code().replace(b"__tvm_ffi_launch", b"__tvm_ffi_lAunch")
    with pytest.raises(CompileError, match="no function __tvm_ffi_launch"):
        HostCode(image, {})


@pytest.mark.parametrize("image", [b"", b"MZ", b"\x7fELF\x01\x01" + bytes(60)])
def test_what_is_no_object_file(image: bytes) -> None:
    with pytest.raises(CompileError, match="is no 64-bit ELF object file"):
        CuteFunction("f", image, ".visible .entry k() { ret; }").launches()


def test_the_machine_code_is_a_symbol() -> None:
    assert machine_code(host_code()) == MACHINE_CODE
    needed = {symbol.name for symbol in symbols(host_code()) if symbol.data is None}
    assert "_cudaLaunchKernelEx" in needed and "kernels_binary" not in needed


@pytest.mark.parametrize(
    ("argument", "kind", "value"),
    [
        (None, 0, 0), (7, 1, 7), (np.int32(-1), 1, 2**64 - 1), (True, 2, 1), (np.bool_(False), 2, 0),
        (0.5, 3, 0x3FE0000000000000), (np.float32(0.5), 3, 0x3FE0000000000000),
    ],
)  # fmt: skip
def test_numbers(argument: Any, kind: int, value: int) -> None:
    packed = PackedArguments((argument,))
    assert (packed.values[0].type, packed.values[0].value, packed.count) == (kind, value, 1)


def test_a_tuple_is_an_array_object() -> None:
    packed = PackedArguments(((None, 5, (6,)),))
    assert packed.values[0].type == 71


@pytest.mark.parametrize(
    ("argument", "told"),
    [("x", "given a str"), (Tensor(0, (1,), (1,), "complex64"), "array of complex64; it takes float16, bfloat16")],
)
def test_what_is_no_argument(argument: Any, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        PackedArguments((argument,))
