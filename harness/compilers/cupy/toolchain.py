"""CUDA C++ in a `cupy.RawKernel`: NVRTC compiles it without a GPU, CuPy with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.packed_launch import bind_packed
from harness.compilers.ptx_text import bind_ptx
from harness.compilers.tensor_maps import native_arguments
from harness.compilers.toolchain import Call, Toolchain, type_names
from harness.model.plan import Launch
from harness.support.errors import CompileError


class CupyToolchain(Toolchain):
    """`cupy.RawKernel`, made by hand or by `cupy.RawModule.get_function`."""

    name = "cupy"
    kernels = "a cupy.RawKernel"
    types_in_source = True

    def owns(self, kernel: object) -> bool:
        """See `Toolchain.owns`."""
        return "cupy.RawKernel" in type_names(kernel)

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """See `Toolchain.compile`; `args` do not matter, for the source says the types."""
        from harness.compilers.cupy.rawkernel import compile_rawkernel

        return compile_rawkernel(kernel, self, arch)

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """See `Toolchain.pack`."""
        from harness.compilers import c_arguments

        return c_arguments.pack(compiled.name, compiled.parameters, args)

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """See `Toolchain.bind`."""
        from harness.compilers.cupy.rawkernel import feature_arch

        kernel = launch.kernel
        if launch.cluster is not None:
            return bind_packed(self, launch, arrays, gpu)
        if feature_arch(tuple(kernel.options), gpu.arch) is not None:
            # CuPy puts the GPU's own architecture behind the author's, which leaves out what only `sm_90a` has.
            compiled = self.compile(kernel, launch.args, gpu.arch)
            return bind_ptx(compiled.ptx, compiled.entry, launch, arrays, gpu)
        try:
            kernel.compile()
            allowed_bytes = kernel.max_dynamic_shared_size_bytes
        except Exception as error:
            raise CompileError(f"kernel {launch.kernel_name} does not compile with NVRTC:\n{error}") from error
        if launch.shared_bytes > allowed_bytes:
            # Beyond 48 KB, static and dynamic together, CUDA wants to be asked.
            with gpu.shared_memory_refusal_explained(launch, kernel.shared_size_bytes):
                kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
        args = native_arguments(launch, arrays)
        return lambda: kernel(launch.grid, launch.block, args, shared_mem=launch.shared_bytes)

    def machine_code(self, kernel: Any, arch: str) -> bytes | None:
        """See `Toolchain.machine_code`."""
        from harness.compilers.cupy.rawkernel import compile_cubin, feature_arch

        return None if feature_arch(tuple(kernel.options), arch) else compile_cubin(kernel, arch)

    def source(self, kernel: Any) -> str:
        """See `Toolchain.source`."""
        return str(kernel.code)

    def options(self, kernel: Any) -> tuple[str, ...]:
        """See `Toolchain.options`."""
        return tuple(kernel.options)

    def identity(self, kernel: Any) -> str | None:
        """See `Toolchain.identity`."""
        return repr((kernel.name, kernel.code, tuple(kernel.options)))
