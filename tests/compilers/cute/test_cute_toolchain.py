"""Kernels of CuTe functions in plans: on the emulator, in the cache, and taken out of what CuTe returns."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulators import emulator
from fake_driver import FakeDriver
from sample_cute import MACHINE_CODE, PTX, fill, host_code

from harness import CuteFunction, CuteTensor, Device, Plan, SoftmaxProblem, UsageError
from harness.compilers import DevicePointer, compile_kernel, kernel_identity
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.toolchains import toolchain_of
from harness.support.errors import CompileError, PlanError

PROBLEM = SoftmaxProblem(rows=4, columns=25)


def plan(function: CuteFunction, value: float = 0.25) -> Plan:
    return Plan(function.launches(CuteTensor("Y", (100,), (1,), "float32"), value))


def test_a_plan_runs_on_the_emulator() -> None:
    made = plan(fill())
    execution = emulator().run(PROBLEM, made, {"X": np.zeros((4, 25), np.float32)})
    assert (execution.outputs["Y"] == 0.25).all()
    (site,) = execution.launches[0].traffic
    assert (site.buffer, site.kind, site.requested_bytes) == ("Y", "store", 400)


def test_a_device_calls_a_function() -> None:
    """With an array of any strides as the tensor, whose shape the host code reads."""
    device = Device()
    x = device.array(np.zeros(300, np.float32), name="x")
    (result,) = device.call(fill(), x[100:250], np.float32(7))
    assert np.array_equal(x.numpy(), np.repeat([0, 7, 0], [100, 150, 50]).astype(np.float32))
    assert {(site.buffer, site.requested_bytes) for site in result.traffic} == {("x", 600)}
    with pytest.raises(UsageError, match="CuTe function fill: expects two things"):
        device.call(fill(), x)


def test_natively_the_driver_loads_cutes_machine_code() -> None:
    """With the bytes that the host code computes for the array's address."""
    driver, refusing = FakeDriver(), FakeDriver(ValueError("INVALID_IMAGE"))
    (launch,) = fill().launches(CuteTensor("Y", (100,), (1,), "float32"), 0.25)
    launch = dataclasses.replace(launch, cluster=None)
    array = SimpleNamespace(data=SimpleNamespace(ptr=0x7000), shape=(100,), dtype=np.dtype(np.float32))
    bind = toolchain_of(launch.kernel).bind
    with pytest.raises(CompileError, match="the driver does not take its machine code"):
        bind(launch, {"Y": array}, NativeGpu(refusing, None, "a GPU", "sm_90"))
    bind(launch, {"Y": array}, NativeGpu(driver, None, "a GPU", "sm_90"))()
    assert driver.calls[0] == ("load", MACHINE_CODE)
    name, grid, block, words, options = driver.calls[1]
    assert (name, grid, block, options) == ("fill", (132, 1, 1), (32, 1, 1), {"shared_mem": 1024})
    assert [word.tobytes() for word in words] == [struct.pack("<QQ", 0x7000, 100), struct.pack("<f", 0.25)]


def test_a_launch_with_other_arguments() -> None:
    (launch,) = plan(fill()).launches
    compiled = compile_kernel(launch.kernel, (), "sm_90")
    for wrong in ((), (np.int32(1),)):
        with pytest.raises(PlanError, match="kernel fill takes the buffers Y; its launch has other arguments"):
            compiled.pack(wrong)


def test_a_kernel_for_another_gpu() -> None:
    function = CuteFunction("fill", host_code(), PTX.replace("sm_80", "sm_100a"))
    (launch,) = plan(function).launches
    with pytest.raises(CompileError, match="its PTX is for sm_100a, and is to run on sm_90"):
        compile_kernel(launch.kernel, (DevicePointer(0, (100,), "float32"),), "sm_90")


def test_what_tables_and_caches_know_of_it() -> None:
    (launch,), (other,) = plan(fill()).launches, plan(CuteFunction("g", host_code(), PTX + "\n")).launches
    toolchain = toolchain_of(launch.kernel)
    assert toolchain.name == "cute" and toolchain.source(launch.kernel) == PTX
    assert toolchain.machine_code(launch.kernel, "sm_90") == MACHINE_CODE
    assert kernel_identity(launch.kernel) != kernel_identity(other.kernel)
    assert kernel_identity(launch.kernel) == kernel_identity(plan(fill(), 3.0).launches[0].kernel)


def test_a_function_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTENTION_SANDBOX_CACHE_DIR", str(tmp_path / "cache"))
    assert CuteFunction.kept("fill", ("1",)) is None
    fill().keep(("1",))
    assert CuteFunction.kept("fill", ("1",)) == fill()
    assert CuteFunction.kept("fill", ("2",)) is None


class Compiled:
    """What `cute.compile` returns."""

    __ptx__: str | None = PTX

    def export_to_c(self, object_file_path: str, function_name: str) -> None:
        assert function_name == "launch"
        Path(object_file_path).write_bytes(host_code())


class WithoutPtx(Compiled):
    __ptx__ = None


class NotForTvmFfi(Compiled):
    def export_to_c(self, object_file_path: str, function_name: str) -> None:
        raise TypeError("no")


def test_a_function_of_cute() -> None:
    assert CuteFunction.of(Compiled(), "fill") == fill()


@pytest.mark.parametrize(
    ("compiled", "told"),
    [(WithoutPtx(), "CUTE_DSL_KEEP=ptx"), (NotForTvmFfi(), r'compile it with options="--enable-tvm-ffi"')],
)
def test_a_function_that_cannot_be_taken(compiled: Any, told: str) -> None:
    with pytest.raises(CompileError, match=told):
        CuteFunction.of(compiled, "fill")
