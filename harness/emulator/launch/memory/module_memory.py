"""Variables of loaded modules (`__device__`, `__constant__`), which persist between launches."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.emulator.codegen.kernel_facts import ModuleVariable
from harness.emulator.launch.memory.aligned_memory import CACHE_LINE_BYTES, SLACK_BYTES, aligned_zeros
from harness.model.plan import Plan


class ModuleMemory:
    """The variables of one module, shared by all of its kernels."""

    def __init__(self) -> None:
        self._bytes: dict[str, npt.NDArray[np.uint8]] = {}
        self._found: dict[str, bytes] = {}

    def of(self, variables: Sequence[ModuleVariable]) -> list[npt.NDArray[np.uint8]]:
        """The bytes of each variable: as the previous launch left them, or else the initial value."""
        fresh = [variable for variable in variables if variable.name not in self._bytes]
        # One array for all variables: Numba's modules have dozens of variables of a few bytes.
        sizes = [-(-(v.size_bytes + SLACK_BYTES) // CACHE_LINE_BYTES) * CACHE_LINE_BYTES for v in fresh]
        starts = [0, *itertools.accumulate(sizes)]
        storage = aligned_zeros(starts[-1])
        for start, variable in zip(starts, fresh):
            own = storage[start : start + variable.size_bytes]
            if variable.initial is not None:
                own[: len(variable.initial)] = np.frombuffer(variable.initial, dtype=np.uint8)
            self._bytes[variable.name] = own
            self._found[variable.name] = own.tobytes()
        return [self._bytes[variable.name] for variable in variables]

    def begin_run(self) -> None:
        """Record the current contents, to which `altered` compares."""
        self._found = {name: own.tobytes() for name, own in self._bytes.items()}

    def altered(self) -> set[str]:
        """Names of the variables whose contents have changed since `begin_run`."""
        return {name for name, own in self._bytes.items() if own.tobytes() != self._found[name]}


class LoadedModules:
    """The modules of one plan. Kernels with the same source and options share a module, as with CuPy on a GPU."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleMemory] = {}

    def of(self, module: str) -> ModuleMemory:
        """The memory of a `CompiledKernel.module`, which is loaded on first use."""
        return self._modules.setdefault(module, ModuleMemory())

    def begin_run(self) -> None:
        """Record the current contents of all modules, to which `altered` compares."""
        for module in self._modules.values():
            module.begin_run()

    def altered(self) -> tuple[str, ...]:
        """Names of the variables of all modules whose contents have changed since `begin_run`."""
        return tuple(sorted({name for module in self._modules.values() for name in module.altered()}))


class ModulesOfPlans:
    """The modules of each plan, for the lifetime of the plan object.

    Modules belong to the object: an equal plan that is made again loads its modules anew. So results do not depend on
    what was run before, as in a separate process; a plan that is run twice finds what its first run left.
    """

    def __init__(self) -> None:
        self._modules: dict[int, LoadedModules] = {}

    def of(self, plan: Plan) -> LoadedModules:
        """The modules of this plan."""
        number = id(plan)
        if number not in self._modules:
            self._modules[number] = LoadedModules()
            weakref.finalize(plan, self._modules.pop, number).atexit = False
        return self._modules[number]
