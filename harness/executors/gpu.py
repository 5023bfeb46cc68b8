"""Runs plans natively: CuPy launches RawKernels, Numba launches its own, on one stream and one memory pool."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np

from harness.errors import CompileError, KernelFault, PlanError, SandboxError
from harness.executors import Device, Execution, LaunchReport
from harness.problem import Problem
from harness.variant import Buffer, Launch, Plan

POISON_BYTE = 0xFF
"""What outputs and scratch are filled with: NaN in every floating-point type, and no arithmetic's result."""

FEWEST_TIMED_RUNS, MOST_TIMED_RUNS = 5, 50
TIMED_MS = 200.0
"""Timed runs go on until they add up to this, within the two limits above."""

FAULT_KINDS = {700: "out of bounds", 716: "misaligned", 717: "out of bounds", 702: "step limit"}
"""CUDA's error codes for what `KernelFault` has a name for: illegal address, misaligned, address space, timeout."""
STICKY_CODES = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})
"""Errors after which the process's CUDA context is of no more use (CUDA driver API, `CUresult`)."""

Call = Callable[[], None]


class GpuExecutor:
    """The executor protocol on the current CUDA device.

    bfloat16 buffers are uint16 arrays to CuPy and Numba. Raises `SandboxError` where there is no usable GPU.
    """

    device: Device

    def __init__(self, timed: bool = True) -> None:
        """`timed` False: each plan runs once, and `time_ms` is None. Its launches are what a profiler may look at."""
        self._timed = timed
        try:
            import cupy

            properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
            self._stream = cupy.cuda.Stream(non_blocking=True)
        except Exception as error:
            raise SandboxError(
                f"no usable GPU: {' '.join(str(error).split())}; --device emulator needs none"
            ) from error
        self._cupy = cupy
        self._pool = cupy.cuda.MemoryPool()
        self._lost_to: str | None = None
        self.device = Device(
            kind="gpu",
            name=properties["name"].decode(),
            arch=f"sm_{properties['major']}{properties['minor']}",
        )

    @staticmethod
    def available() -> bool:
        """Whether CuPy is there and sees a GPU. Never raises, loads no compiler, creates no context."""
        try:
            from cupy.cuda import runtime

            return bool(runtime.getDeviceCount() > 0)
        except Exception:  # no CuPy, no driver, a driver that is too old: all mean no
            return False

    def run(self, problem: Problem, plan: Plan, inputs: Mapping[str, np.ndarray]) -> Execution:
        """Run `plan` once for its outputs, then again several times for `time_ms`, the median of CUDA events.

        The time is that of all launches together, gaps between them included; scratch and outputs are filled with
        NaN before each run, outside the timed range. Raises as the protocol says. After a fault such as an illegal
        address CUDA gives this process nothing more: later runs raise `SandboxError` that names the culprit.
        """
        if self._lost_to is not None:
            raise SandboxError(
                f"not run: {self._lost_to} broke this process's CUDA context. Leave it out with --variants, or run it "
                "with --device emulator, which shows where it goes wrong"
            )
        with self._using_pool():
            outputs, time_ms = self._run(plan, plan.all_buffers(problem), inputs)
        return Execution(
            outputs=outputs,
            launches=tuple(LaunchReport(launch.kernel_name, traffic=None) for launch in plan.launches),
            allocated_bytes=plan.allocated_bytes(problem),
            time_ms=time_ms,
        )

    def _run(
        self, plan: Plan, buffers: Mapping[str, Buffer], inputs: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], float | None]:
        """Outputs and time. The arrays are this method's own, so that the pool has them back when it returns."""
        arrays = {name: self._allocate(buffer) for name, buffer in buffers.items()}
        for name in ("Q", "K", "V"):
            arrays[name].set(_as_kernels_see_it(inputs[name]), stream=self._stream)
        fresh = [arrays[name] for name in arrays if name not in ("Q", "K", "V")]
        calls = [self._prepare(launch, arrays) for launch in plan.launches]
        self._poison(fresh)
        with nullcontext() if self._timed else self._shown_to_profilers():
            for launch, call in zip(plan.launches, calls, strict=True):
                with self._faults_named(launch.kernel_name):
                    call()
                    # CUDA reports a fault at some later call; waiting here pins it to this launch.
                    self._stream.synchronize()
        outputs = {name: self._download(arrays[name], buffers[name]) for name in ("O", "lse") if name in buffers}
        if not self._timed:
            return outputs, None
        with self._faults_named(", ".join(dict.fromkeys(launch.kernel_name for launch in plan.launches))):
            return outputs, self._time(calls, fresh)

    @contextmanager
    def _shown_to_profilers(self) -> Iterator[None]:
        """Between cudaProfilerStart and cudaProfilerStop; what filled the buffers is over. No profiler, no effect."""
        self._stream.synchronize()
        self._cupy.cuda.runtime.profilerStart()
        try:
            yield
        finally:
            self._cupy.cuda.runtime.profilerStop()

    @contextmanager
    def _using_pool(self) -> Iterator[None]:
        try:
            with self._cupy.cuda.using_allocator(self._pool.malloc), self._stream:
                yield
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise SandboxError(f"the GPU's memory is too small for this problem: {error}") from error
        finally:
            if self._lost_to is None:
                self._pool.free_all_blocks()

    def _allocate(self, buffer: Buffer) -> Any:
        return self._cupy.empty(buffer.shape, _kernel_dtype(buffer.dtype))

    def _poison(self, arrays: list[Any]) -> None:
        for array in arrays:
            if array.nbytes:
                array.data.memset_async(POISON_BYTE, array.nbytes, self._stream)

    def _download(self, array: Any, buffer: Buffer) -> np.ndarray:
        host: np.ndarray = array.get(stream=self._stream)
        self._stream.synchronize()
        return host.view(ml_dtypes.bfloat16) if buffer.dtype == "bfloat16" else host

    def _time(self, calls: list[Call], fresh: list[Any]) -> float:
        start, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        times_ms: list[float] = []
        while len(times_ms) < FEWEST_TIMED_RUNS or (sum(times_ms) < TIMED_MS and len(times_ms) < MOST_TIMED_RUNS):
            self._poison(fresh)
            start.record(self._stream)
            for call in calls:
                call()
            end.record(self._stream)
            end.synchronize()
            times_ms.append(self._cupy.cuda.get_elapsed_time(start, end))
        return statistics.median(times_ms)

    def _prepare(self, launch: Launch, arrays: Mapping[str, Any]) -> Call:
        """Compile, and bind all arguments, so that what is timed is the launch alone."""
        if isinstance(launch.kernel, self._cupy.RawKernel):
            return self._prepare_rawkernel(launch, arrays)
        if type(launch.kernel).__name__ == "CUDADispatcher":
            return self._prepare_numba(launch, arrays)
        raise PlanError(
            f"kernel {launch.kernel_name} is a {type(launch.kernel).__name__}; "
            "it has to be a cupy.RawKernel or under numba.cuda.jit"
        )

    def _prepare_rawkernel(self, launch: Launch, arrays: Mapping[str, Any]) -> Call:
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

    def _prepare_numba(self, launch: Launch, arrays: Mapping[str, Any]) -> Call:
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
                f"{static_bytes:,} static ones; {self.device.name} has {most_bytes:,} per block ({error})"
            ) from error

    @contextmanager
    def _faults_named(self, kernel_name: str) -> Iterator[None]:
        """CUDA's errors, and any other from launching, as a `SandboxError` with the kernel's name."""
        try:
            yield
        except (SandboxError, self._cupy.cuda.memory.OutOfMemoryError):
            raise
        except Exception as error:
            code = _cuda_code(error)
            text = f"kernel {kernel_name}: {type(error).__name__}: {error}"
            if code in STICKY_CODES:
                self._lost_to = f"kernel {kernel_name}"
                hint = "; --device emulator names the line, block and thread"
                raise KernelFault(FAULT_KINDS.get(code, "trap"), text + hint) from error
            raise SandboxError(text) from error


def _allow_dynamic_shared_bytes(kernel: Any, shared_bytes: int) -> None:
    # Numba has no public way to ask for more than 48 KB; this is how it sets the carve-out of the same function.
    from numba.cuda.cudadrv import driver

    function = kernel._codelibrary.get_cufunc()
    attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.driver.cuKernelSetAttribute(attribute, shared_bytes, function.handle, function.device.id)


def _cuda_code(error: Exception) -> int | None:
    """CUDA's number: CuPy's errors have it as `status`, Numba's as `code`."""
    for name in ("status", "code"):
        value = getattr(error, name, None)
        if value is not None:
            try:
                return int(value)
            except (TypeError, ValueError):
                return None
    return None


def _kernel_dtype(dtype: str) -> np.dtype:
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def _as_kernels_see_it(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
