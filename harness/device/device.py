"""The public device: memory, modules and launches of one emulated GPU."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness.compilers import CompiledKernel, DevicePointer, compile_module
from harness.compilers.cute.kernel import CuteFunction, CuteTensor
from harness.compilers.toolchains import toolchain_of
from harness.device.arguments import DeviceTensorMap, device_argument, typed_scalar
from harness.device.array import DeviceArray, c_strides, element_type, extents_of, span_of
from harness.device.kernel import Kernel
from harness.device.memory import DeviceMemory
from harness.device.module import Module
from harness.device.result import LaunchResult
from harness.emulator.abi.layout import buffer_index
from harness.emulator.codegen.kernel_facts import KernelFacts
from harness.emulator.emulated_gpu import EmulatedGpu
from harness.emulator.instruments import Instruments
from harness.emulator.launch.configuration import MOST_STEPS, Geometry, LaunchOptions
from harness.emulator.launch.kernel_launch import PreviousLaunch
from harness.emulator.launch.memory.module_memory import LoadedModules
from harness.emulator.launch.tensor_maps import encode
from harness.emulator.native.kernel_cache import native_kernel
from harness.emulator.native.tier import Tier
from harness.model.cases.regime import require_seed
from harness.model.plan import Launch, map_leaves
from harness.model.tensor_map import NARROW_TYPES, TensorMap
from harness.ptx.targets import Target
from harness.support.cores import usable_cores
from harness.support.errors import PlanError, UsageError
from harness.support.gpu_data_sheets import gpu as gpu_named

if TYPE_CHECKING:
    from harness.device.torch_tensors import TorchTensors


class Device:
    """An emulated GPU: allocates memory, loads modules, and launches kernels of CuPy, Numba, PTX and CuTe on the CPU.

    A process may have any number of devices. A device is serial: a launch returns when the kernel has ended, so there
    are no streams and nothing to synchronize. Use a device from one thread at a time.

    `arch` is the architecture that kernels are compiled for, by default that of `gpu`. The size of the latter limits
    how many blocks that wait for each other are resident at a time. With `sanitize`, every launch looks for races and
    reads of unwritten memory, and blocks run on one core. With `bank_conflicts`, every launch counts the passes of its
    requests of shared memory. A `seed` other than 0 permutes the turns of a block's warps and, with `sanitize`, the
    order of blocks. `step_limit` is the maximum number of instructions of a warp, and `threads` the number of CPU
    threads (default: one per core); results do not depend on it.

    If `lenient`, what is undefined and yet accepted by an H100 is noted in the result of the launch, and no fault: a
    `bar.warp.sync` that names lanes on another path, a barrier of the block after lanes or warps have returned and,
    without `sanitize`, loads beyond shared memory and arrivals at an mbarrier of a block that has ended.

    As a context manager, a device frees its memory at the end. Raises `UsageError` if `arch` is not an architecture,
    `gpu` unknown or `seed` negative.
    """

    def __init__(
        self,
        arch: str | None = None,
        *,
        gpu: str = "h200",
        sanitize: bool = False,
        bank_conflicts: bool = False,
        lenient: bool = False,
        seed: int = 0,
        step_limit: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.gpu = gpu_named(gpu)
        self.arch = self.gpu.multiprocessor.arch if arch is None else arch
        if Target.named(self.arch) is None:
            raise UsageError(f"arch is {arch!r}; it has to look like sm_90")
        require_seed(seed)
        self.instruments = Instruments(bank_conflicts=bank_conflicts, sanitizer=sanitize, lenient=lenient)
        self.memory = DeviceMemory(watched=sanitize)
        self.modules = LoadedModules()
        self._options = LaunchOptions(
            step_limit or MOST_STEPS, threads or usable_cores(), seed, shuffle=sanitize and seed != 0
        )
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._previous = PreviousLaunch()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free all memory. Arrays of the device cannot be used any more."""
        self.memory.close()

    # Arrays ---------------------------------------------------------------------------------------------------------

    def array(self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None, name: str = "") -> DeviceArray:
        """Copy an array, or nested lists, to the device.

        A C- or Fortran-contiguous array stays so, with any order of its axes; others become contiguous. `name` is shown
        in counts, faults and findings; by default it is the name of a kernel's parameter if the PTX has one. Raises
        `UsageError` for a dtype that no GPU has.
        """
        host = np.array(values, None if dtype is None else element_type(dtype), order="K")
        made = self.empty(host.shape, host.dtype, name=name, strides=host.strides)
        made[...] = host
        return made

    def empty(
        self, shape: Any, dtype: npt.DTypeLike = np.float32, name: str = "", strides: Sequence[int] | None = None
    ) -> DeviceArray:
        """Allocate an array whose bytes are 0xFF, which is NaN, until a kernel writes it.

        `shape` is in elements; `strides` are in bytes, of any sign, by default those of a C-contiguous array. Raises
        `UsageError` for an invalid shape, dtype or strides, `SandboxError` if there is not enough memory.
        """
        extents, element = extents_of(shape), element_type(dtype)
        steps = c_strides(extents, element.itemsize) if strides is None else tuple(strides)
        if len(steps) != len(extents):
            raise UsageError(f"strides are {steps} for the shape {extents}; there has to be one for each dimension")
        before, after = span_of(extents, steps, element.itemsize)
        allocation = self.memory.allocate(before + after, name)
        data = self.memory.buffer_of(allocation).data
        host: npt.NDArray[Any] = np.ndarray(extents, element, data.data, before, steps)
        return DeviceArray(self, allocation, host, before)

    def zeros(self, shape: Any, dtype: npt.DTypeLike = np.float32, name: str = "") -> DeviceArray:
        """Allocate a C-contiguous array of zeros. Raises what `empty` raises."""
        made = self.empty(shape, dtype, name)
        made[...] = np.zeros((), made.dtype)
        return made

    def tensor_map(
        self, array: DeviceArray, box: Sequence[int], *, swizzle: int = 0, extents: Sequence[int] | None = None,
        strides: Sequence[int] | None = None, element_type: str | None = None,
    ) -> DeviceTensorMap:  # fmt: skip
        """Describe how boxes of an array move to shared memory (`cp.async.bulk.tensor`), as an argument of a launch.

        `box` and `extents` are in elements and `strides` in bytes, each beginning with the innermost dimension, as in
        CUDA; `strides` omits that dimension. By default they are those of the array. `element_type` is `b4x16`,
        `b4x16_p64` or `b6x16_p32` if the array has bytes that contain elements of 4 or 6 bits. Raises `UsageError` if
        no GPU has such a map.
        """
        sizes = tuple(reversed(array.shape)) if extents is None else tuple(extents)
        if extents is None and element_type in NARROW_TYPES:
            sizes = (sizes[0] * array.dtype.itemsize * 8 // NARROW_TYPES[element_type][1], *sizes[1:])
        steps = tuple(reversed(array.strides))[1:] if strides is None else tuple(strides)
        with _as_usage_error():
            described = TensorMap(array.name, sizes, steps, tuple(box), element_type or array.dtype.name, swizzle)
        encoded = encode(described, array.address).tobytes()
        place = self.array(np.frombuffer(encoded, np.uint8), name=f"tensor map of {array.name}")
        return DeviceTensorMap(array, encoded, place)

    # Memory by address ----------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int, name: str = "") -> int:
        """Allocate bytes, which are 0xFF until they are written, and return their address. `free` frees them.

        Raises `UsageError` for a negative size, and `SandboxError` if there is not enough memory.
        """
        return self.memory.keep(self.memory.allocate(nbytes, name))

    def free(self, memory: DeviceArray | int) -> None:
        """Free an array, or what `allocate` returned. Raises `UsageError` for another address."""
        if isinstance(memory, DeviceArray):
            memory.free()
        else:
            self.memory.free(memory)

    def allocation(self, address: int) -> tuple[int, int]:
        """Address and size in bytes of the allocation that an address is in. Raises `UsageError` if it is in none."""
        found, _ = self.memory.find(address)
        return found.address, found.size_bytes

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy bytes to the host. Raises `UsageError` if they are not in one allocation."""
        self.synchronize()
        return self.memory.view(address, nbytes).tobytes()

    def write(self, address: int, data: bytes | bytearray | memoryview | npt.NDArray[Any]) -> None:
        """Copy bytes, or a C-contiguous array, to the device. Raises `UsageError` if they do not fit an allocation."""
        source = np.frombuffer(data, np.uint8)
        self.synchronize()
        self.memory.view(address, source.nbytes, written=True)[:] = source

    def view(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """The bytes at an address, in place. The sanitizer does not see what is written through them, as by `write`.

        Raises `UsageError` if they are not in one allocation.
        """
        self.synchronize()
        return self.memory.view(address, nbytes)

    # Code -----------------------------------------------------------------------------------------------------------

    def module(self, source: Any) -> Module:
        """Load a module: a `cupy.RawModule`, PTX text, or the path of a PTX file.

        Its variables have their initial values, and are not shared with other modules. Raises `CompileError`, and
        `UsageError` for other objects.
        """
        with _as_usage_error():
            kernels = compile_module(source, self.arch)
        return Module(self, next(iter(kernels.values())).ptx, kernels)

    def load_ptx(self, text: str) -> Module:
        """Load a module of PTX text. Raises `CompileError`."""
        return self.module(text if "\n" in text else f"{text}\n")

    def kernel(self, kernel: Any) -> Kernel:
        """Prepare a kernel of any language, as in `Launch.kernel`.

        Raises `UsageError` for other objects. It is compiled at its first launch.
        """
        if isinstance(kernel, Kernel):
            if kernel.device is not self:
                raise UsageError(f"kernel {kernel.name} belongs to another device; load it on this one")
            return kernel
        with _as_usage_error():
            return Kernel(self, toolchain_of(kernel), kernel, None, None)

    # Launches -------------------------------------------------------------------------------------------------------

    def launch(
        self, kernel: Any, grid: Any, block: Any, args: Sequence[Any] = (), shared_bytes: int = 0, cluster: Any = None,
        *, cooperative: bool = False, overlaps_previous: bool = False,
    ) -> LaunchResult:  # fmt: skip
        """Run a kernel over its grid and return its counts. Its results are in place.

        `kernel` is one of this device or what `kernel()` takes. `grid`, `block` and `cluster` are numbers or tuples of
        up to three, in blocks, threads, and blocks; `shared_bytes` is dynamic shared memory per block.

        In a `cooperative` launch all blocks are resident together, so that they may wait for each other (`grid.sync()`
        of cooperative groups). Kernels of Numba that call it, and of CuPy with `enable_cooperative_groups`, are
        always launched so.

        With `overlaps_previous` the launch may begin before the previous one has ended (programmatic dependent launch).
        Here it never does, but the sanitizer finds what lacks a `griddepcontrol.wait`. Whatever reads or writes memory
        in between, such as `x.numpy()` or `device.array`, lets the previous launch end.

        Arguments are arrays of this device, tensor maps, NumPy scalars, structures as bytes or NumPy structured
        scalars, tuples (structs in CUDA and PTX), and addresses as integers. A kernel with types in its source (CUDA,
        PTX) gives Python numbers the type of its parameter.

        Raises `UsageError` for a wrong call, `CompileError` or `UnsupportedInstruction` for the kernel's code, and
        `KernelFault` for what it does. The device remains usable after each of them.
        """
        chosen = self.kernel(kernel)
        step = _checked(chosen, grid, block, tuple(args), shared_bytes, cluster)
        by_value = chosen.toolchain.tensor_maps_by_value
        given = tuple(
            device_argument(chosen.name, number, each, self.memory, by_value) for number, each in enumerate(args, 1)
        )
        with _as_usage_error():
            compiled = chosen.compiled_for(given)
            step = compiled.configured(step)
            names = self._names(chosen.argument_names(compiled), given)
            if chosen.toolchain.types_in_source and len(given) == len(compiled.parameters):
                given = tuple(typed_scalar(each, parameter) for each, parameter in zip(given, compiled.parameters))
            words = compiled.pack(given)
        return self._run(chosen, compiled, words, step, names, cooperative, overlaps_previous)

    def synchronize(self) -> None:
        """Wait for the launches so far. They have ended, but without it, a later launch may overlap the last one."""
        self._previous.recorder = None

    def call(self, function: CuteFunction, *arguments: Any) -> tuple[LaunchResult, ...]:
        """Call a compiled CuTe function, and run the kernels that it launches, in order. Returns their counts.

        Arguments are arrays of this device, numbers, None, and tuples of these. Raises what `launch` raises.
        """
        arrays: dict[str, DeviceArray] = {}

        def tensor(leaf: Any) -> Any:
            if not isinstance(leaf, DeviceArray):
                return leaf
            name = f"argument {len(arrays)}"
            arrays[name] = leaf
            strides = tuple(stride // leaf.dtype.itemsize for stride in leaf.strides)
            return CuteTensor(name, leaf.shape, strides, leaf.dtype.name)

        given = [map_leaves(tensor, argument) for argument in arguments]
        with _as_usage_error():
            made = function.launches(*given)
        return tuple(
            self.launch(
                each.kernel,
                each.grid,
                each.block,
                [arrays[name] for name in each.args],
                each.shared_bytes,
                each.cluster,
            )
            for each in made
        )

    def torch_tensors(self) -> AbstractContextManager[TorchTensors]:
        """Return a context in which PyTorch's CUDA tensors are in this device's memory.

        Functions that `cute.compile` compiles within it run on this device: `call` is not needed. Libraries such as
        FlashAttention-4 are called as on a GPU. The context's value makes tensors of arrays, and arrays of tensors.
        Needs PyTorch and CuTe DSL.
        """
        from harness.device.torch_tensors import torch_tensors

        return torch_tensors(self)

    def launch_packed(
        self,
        kernel: Kernel,
        grid: Any,
        block: Any,
        parameters: bytes | Sequence[bytes],
        shared_bytes: int = 0,
        cluster: Any = None,
        *,
        cooperative: bool = False,
        overlaps_previous: bool = False,
    ) -> LaunchResult:
        """Run a kernel with its parameters as bytes: each, or all in one block in the layout of `Kernel.parameters`.

        Raises what `launch` raises.
        """
        step = _checked(kernel, grid, block, (), shared_bytes, cluster)
        if not isinstance(parameters, bytes):
            words = tuple(parameters)
            return self._run(kernel, kernel.compiled_for(), words, step, {}, cooperative, overlaps_previous)
        layout = kernel.parameters
        end = max((each.offset + each.size_bytes for each in layout), default=0)
        if len(parameters) < end:
            raise UsageError(f"kernel {kernel.name} has {end} bytes of parameters; it is given {len(parameters)}")
        words = tuple(parameters[each.offset : each.offset + each.size_bytes] for each in layout)
        return self._run(kernel, kernel.compiled_for(), words, step, {}, cooperative, overlaps_previous)

    def facts(self, compiled: CompiledKernel) -> KernelFacts:
        """What the translation of a kernel to native code finds. Raises `CompileError` and `UnsupportedInstruction`."""
        return native_kernel(
            compiled.ptx, compiled.entry, instruments=self.instruments, tier=self._tier(compiled)
        ).facts

    def _tier(self, compiled: CompiledKernel) -> Tier:
        seconds = self._seconds[compiled.ptx, compiled.entry]
        return Tier.after(seconds, compiled.ptx, 0) if self.instruments.sanitizer else Tier.after(seconds, compiled.ptx)

    def _run(
        self, kernel: Kernel, compiled: CompiledKernel, words: tuple[bytes, ...], step: Launch, names: dict[int, str],
        cooperative: bool, overlaps_previous: bool,
    ) -> LaunchResult:  # fmt: skip
        geometry = replace(
            Geometry.of(step), cooperative=cooperative or compiled.cooperative, overlaps_previous=overlaps_previous
        )
        with _as_usage_error():
            report, findings = EmulatedGpu(instruments=self.instruments, gpu=self.gpu).launch(
                compiled,
                words,
                geometry,
                self.memory.named(names),
                kernel.memory_of(compiled),
                self._options,
                name=kernel.name,
                tier=self._tier(compiled),
                previous=self._previous,
            )
        self._seconds[compiled.ptx, compiled.entry] += report.seconds or 0.0
        return LaunchResult(
            kernel.name, step.grid, step.block, step.shared_bytes, step.cluster, report, findings, compiled
        )

    def _names(self, names: tuple[str, ...], given: tuple[Any, ...]) -> dict[int, str]:
        """The kernel's own names of the buffers that no call has named, by slot, if each has only one."""
        slots = [buffer_index(each.address) for each in given if isinstance(each, DevicePointer)]
        found = {
            buffer_index(each.address): name
            for name, each in zip(names, given)
            if isinstance(each, DevicePointer) and slots.count(buffer_index(each.address)) == 1
        }
        unnamed = self.memory.unnamed
        taken = {buffer.name for buffer in self.memory.buffers}
        return {slot: name for slot, name in found.items() if slot in unnamed and name not in taken}

    def __repr__(self) -> str:
        return f"<Device {self.arch}{', sanitizing' if self.instruments.sanitizer else ''}>"


@contextlib.contextmanager
def _as_usage_error() -> Iterator[None]:
    """Raise errors of the launch's arguments, which plans call `PlanError`, as `UsageError`."""
    try:
        yield
    except PlanError as error:
        raise UsageError(str(error)) from error


def _checked(kernel: Kernel, grid: Any, block: Any, args: tuple[Any, ...], shared_bytes: int, cluster: Any) -> Launch:
    """The launch with its extents as tuples. Raises `UsageError` if no GPU takes it."""
    with _as_usage_error():
        return Launch(
            kernel, _tuple(grid), _tuple(block), args, shared_bytes, None if cluster is None else _tuple(cluster)
        )


def _tuple(extents: Any) -> Any:
    return (extents,) if hasattr(extents, "__index__") else extents
