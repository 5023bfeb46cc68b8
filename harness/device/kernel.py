"""A kernel on a device, which launches as in CUDA: `kernel[grid, block](*args)`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.compilers import CompiledKernel, compile_kernel
from harness.compilers.ptxas import Resources, resources
from harness.compilers.toolchain import Toolchain
from harness.emulator.launch.memory.module_memory import ModuleMemory
from harness.model.plan import kernel_name
from harness.ptx.parameters import offsets_of
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from harness.device.device import Device
    from harness.device.result import LaunchResult


@dataclass(frozen=True)
class KernelParameter:
    """The place of a parameter in a kernel's parameter block."""

    name: str
    """Name in the PTX."""
    offset: int
    """Offset in bytes."""
    size_bytes: int
    type: str
    """PTX type without the dot, such as `u64`; `b8` for structs."""


class Kernel:
    """A kernel of a device, made by `Device.kernel` or found in a `Module`. Raises what `Device.launch` raises.

    `kernel[grid, block](*args)` launches it; the further items are dynamic shared memory per block in bytes and the
    blocks per cluster: `kernel[grid, block, shared_bytes, cluster](*args)`.
    """

    def __init__(
        self,
        device: Device,
        toolchain: Toolchain,
        source: Any,
        compiled: CompiledKernel | None,
        memory: ModuleMemory | None,
    ) -> None:
        """`source` is the kernel object if it is compiled for the arguments of each launch, `compiled` otherwise."""
        self.device = device
        self.toolchain = toolchain
        self.name = compiled.name if compiled is not None else kernel_name(source)
        self._source, self._compiled, self._memory = source, compiled, memory

    def compiled_for(self, args: tuple[Any, ...] = ()) -> CompiledKernel:
        """The kernel compiled for arguments whose arrays are `DevicePointer`s. Raises `CompileError`."""
        if self._compiled is not None:
            return self._compiled
        return compile_kernel(self._source, args, self.device.arch)

    def memory_of(self, compiled: CompiledKernel) -> ModuleMemory:
        """The variables of the kernel's module."""
        return self._memory if self._memory is not None else self.device.modules.of(compiled.module)

    @property
    def parameters(self) -> tuple[KernelParameter, ...]:
        """Name, offset, size and type of each parameter. Raises `UsageError` if they depend on the arguments."""
        found = self._typed("parameters").parameters
        return tuple(
            KernelParameter(each.name, offset, each.size_bytes, each.type)
            for each, offset in zip(found, offsets_of(found))
        )

    @property
    def resources(self) -> Resources | None:
        """Registers, spills and shared memory by `ptxas`; None without it. Raises `UsageError` as `parameters`."""
        compiled = self._typed("resources")
        return resources(compiled.ptx, compiled.arch, compiled.entry, compiled.max_registers)

    def _typed(self, what: str) -> CompiledKernel:
        if self._compiled is None and not self.toolchain.types_in_source:
            raise UsageError(f"kernel {self.name} has its {what} only at a launch, whose arguments give it its types")
        return self.compiled_for()

    def argument_names(self, compiled: CompiledKernel) -> tuple[str, ...]:
        """Names that the source gives the arguments; empty if a compiler has replaced them."""
        if hasattr(self._source, "arg_names"):  # of Triton
            return tuple(self._source.arg_names)
        code = getattr(getattr(self._source, "py_func", None), "__code__", None)
        if code is not None:
            return tuple(code.co_varnames[: code.co_argcount])
        names = tuple(each.name for each in compiled.parameters)
        return () if any(re.search(r"_param_\d+$", name) for name in names) else names

    def __getitem__(self, configuration: Any) -> ConfiguredKernel:
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise UsageError(f"kernel {self.name}: write kernel[grid, block, shared_bytes, cluster](*args)")
        return ConfiguredKernel(self, *configuration)

    def __call__(self, *args: Any) -> None:
        """Raise `UsageError`, because a launch needs a grid and a block."""
        raise UsageError(f"kernel {self.name} has no grid; write kernel[grid, block](*args)")

    def __repr__(self) -> str:
        return f"<Kernel {self.name}>"


@dataclass(frozen=True)
class ConfiguredKernel:
    """A kernel with its grid; calling it launches it."""

    kernel: Kernel
    grid: Any
    block: Any
    shared_bytes: int = 0
    cluster: Any = None

    def __call__(self, *args: Any) -> LaunchResult:
        """Launch the kernel (`Device.launch`)."""
        return self.kernel.device.launch(self.kernel, self.grid, self.block, args, self.shared_bytes, self.cluster)
