"""Toolchain for Python under `numba.cuda.jit`. libNVVM compiles it without a GPU, Numba on a GPU."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.launch_attributes import has_attributes
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.packed_launch import bind_packed
from harness.compilers.tensor_maps import keeping, uploaded
from harness.compilers.toolchain import Call, Toolchain, type_names
from harness.model.plan import Launch, map_leaves
from harness.support.errors import CompileError, PlanError

_SIMULATED = "numba.FakeCUDAKernel"


class NumbaToolchain(Toolchain):
    """Toolchain for functions decorated with `numba.cuda.jit`."""

    name = "numba"
    kernels = "a function under numba.cuda.jit"
    tensor_maps_by_value = False  # Numba has no type for a structure passed by value

    def owns(self, kernel: object) -> bool:
        """Whether the object is a Numba CUDA dispatcher, checked without importing Numba.

        Kernels of Numba's simulator are included; they are rejected when they are compiled.
        """
        return bool({"numba.CUDADispatcher", _SIMULATED} & type_names(kernel))

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """Compile to PTX for `arch`. The types of `args` determine Numba's signature, as in a native launch."""
        from harness.compilers.numba.dispatcher import compile_dispatcher

        _refuse_simulated(kernel)
        return compile_dispatcher(kernel, self, args, arch)

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """Return the bytes of each parameter. Raises `PlanError` if an argument does not fit."""
        from harness.compilers.numba import arguments

        return arguments.pack(compiled.name, compiled.signature, args)

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """Return a call that launches the kernel on `gpu.stream`. Raises `CompileError` or `PlanError`."""
        import numba.cuda

        from harness.compilers.numba.dispatcher import feature_arch

        dispatcher, name = launch.kernel, launch.kernel_name
        _refuse_simulated(dispatcher)
        # Numba compiles for `sm_90` but not for `sm_90a`, and cannot pass attributes.
        if has_attributes(launch, gpu.arch) or feature_arch(dispatcher, gpu.arch) is not None:
            return bind_packed(self, launch, arrays, gpu)
        native, kept = uploaded(launch, arrays, gpu, self.tensor_maps_by_value)
        # No synchronization is needed: the kernels use the same stream as copies and fills.
        args = tuple(map_leaves(_as_numba_array, argument) for argument in native)
        try:
            kernel = dispatcher.compile(tuple(dispatcher.typeof_pyval(a) for a in args))
            static_bytes = kernel.shared_mem_per_block
        except Exception as error:
            raise CompileError(
                f"kernel {name} does not compile with Numba:\n{type(error).__name__}: {error}"
            ) from error
        if static_bytes + launch.shared_bytes > 48 * 1024:
            with gpu.shared_memory_refusal_explained(launch, static_bytes):
                _allow_dynamic_shared_bytes(kernel, launch.shared_bytes)
        stream = numba.cuda.external_stream(gpu.stream.ptr)
        with warnings.catch_warnings():
            # Small problems are intended, so the warning that they do not fill the GPU is suppressed.
            warnings.filterwarnings("ignore", message=".*Grid size .* will likely result in GPU under-utilization")
            configured = dispatcher[launch.grid, launch.block, stream, launch.shared_bytes]
        return keeping(kept, lambda: configured(*args))

    def source(self, kernel: Any) -> str:
        """Return the Python source of the kernel."""
        try:
            return inspect.getsource(kernel.py_func)
        except OSError:
            return "(the source is not in a file)\n"

    def expanded(self, kernel: Any) -> str:
        """Return the source of the kernel and of the device functions that it calls."""
        from harness.compilers.numba.expanded import expand

        return expand(kernel)

    def identity(self, kernel: Any) -> str | None:
        """Return a text of everything that the machine code depends on, or None if that is unknown."""
        from harness.compilers.numba.function_identity import function_identity

        return function_identity(kernel)


def _refuse_simulated(kernel: object) -> None:
    if _SIMULATED in type_names(kernel):
        raise PlanError("Numba's simulator is switched on; unset NUMBA_ENABLE_CUDASIM to compile kernels")


def _as_numba_array(argument: Any) -> Any:
    import numba.cuda

    is_array = hasattr(argument, "__cuda_array_interface__")
    return numba.cuda.as_cuda_array(argument, sync=False) if is_array else argument


def _allow_dynamic_shared_bytes(kernel: Any, shared_bytes: int) -> None:
    # Numba has no public API to request more than 48 KB. This sets the function's carve-out as Numba itself does.
    from numba.cuda.cudadrv import driver

    function = kernel._codelibrary.get_cufunc()
    attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.driver.cuKernelSetAttribute(attribute, shared_bytes, function.handle, function.device.id)
