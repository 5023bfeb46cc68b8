"""PTX text is a kernel as it stands: what it must have, what it is given, how it is launched natively."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from sample_kernels import ARCH, buffer, u64

from harness import PtxKernel
from harness.compilers import compile_kernel, kernel_identity
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.toolchains import toolchain_of
from harness.model.plan import Launch
from harness.support.errors import CompileError, PlanError

TEXT = """
.version 8.0
.target sm_80
.address_size 64
// .entry remark(.param .u64 nothing)
.visible .entry scale(
    .param .u64 .ptr .global x, // the array
    .param .f32 factor /* a, b */
)
{
    ret;
}
.visible .entry nothing() { ret; }
"""


def text(target: str) -> str:
    return TEXT.replace(".target sm_80", target)


def test_arguments_are_those_of_c() -> None:
    args = (buffer(4), np.float32(2))
    compiled = compile_kernel(PtxKernel(TEXT, "scale"), args, ARCH)
    assert (compiled.entry, compiled.name, compiled.toolchain.name, compiled.arch) == ("scale", "scale", "ptx", ARCH)
    assert [parameter.type for parameter in compiled.parameters] == ["u64", "f32"]
    assert compiled.pack(args) == (*u64(0x7000), struct.pack("<f", 2))
    with pytest.raises(PlanError, match="kernel scale: argument 2 is float64"):
        compiled.pack((buffer(4), 2.0))
    with pytest.raises(PlanError, match="takes 2 arguments"):
        compiled.pack(())
    assert compile_kernel(PtxKernel(TEXT, "nothing"), (), ARCH).pack(()) == ()


def test_the_text_and_the_name_identify_it() -> None:
    kernels = (PtxKernel(TEXT, "scale"), PtxKernel(TEXT, "nothing"), PtxKernel(text(".target sm_90"), "scale"))
    assert len({kernel_identity(kernel) for kernel in kernels}) == 3
    assert kernel_identity(PtxKernel(TEXT, "scale")) == kernel_identity(kernels[0])
    assert toolchain_of(kernels[0]).source(kernels[0]) == TEXT


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (PtxKernel(TEXT, "scales"), "the PTX defines scale, nothing, not scales; name it as it stands"),
        (PtxKernel(".version 8.0\n.target sm_80\n", "k"), "the PTX defines no kernel, not k;"),
        (PtxKernel(text(""), "scale"), "kernel scale: its PTX has no .target; write .target sm_90"),
        (PtxKernel(text(".target sm_100"), "scale"), "its PTX is for sm_100, and is to run on sm_90"),
        (PtxKernel(text(".target sm_80a"), "scale"), "its PTX is for sm_80a, and is to run on sm_90"),
        (PtxKernel(text(".target sm_80f"), "scale"), "its PTX is for sm_80f, and is to run on sm_90"),
        (PtxKernel(TEXT.replace(".f32 factor", "float factor"), "scale"), "declares a parameter as '.param float fac"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(kernel: PtxKernel, words: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile_kernel(kernel, (), ARCH)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("target", "arch"), [("sm_90", ARCH), ("sm_90a, debug", "sm_90a"), ("sm_52", ARCH)])
def test_targets_that_run_here(target: str, arch: str) -> None:
    assert compile_kernel(PtxKernel(text(f".target {target}"), "scale"), (), ARCH).arch == arch


@pytest.mark.parametrize(("content", "name"), [("", "k"), (b".version 8.0", "k"), (TEXT, None)])
def test_text_and_name_are_text(content: Any, name: Any) -> None:
    with pytest.raises(PlanError, match="it has to be text"):
        PtxKernel(content, name)


def bound(driver: FakeDriver, kernel: PtxKernel, shared_bytes: int = 0, gpu: NativeGpu | None = None) -> Any:
    launch = Launch(kernel, (2,), (32,), ("X", np.float32(2)), shared_bytes)
    return toolchain_of(kernel).bind(launch, {"X": "the array"}, gpu or NativeGpu(driver, None, "a GPU", ARCH))


def test_the_driver_is_given_the_very_text_and_the_call_launches() -> None:
    driver, kernel = FakeDriver(), PtxKernel(TEXT, "scale")
    call = bound(driver, kernel, 1024)
    assert driver.calls == [("load", TEXT.encode())]
    call()
    assert driver.calls[1:] == [("scale", (2,), (32,), ("the array", np.float32(2)), {"shared_mem": 1024})]


def test_kernels_of_one_text_share_its_variables_on_a_gpu() -> None:
    driver = FakeDriver()
    gpu = NativeGpu(driver, None, "a GPU", ARCH)
    for kernel in (PtxKernel(TEXT, "scale"), PtxKernel(TEXT, "nothing"), PtxKernel(f"{TEXT}\n", "scale")):
        bound(driver, kernel, gpu=gpu)
    assert driver.calls == [("load", TEXT.encode()), ("load", f"{TEXT}\n".encode())]


def test_much_shared_memory_is_asked_for_natively() -> None:
    driver, kernel = FakeDriver(), PtxKernel(TEXT, "scale")
    bound(driver, kernel, 100_000)
    assert driver.calls[-1] == ("set", 8, 100_000)
    with pytest.raises(PlanError, match=r"scale asks for 300,000 bytes of dynamic .* besides 100 .* has 232,448"):
        bound(driver, kernel, 300_000)


def test_what_the_driver_refuses_names_the_kernel() -> None:
    with pytest.raises(CompileError, match=r"kernel scale: the driver does not take its PTX \(INVALID_PTX\)"):
        bound(FakeDriver(ValueError("INVALID_PTX")), PtxKernel(TEXT, "scale"))
    with pytest.raises(CompileError, match="is to run on sm_90"):
        bound(FakeDriver(), PtxKernel(text(".target sm_100"), "scale"))
