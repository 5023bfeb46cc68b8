"""Kernels as their authors wrote them -> PTX, without a GPU: NVRTC for `cupy.RawKernel`, libNVVM for Numba.

Importing this package loads neither CuPy nor Numba nor a compiler.
"""

from __future__ import annotations

from typing import Any

from harness.compilers.kernel import CompiledKernel, DevicePointer
from harness.compilers.parameters import Parameter
from harness.support.errors import PlanError

__all__ = ["CompiledKernel", "DevicePointer", "Parameter", "compile_kernel", "kernel_identity"]


def compile_kernel(kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
    """Compile `kernel` (a `cupy.RawKernel` or a function under `numba.cuda.jit`) for `arch`, such as `sm_90`.

    `args` are the arguments of the launch: `DevicePointer` for a buffer, NumPy or Python scalars else. Numba's
    signature follows from them, as in a native launch. Results are kept on disk.

    Raises `CompileError` with the compiler's own log, `PlanError` where the arguments do not fit the kernel.
    """
    kinds = _kinds(kernel)
    if ("cupy", "RawKernel") in kinds:
        from harness.compilers import rawkernel

        return rawkernel.compile_rawkernel(kernel, args, arch)
    if ("numba", "CUDADispatcher") in kinds:
        from harness.compilers import numba_kernel

        return numba_kernel.compile_dispatcher(kernel, args, arch)
    if ("numba", "FakeCUDAKernel") in kinds:
        raise PlanError("Numba's simulator is switched on; unset NUMBA_ENABLE_CUDASIM to compile kernels")
    name = getattr(kernel, "__name__", None) or type(kernel).__name__
    raise PlanError(
        f"kernel {name} is a {type(kernel).__name__}; it has to be a cupy.RawKernel or under numba.cuda.jit"
    )


def kernel_identity(kernel: Any) -> str | None:
    """What the kernel's machine code depends on, as text; None where that cannot be told."""
    kinds = _kinds(kernel)
    if ("cupy", "RawKernel") in kinds:
        return repr((kernel.name, kernel.code, tuple(kernel.options)))
    if ("numba", "CUDADispatcher") in kinds:
        from harness.compilers.function_identity import function_identity

        return function_identity(kernel)
    return None


def _kinds(kernel: Any) -> set[tuple[str, str]]:
    return {(t.__module__.partition(".")[0], t.__name__) for t in type(kernel).__mro__}
