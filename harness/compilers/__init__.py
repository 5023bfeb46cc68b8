"""Kernels as their authors wrote them -> PTX, without a GPU. A language is a `Toolchain`; `toolchains` lists them.

Importing this package loads neither CuPy nor Numba nor a compiler.
"""

from __future__ import annotations

from harness.compilers.compiled_kernel import CompiledKernel, DevicePointer
from harness.compilers.toolchains import compile_kernel, kernel_identity
from harness.ptx.parameters import Parameter

__all__ = ["CompiledKernel", "DevicePointer", "Parameter", "compile_kernel", "kernel_identity"]
