"""The GPU of this process: its stream, its memory pool, and its state after a fault."""

from __future__ import annotations

import ctypes
import itertools
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from harness.compilers.native_gpu import NativeGpu
from harness.compilers.packed_launch import limited, packed_launch
from harness.compilers.ptx_text import bind_module
from harness.compilers.tensor_maps import keeping
from harness.compilers.toolchain import Call
from harness.compilers.toolchains import toolchain_of
from harness.execution.protocol import Device
from harness.model.placed_tensors import view
from harness.model.plan import Buffer, Launch
from harness.model.problem import BaseProblem
from harness.ptx.timestamps import stamped
from harness.support.errors import KernelFault, SandboxError

FAULT_KINDS = {700: "out of bounds", 716: "misaligned", 717: "out of bounds", 702: "step limit"}
"""Kinds of `KernelFault` by CUDA error code: illegal address, misaligned address, address space, timeout."""
STICKY_CODES = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})
"""Errors that leave the process's CUDA context unusable (CUDA driver API, `CUresult`)."""
POISON_BYTE = 0xFF
"""The byte that outputs and scratch are filled with: NaN in every floating-point type, and not the result of
arithmetic."""


def gpu_available() -> bool:
    """Whether CuPy is installed and finds a GPU. Never raises, loads no compiler, creates no context."""
    return gpu_count() > 0


def gpu_count() -> int:
    """Number of GPUs that CuPy finds; 0 without CuPy, or if the driver is emulated.

    Never raises, loads no compiler, creates no context.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")  # without a driver there is no need to load CuPy
        if hasattr(driver, "emulated_spare_0"):
            return 0
        from cupy.cuda import runtime

        return int(runtime.getDeviceCount())
    except Exception:  # no CuPy, no driver, or a driver that is too old
        return 0


def own_gpu() -> str | None:
    """A unique description of the first visible GPU; None without one. Creates no context."""
    if not gpu_count():
        return None
    from cupy.cuda import runtime

    return f"{socket.gethostname()} {runtime.deviceGetPCIBusId(0)}"


class GpuContext:
    """One GPU. bfloat16 buffers are uint16 arrays to CuPy and Numba.

    Raises `SandboxError` if there is no usable GPU.
    """

    def __init__(self, number: int | None = None) -> None:
        """`number` is CUDA's, of the GPU; None for the current device."""
        try:
            import cupy

            self.gpu = cupy.cuda.Device(number)
            gpus = cupy.cuda.runtime.getDeviceCount()
            properties = cupy.cuda.runtime.getDeviceProperties(self.gpu.id)
            with self.gpu:
                self.stream = cupy.cuda.Stream(non_blocking=True)
        except Exception as error:
            raise SandboxError(
                f"no usable GPU: {' '.join(str(error).split())}; --device emulator needs none"
            ) from error
        self.cupy = cupy
        self.l2_bytes = int(properties["l2CacheSize"])
        self.device = Device(
            kind="gpu",
            name=properties["name"].decode(),
            arch=f"sm_{properties['major']}{properties['minor']}",
            count=gpus,
        )
        self._native = NativeGpu(cupy, self.stream, self.device.name, self.device.arch)
        self._pool = cupy.cuda.MemoryPool()
        self._lost_to: str | None = None

    def require_alive(self) -> None:
        """Raise `SandboxError` if a fault has ended this process's CUDA context.

        The message names the kernel at fault.
        """
        if self._lost_to is not None:
            raise SandboxError(
                f"not run: {self._lost_to} broke this process's CUDA context. Leave it out with --variants, or run it "
                "with --device emulator, which shows where it goes wrong"
            )

    def bind(self, launch: Launch, arrays: Mapping[str, Any]) -> Call:
        """Compile and bind a launch to these arrays.

        The returned call does nothing but launch, so that it can be timed.

        Raises `CompileError`, and `PlanError` if no toolchain owns the kernel or it requests too much shared memory.
        """
        with self.current():
            return toolchain_of(launch.kernel).bind(launch, arrays, self._native)

    def bind_stamped(
        self, launches: Sequence[Launch], arrays: Mapping[str, Any], rooms: Sequence[Any], stamps: int
    ) -> list[Call]:
        """Bind instrumented copies of launches, whose warps record timestamps."""
        return bind_stamped(launches, arrays, rooms, self._native, stamps)

    @contextmanager
    def memory(self) -> Iterator[None]:
        """A context manager that allocates from this object's pool, on its stream, and frees everything at the end.

        Raises `SandboxError` if the GPU's memory is too small.
        """
        try:
            with self.current():
                yield
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise SandboxError(f"the GPU's memory is too small for this problem: {error}") from error
        finally:
            if self._lost_to is None:
                with self.gpu:  # CuPy frees the blocks of the current device
                    self._pool.free_all_blocks()

    @contextmanager
    def current(self) -> Iterator[None]:
        """A context manager that makes this GPU, its stream and its pool current for CuPy, Numba and launches."""
        with self.gpu, self.cupy.cuda.using_allocator(self._pool.malloc), self.stream:
            yield

    @contextmanager
    def faults_named(self, kernel_name: str) -> Iterator[None]:
        """A context manager that turns errors of CUDA and of launching into a `SandboxError` with the kernel's name."""
        try:
            yield
        except (SandboxError, self.cupy.cuda.memory.OutOfMemoryError):
            raise
        except Exception as error:
            code = _cuda_code(error)
            text = f"kernel {kernel_name}: {type(error).__name__}: {error}"
            if code in STICKY_CODES:
                self._lost_to = f"kernel {kernel_name}"
                hint = "; --device emulator names the line, block and thread"
                raise KernelFault(FAULT_KINDS.get(code, "trap"), text + hint) from error
            raise SandboxError(text) from error

    @contextmanager
    def shown_to_profilers(self) -> Iterator[None]:
        """A context manager between cudaProfilerStart and cudaProfilerStop, entered after buffers are filled."""
        self.stream.synchronize()
        self.cupy.cuda.runtime.profilerStart()
        try:
            yield
        finally:
            self.cupy.cuda.runtime.profilerStop()

    def allocate(self, buffer: Buffer) -> Any:
        """An uninitialized array for this buffer."""
        with self.current():
            return self.cupy.empty(buffer.shape, kernel_dtype(buffer.dtype))

    def upload(self, array: Any, values: np.ndarray) -> None:
        """Copy `values` from the host to a GPU array."""
        with self.current():
            array.set(kernel_values(values), stream=self.stream)

    def fill(self, array: Any, byte: int) -> None:
        """Set every byte, in stream order."""
        if array.nbytes:
            with self.current():
                array.data.memset_async(byte, array.nbytes, self.stream)

    def download(self, array: Any, dtype: str) -> np.ndarray:
        """Copy an array to the host, bfloat16 and float8 as types of `ml_dtypes`. Waits for the stream."""
        with self.current():
            host: np.ndarray = array.get(stream=self.stream)
            self.stream.synchronize()
        return host.view(dtype) if dtype in _BITS else host

    def peers(self, count: int) -> list[GpuContext]:
        """Return this context and those of up to `count` - 1 other GPUs, which copy to each other directly if they can.

        Without peer access, CUDA copies through the host's memory.
        """
        runtime = self.cupy.cuda.runtime
        gpus = runtime.getDeviceCount()
        contexts = [self, *(GpuContext((self.gpu.id + d) % gpus) for d in range(1, min(count, gpus)))]
        for one, other in itertools.permutations(contexts, 2):
            if runtime.deviceCanAccessPeer(one.gpu.id, other.gpu.id):
                with one.gpu:
                    _enable_peer_access(runtime, other.gpu.id)
        return contexts

    def event(self) -> Any:
        """A new event for streams of this GPU, which streams of other GPUs may wait for."""
        with self.gpu:
            return self.cupy.cuda.Event(disable_timing=True)

    def new_stream(self) -> Any:
        """Another stream of this GPU."""
        with self.gpu:
            return self.cupy.cuda.Stream(non_blocking=True)

    def copy_to(self, other: GpuContext, source: Any, destination: Any, size_bytes: int, stream: Any) -> None:
        """Enqueue a copy of an array's first bytes, from this GPU's memory to that of another one or the same."""
        runtime, there, here = self.cupy.cuda.runtime, int(destination.data.ptr), int(source.data.ptr)
        if other.gpu.id == self.gpu.id:
            runtime.memcpyAsync(there, here, size_bytes, runtime.memcpyDeviceToDevice, stream.ptr)
        else:
            runtime.memcpyPeerAsync(there, other.gpu.id, here, self.gpu.id, size_bytes, stream.ptr)


ALREADY_ENABLED = 704
"""`cudaErrorPeerAccessAlreadyEnabled`."""


def _enable_peer_access(runtime: Any, number: int) -> None:
    """Let the current GPU access the memory of the GPU of this number."""
    try:
        runtime.deviceEnablePeerAccess(number)
    except runtime.CUDARuntimeError as error:
        if error.status != ALREADY_ENABLED:
            raise


def views_of(context: GpuContext, problem: BaseProblem, buffers: Mapping[str, Any]) -> dict[str, Any]:
    """What each name among a launch's arguments stands for, given the arrays of buffers by name."""
    placed = [tensor for tensor in problem.tensors if tensor.placement is not None and tensor.buffer in buffers]
    return {**buffers, **{tensor.name: view(tensor, buffers[tensor.buffer], context.cupy) for tensor in placed}}


_BITS = {ml_dtypes.bfloat16.__name__: np.uint16, ml_dtypes.float8_e4m3fn.__name__: np.uint8}
"""The dtype that CuPy and Numba use for the bits of types that they do not know."""


def kernel_values(values: np.ndarray) -> np.ndarray:
    """The values in the dtype that CuPy and Numba use for them."""
    return values.view(_BITS.get(values.dtype.name, values.dtype))


def kernel_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype that CuPy and Numba use for a buffer's dtype."""
    return np.dtype(_BITS.get(dtype, dtype))


def _cuda_code(error: Exception) -> int | None:
    """CUDA's error code, which CuPy's errors have as `status` and Numba's as `code`; None for other errors."""
    for name in ("status", "code"):
        value = getattr(error, name, None)
        if value is not None:
            try:
                return int(value)
            except (TypeError, ValueError):
                return None
    return None


def bind_stamped(
    launches: Sequence[Launch], arrays: Mapping[str, Any], rooms: Sequence[Any], gpu: NativeGpu, stamps: int
) -> list[Call]:
    """A call for each launch whose warps write timestamps into its array of `rooms`, at most `stamps` per warp.

    Kernels of one module share its variables as before. Raises what `Toolchain.bind` does.
    """
    packed = [packed_launch(toolchain_of(launch.kernel), launch, arrays, gpu) for launch in launches]
    modules: dict[str, str] = {}
    for each in packed:
        compiled = each.compiled
        together = {
            other.compiled.entry: other.compiled for other in packed if other.compiled.module == compiled.module
        }
        if compiled.module not in modules:
            text = stamped(compiled.ptx, tuple(together), stamps)
            for other in together.values():
                text = limited(other, text)
            modules[compiled.module] = text
    return [
        keeping(
            each.kept,
            bind_module(
                modules[each.compiled.module].encode(),
                each.compiled.entry,
                each.compiled.configured(launch),
                (*each.words, np.uint64(int(room.data.ptr))),
                gpu,
            ),
        )
        for launch, each, room in zip(launches, packed, rooms, strict=True)
    ]
