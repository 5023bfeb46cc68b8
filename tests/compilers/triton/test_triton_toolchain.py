"""Triton's functions as kernels: how arguments are typed and packed, what is refused, the native launch."""

from __future__ import annotations

import struct
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_driver import FakeDriver
from sample_kernels import ARCH, buffer, u64
from triton_samples import __file__ as samples
from triton_samples import doubled_by_own_tiles, misspelt, scaled, unspecialized

from harness import TritonKernel
from harness.compilers import CompiledKernel, compile_kernel, kernel_identity
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.toolchains import toolchain_of
from harness.model.plan import Launch
from harness.support.errors import CompileError, PlanError

pytestmark = pytest.mark.compiles

KERNEL = TritonKernel(scaled, {"BLOCK": 64}, num_warps=2)
X, OUT = buffer(100), buffer(100, address=0x9000)


def compiled(*args: Any, kernel: Any = KERNEL, arch: str = ARCH) -> CompiledKernel:
    return compile_kernel(kernel, args, arch)


@pytest.mark.parametrize(("arch", "target"), [("sm_90", "sm_90a"), ("sm_80", "sm_80")])
def test_ptx_arguments_and_block_are_tritons(arch: str, target: str) -> None:
    made = compiled(X, OUT, 100, 1.5, arch=arch)
    assert (made.name, made.entry, made.toolchain.name, made.arch) == ("scaled", "scaled", "triton", target)
    assert f".target {target}" in made.ptx and f'"{samples}"' in made.ptx
    assert made.signature == ("*fp32", "*fp32", "i32", "fp32")
    assert (made.threads, made.blocks_per_program, made.scratch_bytes) == (64, 1, 0)
    scratch_and_profile = u64(0, 0)
    words = (*u64(0x7000, 0x9000), struct.pack("<i", 100), struct.pack("<f", 1.5), *scratch_and_profile)
    assert made.pack((X, OUT, 100, 1.5)) == words
    assert made.pack((X, OUT, np.int32(100), np.float32(1.5))) == words


def test_constexprs_are_arguments_too() -> None:
    by_name, by_place = compiled(X, OUT, 100, 1.5), compiled(X, OUT, 100, 1.5, 64, kernel=scaled)
    assert by_place.threads == 128 and by_place.signature == (*by_name.signature, "constexpr")
    assert len(by_place.pack((X, OUT, 100, 1.5, 64))) == len(by_name.parameters)


def test_integers_are_specialized_as_on_a_gpu() -> None:
    assert compiled(X, OUT, 1, 1.5).signature[2] == "constexpr"
    assert len(compiled(X, OUT, 1, 1.5).pack((X, OUT, 1, 1.5))) == 5
    vectors, unaligned = TritonKernel(scaled, {"BLOCK": 512}, num_warps=1), buffer(100, address=0x7004)
    texts = {compiled(X, OUT, n, 1.5, kernel=vectors).ptx for n in (100, 36, 96, 32)}
    texts.add(compiled(unaligned, OUT, 96, 1.5, kernel=vectors).ptx)
    assert len(texts) == 3
    assert compiled(X, 1, kernel=unspecialized).ptx == compiled(X, 64, kernel=unspecialized).ptx
    assert compiled(X, 2**40, kernel=unspecialized).signature[1] == "i64"
    assert compiled(buffer(9, dtype="bfloat16"), 1, kernel=unspecialized).signature[0] == "*bf16"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((X, OUT), r"kernel scaled takes 4 arguments \(x, out, n, factor\), but it is given 2"),
        ((X, OUT, 100, 1.5, 1), "but it is given 5"),
        ((X, OUT, "100", 1.5), "kernel scaled: argument n is a str; Triton takes a buffer or a number"),
        ((buffer(9, dtype="complex64"), OUT, 100, 1.5), "argument x is a complex64 array"),
    ],
)
def test_arguments_that_do_not_fit(args: tuple[Any, ...], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        compiled(*args)


def test_what_is_no_kernel() -> None:
    with pytest.raises(PlanError, match="its function is a str; it has to be"):
        TritonKernel("scaled")
    with pytest.raises(PlanError, match="kernel scaled has no parameter 'BLOK'; it has x, out, n, factor, BLOCK"):
        TritonKernel(scaled, {"BLOK": 64})
    with pytest.raises(
        CompileError, match=rf"kernel misspelt \({samples}:\d+\) did not compile with Triton:\n(.|\n)*lode"
    ):
        compiled(X, kernel=misspelt)


def test_without_triton_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(CompileError) as caught:
        compiled(X, OUT, 7, 1.5, kernel=TritonKernel(scaled, {"BLOCK": 32}))
    assert str(caught.value) == "Triton is not installed; run: pip install 'attention-sandbox[triton]'"


def test_scratch_memory_is_an_argument() -> None:
    kernel, halves = TritonKernel(doubled_by_own_tiles, {"ROWS": 16}), buffer(32, 64, dtype="float16")
    with pytest.raises(PlanError, match="pass a buffer of 256 bytes times the number of programs as the last argument"):
        compiled(halves, halves, kernel=kernel)
    args = (halves, halves, buffer(512, dtype="uint8", address=0xA000))
    assert compiled(*args, kernel=kernel).pack(args)[2:] == tuple(u64(0xA000, 0))
    assert compiled(halves, halves, kernel=kernel, arch="sm_80").scratch_bytes == 0


def test_a_launch_has_what_the_compiler_chose() -> None:
    made = compiled(X, OUT, 100, 1.5)
    launch = Launch(KERNEL, (2, 3), KERNEL.block, ("X", "O", 100, 1.5))
    chosen = made.configured(launch)
    assert (chosen.grid, chosen.block, chosen.shared_bytes) == ((2, 3, 1), (64,), made.shared_bytes)
    wide = CompiledKernel(**{**vars(made), "added_threads": 128, "blocks_per_program": 2, "shared_bytes": 512})
    chosen = wide.configured(launch)
    assert (chosen.grid, chosen.block, chosen.cluster, chosen.shared_bytes) == ((4, 3, 1), (192,), (2,), 512)
    with pytest.raises(PlanError, match=r"compiled for 64 threads, and its block is \(128,\); write block=\(64,\)"):
        made.configured(Launch(KERNEL, (2,), (128,), ()))


def test_the_driver_is_given_the_ptx_and_the_call_launches() -> None:
    driver = FakeDriver()
    arrays = {
        name: SimpleNamespace(data=SimpleNamespace(ptr=address), shape=(100,), dtype=np.dtype("float32"))
        for name, address in (("X", 0x7000), ("O", 0x9000))
    }
    launch = Launch(KERNEL, (2,), KERNEL.block, ("X", "O", np.int32(100), np.float32(1.5)))
    toolchain_of(KERNEL).bind(launch, arrays, NativeGpu(driver, None, "a GPU", ARCH))()
    made = compiled(X, OUT, np.int32(100), np.float32(1.5))
    (_, image), (entry, grid, block, args, options) = driver.calls
    assert (image, entry, grid, block) == (made.ptx.encode(), "scaled", (2, 1, 1), (64,))
    assert options == {"shared_mem": made.shared_bytes}
    assert b"".join(argument.tobytes() for argument in args) == b"".join(made.pack((X, OUT, 100, 1.5)))


def test_function_constexprs_and_options_identify_it() -> None:
    others = (
        TritonKernel(scaled, {"BLOCK": 128}, num_warps=2),
        TritonKernel(scaled, {"BLOCK": 64}),
        TritonKernel(scaled, {"BLOCK": 64}, num_warps=2, options={"maxnreg": 64}),
        TritonKernel(misspelt, num_warps=2),
    )
    assert len({kernel_identity(kernel) for kernel in (KERNEL, *others)}) == 5
    assert kernel_identity(TritonKernel(scaled, {"BLOCK": 64}, num_warps=2)) == kernel_identity(KERNEL)
    toolchain = toolchain_of(KERNEL)
    assert toolchain.options(KERNEL) == ("BLOCK=64", "num_warps=2", "num_stages=3")
    assert toolchain.source(KERNEL).startswith("@triton.jit\ndef scaled(x, out, n, factor, BLOCK: tl.constexpr):")
