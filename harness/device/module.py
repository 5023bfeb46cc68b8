"""A module on a device: kernels by name, and the variables that they share."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.compilers import CompiledKernel
from harness.device.array import DeviceArray
from harness.device.kernel import Kernel
from harness.emulator.codegen.kernel_facts import ModuleVariable
from harness.emulator.launch.memory.module_memory import ModuleMemory
from harness.ptx.acceptance import require_loadable
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from harness.device.device import Device


class Module:
    """A loaded module, made by `Device.module`. `module["name"]` is a kernel; templates go by their C++ name, too."""

    def __init__(self, device: Device, text: str, kernels: Mapping[str, CompiledKernel]) -> None:
        """`text` is the PTX of all kernels. Raises `CompileError` if no driver loads it."""
        require_loadable(text)
        self.device = device
        self._text = text
        self._memory = ModuleMemory()
        self._kernels = {name: Kernel(device, c.toolchain, None, c, self._memory) for name, c in kernels.items()}
        self._arrays: dict[str, DeviceArray] = {}

    def __getitem__(self, name: str) -> Kernel:
        """The kernel of that name. Raises `UsageError` if there is none."""
        if name not in self._kernels:
            raise UsageError(f"the module has no kernel {name}; it has {', '.join(self._kernels)}")
        return self._kernels[name]

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of all kernels."""
        return tuple(self._kernels)

    @functools.cached_property
    def variables(self) -> Mapping[str, ModuleVariable]:
        """The `__device__` and `__constant__` variables by name. Raises `CompileError` if the PTX is not valid."""
        from harness.emulator.codegen.storage import HEAP, declared_variables
        from harness.ptx.parsing.parser import parse

        return {v.name: v for v in declared_variables(parse(self._text)) if v.name != HEAP}

    def variable(self, name: str, dtype: npt.DTypeLike = np.uint8) -> DeviceArray:
        """A `__device__` or `__constant__` variable as an array of one dimension, in place.

        It has elements of `dtype`; by default its bytes. Raises `UsageError` if there is no such variable, or if its
        size is not a multiple of the element's.
        """
        if name not in self._arrays:
            if name not in self.variables:
                raise UsageError(f"the module has no variable {name}; it has {', '.join(self.variables) or 'none'}")
            (data,) = self._memory.of([self.variables[name]])
            self._arrays[name] = DeviceArray(self.device, self.device.memory.alias(name, data), data, 0)
        return self._arrays[name].view(dtype)

    def __repr__(self) -> str:
        return f"<Module: {', '.join(self._kernels)}>"
