"""The emulator as a sanitizer: runs a plan in several schedules and reports errors, even if the answer is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import Instruments
from harness.execution.protocol import Execution
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.model.finding import Finding, findings_by_cause
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import KernelFault

SHUFFLED_RUNS = 2
"""Number of shuffled runs besides the one in order. Any run finds races; these find effects that depend on the
schedule."""
Inputs = Mapping[str, np.ndarray]


class EmulatorSanitizer:
    """Runs the plan on the emulator with the sanitizer: once in order, then in shuffled schedules.

    The seed of `settings` determines the schedules. The same seed gives the same findings on any number of cores.
    """

    def __init__(
        self,
        settings: RunSettings = DEFAULT_SETTINGS,
        progress: Callable[[float], None] | None = None,
        shuffled_runs: int = SHUFFLED_RUNS,
    ) -> None:
        instruments = Instruments(sanitizer=True)
        self.name = f"the emulator's sanitizer, {1 + shuffled_runs} schedules"
        in_order = replace(settings, seed=0, caches=None)
        self.executor = EmulatorExecutor(in_order, progress=progress, instruments=instruments)
        """Runs in order. The other executors reuse its compiled kernels."""
        self._shuffled = [
            EmulatorExecutor(
                replace(in_order, seed=settings.seed + run), progress=progress, instruments=instruments, shuffle=True
            )
            for run in range(1, shuffled_runs + 1)
        ]

    def check(self, variant: Variant, problem: BaseProblem, plan: Plan, inputs: Inputs) -> tuple[Finding, ...]:
        """Return the findings of all schedules, without duplicates, those of one cause together, a race first.

        A fault ends a schedule and is a finding, too.
        """
        found: dict[tuple[object, ...], Finding] = {}
        first: Execution | None = None
        for executor in (self.executor, *self._shuffled):
            findings, execution = _run(executor, problem, plan, inputs)
            if first is None:
                first = execution
            elif execution is not None and variant.deterministic:
                findings += _differences(first, execution)
            for finding in findings:
                found.setdefault(_key(finding), finding)
            if execution is None:
                break
        return tuple(itertools.chain.from_iterable(findings_by_cause(found.values())))


def _run(
    executor: EmulatorExecutor, problem: BaseProblem, plan: Plan, inputs: Inputs
) -> tuple[tuple[Finding, ...], Execution | None]:
    """The findings and the result of one run; the result is None if it faulted."""
    try:
        execution = executor.run(problem, plan, inputs)
    except KernelFault as fault:
        return (*fault.findings, Finding(kind=fault.kind, message=str(fault))), None
    assert execution.findings is not None
    return execution.findings, execution


def _differences(first: Execution, other: Execution) -> tuple[Finding, ...]:
    """A finding for each output whose bits differ from those of the first run."""
    found = []
    for name, array in first.outputs.items():
        bits = (
            array.view(np.uint8).reshape(array.size, -1),
            other.outputs[name].view(np.uint8).reshape(array.size, -1),
        )
        differs = (bits[0] != bits[1]).any(axis=1)
        if differs.any():
            place = int(np.argmax(differs))
            index = ", ".join(str(i) for i in np.unravel_index(place, array.shape))
            values = [a.reshape(-1)[place] for a in (array, other.outputs[name])]
            message = (
                f"{name}[{index}] is {values[0]} in one order of blocks and warps and {values[1]} in another; "
                f"{int(differs.sum()):,} of {array.size:,} elements differ"
            )
            found.append(Finding(kind="not deterministic", message=message, target=f"buffer {name}"))
    return tuple(found)


def _key(finding: Finding) -> tuple[object, ...]:
    places = [None if p is None else (p.file, p.line) for p in (finding.place, finding.other)]
    return finding.kind, finding.kernel, finding.target, *places
