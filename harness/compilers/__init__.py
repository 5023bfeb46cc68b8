"""Compiles the kernels of variants to PTX without a GPU. Each language is a `Toolchain`, listed in `toolchains`.

Importing this package loads neither CuPy nor Numba nor a compiler.
"""

from __future__ import annotations

from harness.compilers.compiled_kernel import CompiledKernel, DevicePointer
from harness.compilers.toolchains import compile_kernel, compile_module, kernel_identity
from harness.ptx.parameters import Parameter

__all__ = ["CompiledKernel", "DevicePointer", "Parameter", "compile_kernel", "compile_module", "kernel_identity"]
