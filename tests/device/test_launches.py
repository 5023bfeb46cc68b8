"""Kernels of every language run on a device, and report what they moved."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from programs import ADD_ONE, MODULE, REVERSE, add, many_values_ptx, transpose, transpose_of_tile

from harness import Device, KernelFault, UsageError

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def device() -> Device:
    return Device()


def test_a_numba_kernel_is_typed_by_its_arguments(device: Device) -> None:
    for dtype in (np.float32, np.int64, np.complex64):
        x = device.array(np.arange(100).astype(dtype))
        out = device.empty(100, dtype)
        result = device.launch(add, 1, 128, (x, x, out))
        np.testing.assert_array_equal(out, 2 * np.arange(100).astype(dtype))
    moved = result.by_buffer("requested")
    # Both arguments are the same array, so it goes by the name of its memory.
    assert (moved["out"].written, moved[x.name].read) == (800, 1600)
    assert {line for (_, line) in result.by_line()} and result.warp_instructions > 0


def test_passes_of_shared_memory_are_counted_on_demand(device: Device) -> None:
    assert device.launch(transpose_of_tile(32), 1, 32, (device.empty(32),)).shared is None
    counting = Device(bank_conflicts=True)
    for columns, passes in ((32, 32), (33, 1)):
        result = counting.launch(transpose_of_tile(columns), 1, 32, (counting.empty(32),))
        assert result.shared is not None
        (load,) = (row for row in result.shared if row.kind == "load")
        assert (load.requests, load.wavefronts, load.ideal_wavefronts) == (1, passes, 1)
        assert re.search(rf"load +programs.py:\d+ +1 +{passes} +{passes - 1}$", str(result), re.MULTILINE)


def test_strided_and_fortran_arrays_reach_numba_with_their_strides(device: Device) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    kernel = device.kernel(transpose)
    for given in (
        device.array(values),
        device.array(np.asfortranarray(values)),
        device.array(np.tile(values, 2))[:, 4:],
    ):
        wide = device.zeros((8, 6))
        kernel[(1, 1), (4, 4)](given, wide[::2, ::2])
        np.testing.assert_array_equal(wide.numpy()[::2, ::2], values.T)
        assert not wide.numpy()[1::2].any()


def test_templates_of_a_raw_module_and_numbers_of_the_parameters_types(device: Device) -> None:
    module = device.module(MODULE)
    for name, dtype in (("scale<float>", np.float32), ("scale<int>", np.int32), ("scale<double>", np.float64)):
        x = device.array(np.arange(5), dtype)
        module[name][1, 32](x, 5, 3)
        np.testing.assert_array_equal(x, 3 * np.arange(5))
    with pytest.raises(UsageError, match=r"no kernel scale<char>; it has .*scale<float>"):
        module["scale<char>"]


def test_variables_of_a_module_are_its_own_and_last(device: Device) -> None:
    module, other = device.module(MODULE), device.module(MODULE)
    factor = module.variable("factor", np.float32)
    assert factor.numpy().tolist() == [2, 3, 4, 5]
    factor[1] = 10
    module["set_factor"][1, 32](2, 7.0)
    assert factor.numpy().tolist() == [2, 10, 7, 5]
    x = device.array(np.ones(32, np.float32))
    module["by_factor"][1, 32](x, 1)
    other["by_factor"][1, 32](x, 1)
    assert (x.numpy() == 30).all()
    # A kernel also takes the variable as a pointer.
    module["scale<float>"][1, 32](factor, 4, 2.0)
    assert factor.numpy().tolist() == [4, 20, 14, 10]
    with pytest.raises(UsageError, match="no variable table; it has factor"):
        module.variable("table")


def test_a_variable_and_a_pointer_to_it_are_one_memory_for_the_sanitizer() -> None:
    with Device(sanitize=True) as device:
        module = device.module(MODULE)
        factor = module.variable("factor", np.float32)
        (finding,) = module["by_factor"][1, 4](factor, 1).findings or ()
        assert (finding.kind, finding.target) == ("WAR race", "buffer factor")
        assert module["by_factor"][1, 1](factor, 1).findings == ()
        assert module["by_factor"][1, 4](device.array(np.ones(4, np.float32)), 1).findings == ()


def test_a_structure_by_value(device: Device) -> None:
    kernel = device.module(MODULE)["of_pair"]
    x = device.empty(32)
    pair = np.array((3, 0.5), [("first", np.int32), ("second", np.float32)])[()]
    for given in (pair, pair.tobytes()):
        x[...] = 0
        kernel[1, 32](x, given)
        assert (x.numpy() == 3.5).all()


def test_dynamic_shared_memory_and_a_race_in_it() -> None:
    with Device(sanitize=True) as device:
        x = device.array(np.arange(64, dtype=np.float32), name="x")
        kernel = device.kernel(REVERSE)
        assert kernel[1, 64, 256](x, 1).findings == ()
        np.testing.assert_array_equal(x, np.arange(64)[::-1])
        found = kernel[1, 64, 256](x, 0)
        assert {finding.kind for finding in found.findings or ()} == {"RAW race", "uninitialised read"}
        assert "A barrier is missing between" in str(found)
        assert [f.kind for f in kernel[1, 64, 256](device.empty(64), 1).findings or ()] == ["uninitialised read"]


def test_ptx_text_and_file(device: Device, tmp_path: Path) -> None:
    file = tmp_path / "add_one.ptx"
    file.write_text(ADD_ONE)
    for source in (ADD_ONE, file, str(file)):
        x = device.array(np.arange(8, dtype=np.uint32))
        result = device.module(source)["add_one"][1, 32](x, 8)
        np.testing.assert_array_equal(x, 1 + np.arange(8))
        assert result.by_buffer("requested")["values"].read == 32
    assert {Path(name).name for name, _ in result.by_line()} == {"add_one.ptx"}
    assert "values" in str(result) and "add_one.ptx:17" in str(result)


def test_a_fault_names_line_and_buffer_and_leaves_the_device_usable(device: Device) -> None:
    x = device.array(np.zeros(4, np.uint32), name="four")
    kernel = device.module(ADD_ONE)["add_one"]
    with pytest.raises(
        KernelFault, match=r"add_one.*:\d+ .*out-of-bounds load.*byte offset 16 of buffer four"
    ) as error:
        kernel[1, 32](x, 8)
    assert error.value.kind == "out of bounds"
    kernel[1, 32](x, 4)
    x.free()
    with pytest.raises(UsageError, match="array four was freed"):
        kernel[1, 32](x, 4)


def test_raw_parameters_and_addresses(device: Device) -> None:
    kernel = device.load_ptx(ADD_ONE)["add_one"]
    layout = [(p.name, p.offset, p.size_bytes) for p in kernel.parameters]
    assert layout == [("values", 0, 8), ("n", 8, 4)]
    address = device.allocate(64)
    device.write(address, np.arange(16, dtype=np.uint32))
    packed = (address + 16).to_bytes(8, "little") + (3).to_bytes(4, "little")
    device.launch_packed(kernel, 1, 32, packed)
    found = np.frombuffer(device.read(address, 64), np.uint32)
    np.testing.assert_array_equal(found, np.arange(16) + np.isin(np.arange(16), (4, 5, 6)))
    assert device.allocation(address + 20) == (address, 64)
    device.free(address)
    with pytest.raises(KernelFault, match="freed"):
        device.launch_packed(kernel, 1, 32, packed)
    with pytest.raises(UsageError, match="no allocation begins"):
        device.free(address)
    with pytest.raises(UsageError, match="bytes of parameters"):
        device.launch_packed(kernel, 1, 32, b"")


@pytest.mark.parametrize(
    ("grid", "block", "args", "message"),
    [
        (1, 32, lambda d: (np.zeros(4, np.uint32), 4), r"argument 1 is an array of the host.*device\.array"),
        (1, 32, lambda d: (Device().zeros(4), 4), "another device"),
        (1, 32, lambda d: (d.zeros(4, np.uint32),), "takes 2 arguments"),
        (1, 32, lambda d: (d.zeros(4, np.uint32), np.float32(4)), r"argument 2 is float32.*np\.int32"),
        (1, 32, lambda d: (1.5, 4), "argument 1 is float64"),
        (1, 2048, lambda d: (d.zeros(4, np.uint32), 4), "block"),
        ((1, 70000), 32, lambda d: (d.zeros(4, np.uint32), 4), "65535"),
    ],
)
def test_a_wrong_call_is_explained(device: Device, grid, block, args, message: str) -> None:
    kernel = device.module(ADD_ONE)["add_one"]
    with pytest.raises(UsageError, match=message):
        kernel[grid, block](*args(device))


@pytest.mark.parametrize(("gpu", "most_kib"), [("h200", 227), ("a100", 163)])
def test_the_gpu_limits_a_blocks_shared_memory(gpu: str, most_kib: int) -> None:
    device = Device("sm_80", gpu=gpu)
    x = device.array(np.arange(64, dtype=np.float32))
    kernel = device.kernel(REVERSE)
    kernel[1, 64, 1024 * most_kib](x, 1)
    with pytest.raises(UsageError, match=rf"has at most {1024 * most_kib}$"):
        kernel[1, 64, 1024 * most_kib + 4](x, 1)


def test_a_block_with_more_registers_than_a_multiprocessor_is_refused(device: Device) -> None:
    x = device.zeros(100, np.uint32)
    kernel = device.module(many_values_ptx(100))["many_values"]
    kernel[1, 512](x)  # 128 registers per thread
    with pytest.raises(UsageError, match=r"uses \d+ registers per thread; for a block of 1024 threads .* has 64 "):
        kernel[1, 1024](x)
    device.module(many_values_ptx(100, ".maxntid 1024"))["many_values"][1, 1024](x)  # ptxas spills instead
