"""Launches bound to arrays, natively: what is left to do is the launch itself, so that this alone can be timed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from harness.model.plan import Launch
from harness.support.errors import CompileError, PlanError

Call = Callable[[], None]


class Binder:
    """Binds launches of either backend to arrays of CuPy's, on one stream."""

    def __init__(self, cupy: Any, stream: Any, device_name: str) -> None:
        self._cupy = cupy
        self._stream = stream
        self._device_name = device_name

    def bind(self, launch: Launch, arrays: Mapping[str, Any]) -> Call:
        """A call that launches with these arrays, and does nothing else: compiling and binding are done here.

        Raises `CompileError`, and `PlanError` where the kernel is neither backend's or wants too much shared memory.
        """
        if isinstance(launch.kernel, self._cupy.RawKernel):
            return self._bind_rawkernel(launch, arrays)
        if type(launch.kernel).__name__ == "CUDADispatcher":
            return self._bind_numba(launch, arrays)
        raise PlanError(
            f"kernel {launch.kernel_name} is a {type(launch.kernel).__name__}; "
            "it has to be a cupy.RawKernel or under numba.cuda.jit"
        )

    def _bind_rawkernel(self, launch: Launch, arrays: Mapping[str, Any]) -> Call:
        kernel, name = launch.kernel, launch.kernel_name
        try:
            kernel.compile()
            allowed_bytes = kernel.max_dynamic_shared_size_bytes
        except Exception as error:
            raise CompileError(f"kernel {name} does not compile with NVRTC:\n{error}") from error
        if launch.shared_bytes > allowed_bytes:
            # Beyond 48 KB, static and dynamic together, CUDA wants to be asked.
            with self._shared_memory_refusal_explained(launch, kernel.shared_size_bytes):
                kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
        args = tuple(arrays[a] if isinstance(a, str) else a for a in launch.args)
        return lambda: kernel(launch.grid, launch.block, args, shared_mem=launch.shared_bytes)

    def _bind_numba(self, launch: Launch, arrays: Mapping[str, Any]) -> Call:
        import numba.cuda

        dispatcher, name = launch.kernel, launch.kernel_name
        # Unsynchronised: copies and fills are ordered by the one stream that the kernels use too.
        args = tuple(numba.cuda.as_cuda_array(arrays[a], sync=False) if isinstance(a, str) else a for a in launch.args)
        try:
            kernel = dispatcher.compile(tuple(dispatcher.typeof_pyval(a) for a in args))
            static_bytes = kernel.shared_mem_per_block
        except Exception as error:
            raise CompileError(
                f"kernel {name} does not compile with Numba:\n{type(error).__name__}: {error}"
            ) from error
        if static_bytes + launch.shared_bytes > 48 * 1024:
            with self._shared_memory_refusal_explained(launch, static_bytes):
                _allow_dynamic_shared_bytes(kernel, launch.shared_bytes)
        stream = numba.cuda.external_stream(self._stream.ptr)
        with warnings.catch_warnings():
            # Small problems are wanted here; that they do not fill the GPU is no news.
            warnings.filterwarnings("ignore", message=".*Grid size .* will likely result in GPU under-utilization")
            configured = dispatcher[launch.grid, launch.block, stream, launch.shared_bytes]
        return lambda: configured(*args)

    @contextmanager
    def _shared_memory_refusal_explained(self, launch: Launch, static_bytes: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            most_bytes = self._cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
            raise PlanError(
                f"kernel {launch.kernel_name} asks for {launch.shared_bytes:,} bytes of dynamic shared memory besides "
                f"{static_bytes:,} static ones; {self._device_name} has {most_bytes:,} per block ({error})"
            ) from error


def _allow_dynamic_shared_bytes(kernel: Any, shared_bytes: int) -> None:
    # Numba has no public way to ask for more than 48 KB; this is how it sets the carve-out of the same function.
    from numba.cuda.cudadrv import driver

    function = kernel._codelibrary.get_cufunc()
    attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.driver.cuKernelSetAttribute(attribute, shared_bytes, function.handle, function.device.id)
