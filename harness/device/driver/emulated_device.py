"""The emulated GPU that the driver stands on: memory by address, modules of PTX, and launches with raw parameters."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harness.device.driver.kernel_names import readable_name
from harness.emulator.abi import layout as at
from harness.emulator.abi.sanitizer_layout import NEVER_WRITTEN
from harness.emulator.codegen.kernel_facts import KernelFacts, ModuleVariable
from harness.emulator.instruments import Instruments
from harness.emulator.launch.aligned_memory import SLACK_BYTES, aligned_zeros
from harness.emulator.launch.configuration import MOST_STEPS, Geometry, LaunchOptions
from harness.emulator.launch.device_memory import DeviceBuffer
from harness.emulator.launch.kernel_launch import LaunchCounts, launch
from harness.emulator.launch.module_memory import ModuleMemory
from harness.emulator.native.kernel_cache import NativeKernel, native_kernel
from harness.emulator.native.tier import Tier
from harness.ptx.instructions import Variable
from harness.ptx.parameters import Parameter
from harness.support.cores import usable_cores
from harness.support.errors import SandboxError
from harness.support.memory import available_bytes

BASELINE_SECONDS = 1.0
"""Kernels that have run for longer are compiled again with optimization."""
_NO_BYTES = np.zeros(0, np.uint8)
_TEXT_WINDOWS, _STACK_WINDOWS = range(0x555, 0x567), range(0x7E0, 0x800)
"""Windows whose addresses Linux gives to programs, their heaps and stacks, and to libraries."""


class DeviceMemoryExhausted(SandboxError):
    """There is not enough memory for an allocation."""


@dataclass
class Allocation:
    """A range of device memory with an address of its own."""

    name: str
    address: int
    data: npt.NDArray[np.uint8]
    written: npt.NDArray[np.uint8] | None
    """For the sanitizer: the state of each byte, see `DeviceBuffer`."""
    host_address: int | None = None
    """Address at which the host may access it, for pinned, registered and managed memory."""
    managed: bool = False
    owner: object = None
    """Object whose lifetime is that of the bytes."""

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return self.data.nbytes


@dataclass
class Module:
    """A loaded module."""

    ptx: str
    entries: dict[str, tuple[Parameter, ...]]
    variables: tuple[Variable, ...]
    """Its `.global` and `.const` variables in declaration order."""
    memory: ModuleMemory = field(default_factory=ModuleMemory)
    aliases: dict[str, Allocation] = field(default_factory=dict)
    """Allocations through which the host accesses variables, by name."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each kernel has run as baseline code."""


class EmulatedDevice:
    """Memory, modules and launches of one GPU. Launches run one after the other, in the thread that calls `launch`."""

    def __init__(self, instruments: Instruments) -> None:
        self.instruments = instruments
        self._allocations: list[Allocation | None] = []
        self._count = 0
        self.used_bytes = 0
        """Bytes of device memory that are allocated."""

    # Memory -----------------------------------------------------------------------------------------------------------

    def allocate(self, size_bytes: int) -> Allocation:
        """Allocate device memory, filled with NaN patterns. Raises `DeviceMemoryExhausted`."""
        if size_bytes > available_bytes():
            raise DeviceMemoryExhausted(f"this machine has no {size_bytes:,} bytes left for the emulated GPU")
        data = aligned_zeros(size_bytes)[:size_bytes]
        data[:] = 0xFF
        allocation = self._place(data, self._free_window(), self._unwritten(size_bytes))
        self.used_bytes += size_bytes
        return allocation

    def allocate_shared(self, size_bytes: int, *, managed: bool = False) -> Allocation:
        """Allocate zeroed memory that has the same address for the host and the device."""
        window = self._free_window()
        length = -(-(size_bytes + SLACK_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
        while not _map_at(at.buffer_address(window), length):
            window = self._free_window(window + 1)
        address = at.buffer_address(window)
        allocation = self._place(bytes_at(address, size_bytes), window, None)
        allocation.host_address, allocation.managed = address, managed
        allocation.owner = _Mapping(address, length)
        return allocation

    def register(self, host_address: int, size_bytes: int) -> Allocation:
        """Give the device access to memory of the host, at an address of its own."""
        allocation = self._place(bytes_at(host_address, size_bytes), self._free_window(), None)
        allocation.host_address = host_address
        return allocation

    def _unwritten(self, size_bytes: int) -> npt.NDArray[np.uint8] | None:
        return np.full(size_bytes, NEVER_WRITTEN, np.uint8) if self.instruments.sanitizer else None

    def _place(
        self, data: npt.NDArray[np.uint8], window: int, written: npt.NDArray[np.uint8] | None, name: str | None = None
    ) -> Allocation:
        self._count += 1
        if name is None:
            name = f"allocation-{self._count}"
        allocation = Allocation(name, at.buffer_address(window), data, written)
        self._allocations.extend([None] * (window + 1 - len(self._allocations)))
        self._allocations[window] = allocation
        return allocation

    def _free_window(self, first: int = 0) -> int:
        window = first
        while (window < len(self._allocations) and self._allocations[window] is not None) or _is_reserved(window):
            window += 1
        return window

    def free(self, allocation: Allocation) -> None:
        """Free an allocation. Later accesses to it are faults until its address is allocated again."""
        if allocation.host_address is None:
            self.used_bytes -= allocation.size_bytes
        self._allocations[at.buffer_index(allocation.address)] = None

    def find(self, address: int) -> Allocation | None:
        """The allocation that contains this device address, or whose host memory does; None if there is none."""
        window = at.buffer_index(address)
        if 0 <= window < len(self._allocations):
            found = self._allocations[window]
            if found is not None and 0 <= address - found.address <= found.size_bytes:
                return found
        return None

    def find_host(self, address: int) -> Allocation | None:
        """The shared allocation that contains this address of the host; None if there is none."""
        for found in self.allocations:
            if found.host_address is not None and 0 <= address - found.host_address < found.size_bytes:
                return found
        return None

    @property
    def allocations(self) -> list[Allocation]:
        """All live allocations, by address."""
        return [allocation for allocation in self._allocations if allocation is not None]

    # Modules ----------------------------------------------------------------------------------------------------------

    def load(self, ptx: str) -> Module:
        """Load a module from PTX. Raises `CompileError` if the text is not valid."""
        from harness.ptx.parsing.declarations import entry_parameters
        from harness.ptx.parsing.parser import parse
        from harness.ptx.statements import has_line_table, with_line_table

        if not has_line_table(ptx):
            ptx = with_line_table(ptx, "module.ptx", 1)
        variables = tuple(v for v in parse(ptx).variables.values() if v.space in ("global", "const"))
        return Module(ptx, dict(entry_parameters(ptx)), variables)

    def variable(self, module: Module, name: str) -> Allocation | None:
        """Give the host access to a variable of a module; None if there is none with this name."""
        alias = module.aliases.get(name)
        if alias is None:
            declared = next((v for v in module.variables if v.name == name), None)
            if declared is None:
                return None
            (data,) = module.memory.of([_module_variable(module, declared)])
            alias = self._place(data, self._free_window(), None, f"variable-{name}")
            alias.host_address = None
            self.used_bytes += alias.size_bytes
            module.aliases[name] = alias
        return alias

    def unload(self, module: Module) -> None:
        """Free a module's variables."""
        for alias in module.aliases.values():
            self.free(alias)
        module.aliases.clear()

    # Launches ---------------------------------------------------------------------------------------------------------

    def launch(
        self,
        module: Module,
        entry: str,
        geometry: Geometry,
        parameters: Sequence[bytes],
        resident: Callable[[], int] | None = None,
    ) -> LaunchCounts:
        """Run a kernel. `resident()` is the number of clusters that the GPU holds at a time; None for all.

        Raises `KernelFault`, `PlanError`, `CompileError` and `UnsupportedInstruction`.
        """
        kernel = self._kernel(module, entry)
        buffers = [
            DeviceBuffer("freed", _NO_BYTES, None if not self.instruments.sanitizer else _NO_BYTES)
            if allocation is None
            else DeviceBuffer(allocation.name, allocation.data, allocation.written)
            for allocation in self._allocations
        ]
        options = LaunchOptions(MOST_STEPS, usable_cores(), seed=0)
        counts = launch(
            kernel,
            readable_name(entry),
            geometry,
            parameters,
            buffers,
            options,
            module=module.memory,
            resident=resident,
        )
        module.seconds[entry] = module.seconds.get(entry, 0.0) + counts.seconds
        return counts

    def facts(self, module: Module, entry: str) -> KernelFacts:
        """What is known about a kernel after its compilation. Raises `CompileError` and `UnsupportedInstruction`."""
        return self._kernel(module, entry).facts

    def _kernel(self, module: Module, entry: str) -> NativeKernel:
        tier = Tier.BASELINE if module.seconds.get(entry, 0.0) < BASELINE_SECONDS else Tier.OPTIMIZED
        return native_kernel(module.ptx, entry, instruments=self.instruments, tier=tier)


class _Mapping:
    """Pages at a fixed address, which are unmapped with the object."""

    def __init__(self, address: int, length: int) -> None:
        self._place = (ctypes.c_void_p(address), ctypes.c_size_t(length))
        self._unmap = ctypes.CDLL(None).munmap

    def __del__(self) -> None:
        self._unmap(*self._place)


def _map_at(address: int, length: int) -> bool:
    """Map zeroed pages at an address. Returns whether nothing was there."""
    fixed_no_replace = 0x100000
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed_no_replace
    found = libc.mmap(
        ctypes.c_void_p(address), ctypes.c_size_t(length), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0)
    )
    if found not in (address, ctypes.c_void_p(-1).value):  # a kernel before Linux 4.17 takes it as a hint
        libc.munmap(ctypes.c_void_p(found), ctypes.c_size_t(length))
    return bool(found == address)


def bytes_at(address: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory of the host as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))


def _module_variable(module: Module, variable: Variable) -> ModuleVariable:
    from harness.emulator.codegen.storage import linked_bytes

    places = {each.name: (each.space, at.variable_address(number)) for number, each in enumerate(module.variables)}
    initial = linked_bytes(variable, places)
    return ModuleVariable(variable.name, variable.size_bytes, initial, counted=True, constant=variable.space == "const")


def _is_reserved(index: int) -> bool:
    window = at.FIRST_BUFFER_WINDOW + index
    return window in _TEXT_WINDOWS or window in _STACK_WINDOWS
