"""A module on a device: kernels by name, and the variables that they share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.compilers import CompiledKernel
from harness.device.array import DeviceArray
from harness.device.kernel import Kernel
from harness.emulator.launch.module_memory import ModuleMemory
from harness.emulator.native.kernel_cache import native_kernel
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from harness.device.device import Device


class Module:
    """A loaded module, made by `Device.module`. `module["name"]` is a kernel; templates go by their C++ name, too."""

    def __init__(self, device: Device, kernels: Mapping[str, CompiledKernel]) -> None:
        self.device = device
        self._memory = ModuleMemory()
        self._compiled = kernels
        self._kernels = {name: Kernel(device, c.toolchain, None, c, self._memory) for name, c in kernels.items()}
        self._variables: dict[str, DeviceArray] = {}

    def __getitem__(self, name: str) -> Kernel:
        """The kernel of that name. Raises `UsageError` if there is none."""
        if name not in self._kernels:
            raise UsageError(f"the module has no kernel {name}; it has {', '.join(self._kernels)}")
        return self._kernels[name]

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of all kernels."""
        return tuple(self._kernels)

    def variable(self, name: str, dtype: npt.DTypeLike = np.uint8) -> DeviceArray:
        """A `__device__` or `__constant__` variable as an array of one dimension, in place.

        It has elements of `dtype`; by default its bytes. Raises `UsageError` if there is no such variable, or if its
        size is not a multiple of the element's.
        """
        if name not in self._variables:
            first = next(iter(self._compiled.values()))
            variables = native_kernel(
                first.ptx, first.entry, instruments=self.device.instruments, tier=self.device.tier
            )
            found = {
                each.name: data
                for each, data in zip(variables.facts.variables, self._memory.of(variables.facts.variables))
            }
            if name not in found:
                raise UsageError(f"the module has no variable {name}; it has {', '.join(found) or 'none'}")
            allocation = self.device.memory.alias(name, found[name])
            self._variables[name] = DeviceArray(self.device, allocation, found[name], 0)
        return self._variables[name].view(dtype)

    def __repr__(self) -> str:
        return f"<Module: {', '.join(self._kernels)}>"
