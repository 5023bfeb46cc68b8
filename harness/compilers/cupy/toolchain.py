"""Toolchain for CUDA C++ in a `cupy.RawKernel`. NVRTC compiles it without a GPU, CuPy on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.launch_attributes import has_attributes
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.packed_launch import bind_packed
from harness.compilers.ptx_text import bind_ptx
from harness.compilers.tensor_maps import native_arguments
from harness.compilers.toolchain import Call, Toolchain, type_names
from harness.model.plan import Launch
from harness.support.errors import CompileError


class CupyToolchain(Toolchain):
    """Toolchain for `cupy.RawKernel` objects, including those of `cupy.RawModule.get_function`."""

    name = "cupy"
    kernels = "a cupy.RawKernel"
    modules = "a cupy.RawModule"
    types_in_source = True

    def owns(self, kernel: object) -> bool:
        """Whether the object is a `cupy.RawKernel`, checked without importing CuPy."""
        return "cupy.RawKernel" in type_names(kernel)

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """Compile to PTX for `arch`. `args` are ignored, because the source declares the parameter types."""
        from harness.compilers.cupy.rawkernel import compile_rawkernel

        return compile_rawkernel(kernel, self, arch)

    def compile_module(self, module: Any, arch: str) -> dict[str, CompiledKernel] | None:
        """Compile a `cupy.RawModule`, whose kernels share its variables. Raises `CompileError`."""
        if "cupy.RawModule" not in type_names(module):
            return None
        from harness.compilers.cupy.rawkernel import compile_rawmodule

        return compile_rawmodule(module, self, arch)

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """Return the bytes of each parameter. Raises `PlanError` if an argument does not fit."""
        from harness.compilers import c_arguments

        return c_arguments.pack(compiled.name, compiled.parameters, args)

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """Return a call that launches the kernel on `gpu.stream`. Raises `CompileError` or `PlanError`."""
        from harness.compilers import c_arguments
        from harness.compilers.cupy import nvrtc
        from harness.compilers.cupy.rawkernel import feature_arch

        kernel = launch.kernel
        if has_attributes(launch, gpu.arch):
            return bind_packed(self, launch, arrays, gpu)
        if feature_arch(tuple(kernel.options), gpu.arch) is not None:
            # CuPy appends the GPU's own architecture to the options, which disables features of `sm_90a`.
            compiled = self.compile(kernel, launch.args, gpu.arch)
            return bind_ptx(compiled.ptx, compiled.entry, launch, arrays, gpu)
        nvrtc.require_architecture(gpu.arch)
        try:
            kernel.compile()
            allowed_bytes = kernel.max_dynamic_shared_size_bytes
        except Exception as error:
            raise CompileError(f"kernel {launch.kernel_name} does not compile with NVRTC:\n{error}") from error
        if launch.shared_bytes > allowed_bytes:
            # More than 48 KB of static and dynamic shared memory together have to be requested explicitly.
            with gpu.shared_memory_refusal_explained(launch, kernel.shared_size_bytes):
                kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
        args = c_arguments.structs_by_value(launch.kernel_name, native_arguments(launch, arrays))
        return lambda: kernel(launch.grid, launch.block, args, shared_mem=launch.shared_bytes)

    def machine_code(self, kernel: Any, arch: str) -> bytes | None:
        """Return the cubin that CuPy would run on `arch`."""
        from harness.compilers.cupy.rawkernel import compile_cubin, feature_arch

        return None if feature_arch(tuple(kernel.options), arch) else compile_cubin(kernel, arch)

    def source(self, kernel: Any) -> str:
        """Return the CUDA source."""
        return str(kernel.code)

    def expanded(self, kernel: Any) -> str:
        """Return the declarations that the kernel compiles, with `if constexpr` folded."""
        from harness.compilers.cupy.expanded import expand

        return expand(str(kernel.code), str(kernel.name), tuple(kernel.options))

    def options(self, kernel: Any) -> tuple[str, ...]:
        """Return the user's compiler options."""
        return tuple(kernel.options)

    def identity(self, kernel: Any) -> str | None:
        """Return a text of everything that the machine code depends on, or None if that is unknown."""
        return repr((kernel.name, kernel.code, tuple(kernel.options)))
