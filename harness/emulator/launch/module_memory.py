"""The variables of loaded modules (`__device__`, `__constant__`): what one launch leaves there, the next one finds."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.emulator.codegen.kernel_facts import ModuleVariable
from harness.emulator.launch.aligned_memory import CACHE_LINE_BYTES, SLACK_BYTES, aligned_zeros
from harness.model.plan import Plan


class ModuleMemory:
    """The variables of one module, as all its kernels share them."""

    def __init__(self) -> None:
        self._bytes: dict[str, npt.NDArray[np.uint8]] = {}
        self._found: dict[str, bytes] = {}

    def of(self, variables: Sequence[ModuleVariable]) -> list[npt.NDArray[np.uint8]]:
        """The bytes of each: as the launch before has left them or, where there was none, the initial value."""
        fresh = [variable for variable in variables if variable.name not in self._bytes]
        # One piece of memory for all: Numba's modules have dozens of variables of a few bytes.
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
        """What the variables hold now is what the run finds."""
        self._found = {name: own.tobytes() for name, own in self._bytes.items()}

    def altered(self) -> set[str]:
        """Names of the variables that hold something else than the run has found."""
        return {name for name, own in self._bytes.items() if own.tobytes() != self._found[name]}


class LoadedModules:
    """The modules of one plan. Kernels of one text and with the same options share theirs, as CuPy has it on a GPU."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleMemory] = {}

    def of(self, module: str) -> ModuleMemory:
        """The memory of a `CompiledKernel.module`; it is loaded where it was not yet."""
        return self._modules.setdefault(module, ModuleMemory())

    def begin_run(self) -> None:
        """See `ModuleMemory.begin_run`."""
        for module in self._modules.values():
            module.begin_run()

    def altered(self) -> tuple[str, ...]:
        """Names of the variables that hold something else than the run has found."""
        return tuple(sorted({name for module in self._modules.values() for name in module.altered()}))


class ModulesOfPlans:
    """The modules of each plan for as long as somebody holds the plan.

    Of the very object: a plan that is made again, equal or not, loads its modules anew. So what a variant computes does
    not depend on what was run before, as in a process of its own; a plan that is run twice shows what it leaves behind.
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
