"""Python under `numba.cuda.jit`: libNVVM compiles it without a GPU, Numba with one."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

from harness.compilers.compiled_kernel import CompiledKernel
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.packed_launch import bind_packed
from harness.compilers.tensor_maps import keeping, uploaded
from harness.compilers.toolchain import Call, Toolchain, type_names
from harness.model.plan import Launch
from harness.support.errors import CompileError, PlanError

_SIMULATED = "numba.FakeCUDAKernel"


class NumbaToolchain(Toolchain):
    """Functions decorated with `numba.cuda.jit`."""

    name = "numba"
    kernels = "a function under numba.cuda.jit"
    tensor_maps_by_value = False  # no type of Numba's is a structure of a kernel's parameters

    def owns(self, kernel: object) -> bool:
        """See `Toolchain.owns`; what Numba's simulator makes is told apart when it is to be compiled."""
        return bool({"numba.CUDADispatcher", _SIMULATED} & type_names(kernel))

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        """See `Toolchain.compile`; Numba's signature follows from `args`, as in a native launch."""
        from harness.compilers.numba.dispatcher import compile_dispatcher

        _refuse_simulated(kernel)
        return compile_dispatcher(kernel, self, args, arch)

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        """See `Toolchain.pack`."""
        from harness.compilers.numba import arguments

        return arguments.pack(compiled.name, compiled.signature, args)

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        """See `Toolchain.bind`."""
        import numba.cuda

        from harness.compilers.numba.dispatcher import feature_arch

        dispatcher, name = launch.kernel, launch.kernel_name
        _refuse_simulated(dispatcher)
        # Numba itself compiles for `sm_90` and not for `sm_90a`, and has no place for clusters in its launch.
        if launch.cluster is not None or feature_arch(dispatcher, gpu.arch) is not None:
            return bind_packed(self, launch, arrays, gpu)
        native, kept = uploaded(launch, arrays, gpu, self.tensor_maps_by_value)
        # Unsynchronised: copies and fills are ordered by the one stream that the kernels use too.
        args = tuple(
            numba.cuda.as_cuda_array(value, sync=False) if isinstance(argument, str) else value
            for argument, value in zip(launch.args, native)
        )
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
            # Small problems are wanted here; that they do not fill the GPU is no news.
            warnings.filterwarnings("ignore", message=".*Grid size .* will likely result in GPU under-utilization")
            configured = dispatcher[launch.grid, launch.block, stream, launch.shared_bytes]
        return keeping(kept, lambda: configured(*args))

    def source(self, kernel: Any) -> str:
        """See `Toolchain.source`."""
        try:
            return inspect.getsource(kernel.py_func)
        except OSError:
            return "(the source is not in a file)\n"

    def identity(self, kernel: Any) -> str | None:
        """See `Toolchain.identity`."""
        from harness.compilers.numba.function_identity import function_identity

        return function_identity(kernel)


def _refuse_simulated(kernel: object) -> None:
    if _SIMULATED in type_names(kernel):
        raise PlanError("Numba's simulator is switched on; unset NUMBA_ENABLE_CUDASIM to compile kernels")


def _allow_dynamic_shared_bytes(kernel: Any, shared_bytes: int) -> None:
    # Numba has no public way to ask for more than 48 KB; this is how it sets the carve-out of the same function.
    from numba.cuda.cudadrv import driver

    function = kernel._codelibrary.get_cufunc()
    attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.driver.cuKernelSetAttribute(attribute, shared_bytes, function.handle, function.device.id)
