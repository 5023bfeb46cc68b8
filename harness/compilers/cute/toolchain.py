"""Toolchain for kernels of CuTe DSL, whose host code computes their parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.cute.kernel import CuteKernel, description
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.packed_launch import bind_packed
from harness.compilers.ptx_text import PtxKernel, PtxToolchain
from harness.compilers.toolchain import Call, Toolchain
from harness.model.plan import Launch


@dataclass(frozen=True)
class _CompiledCuteKernel(CompiledKernel):
    """The kernel's PTX, and the kernel, which packs its own arguments."""

    kernel: CuteKernel | None = None


class CuteToolchain(Toolchain):
    """Toolchain for `CuteKernel`, the kernel of a launch that `CuteFunction.launches` returns."""

    name = "cute"
    kernels = "a kernel of a harness.CuteFunction"
    compiles_in_plan = True

    def owns(self, kernel: object) -> bool:
        """Whether the object is a `CuteKernel`."""
        return isinstance(kernel, CuteKernel)

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """Return the PTX that CuTe made. Raises `CompileError` if `arch` does not run it."""
        compiled = PtxToolchain().compile(PtxKernel(kernel.function.ptx, kernel.entry), args, arch)
        fields = {each.name: getattr(compiled, each.name) for each in dataclasses.fields(compiled)}
        return _CompiledCuteKernel(**{**fields, "name": kernel.name, "toolchain": self, "kernel": kernel})

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """Run the host code, and return the bytes of each parameter; tensor maps have the format of a GPU."""
        assert isinstance(compiled, _CompiledCuteKernel) and compiled.kernel is not None
        return compiled.kernel.parameters(args)

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """Return a call that launches the kernel natively: the machine code that CuTe made, with these arrays."""
        return bind_packed(self, launch, arrays, gpu)

    def machine_code(self, kernel: Any, arch: str) -> bytes | None:
        """Return the fat binary that CuTe made, with a cubin for Hopper."""
        from harness.compilers.cute.host_code import machine_code

        return machine_code(kernel.function.host_code)

    def source(self, kernel: Any) -> str:
        """Return the kernel's PTX. Its lines refer to the Python source."""
        return str(kernel.function.ptx)

    def identity(self, kernel: Any) -> str | None:
        """Return the hash of the code."""
        return description(kernel)
