"""Measures one variant's traffic on one problem by running it on an executor that counts bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harness.compilers.ptxas import resources
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import compiled_launches, make_plan
from harness.execution.protocol import Executor
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.execution.traffic.traffic_account import TrafficAccount, account
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import PlanError
from harness.support.gpu_data_sheets import REGISTER_BYTES


def measure_traffic(
    variant: Variant, problem: BaseProblem, executor: Executor, settings: RunSettings = DEFAULT_SETTINGS
) -> TrafficAccount:
    """Run the variant once, count bytes, and check the answer; the account has the verdict.

    Raises `UnsupportedProblem`, and whatever planning, compiling and running raise; `UsageError` for a bad regime.
    """
    done = attempt(variant, problem, executor, question=Question.draw(problem, settings.regime, settings.seed))
    done.raise_error()
    if done.claim is None and done.claim_failure is not None:
        raise PlanError(done.claim_failure)
    assert done.execution is not None and done.plan is not None
    names = done.plan.all_buffers(problem)
    held = done.plan.device_bytes(problem)
    counted = account(variant.name, problem, settings, executor.device, done.execution, done.claim, names, held)
    ratio = None if done.accuracy is None else done.accuracy.main.error_over_budget
    return replace(counted, verdict=done.verdict, reason=done.reason, error_over_budget=ratio)


@dataclass(frozen=True)
class CompiledUsage:
    """What ptxas reports of a variant's kernels: the largest number of any launch."""

    on_chip_bytes: int
    """Bytes of registers and shared memory of one thread block."""
    spilled_bytes: int
    """Bytes per thread that are spilled, stored plus loaded."""


def compiled_usage(variant: Variant, problem: BaseProblem, arch: str) -> CompiledUsage | None:
    """The usage of the variant's kernels; None if ptxas is missing."""
    on_chip = spilled = 0
    for launch, compiled in compiled_launches(make_plan(variant, problem, arch), problem, arch):
        used = resources(compiled.ptx, compiled.arch, compiled.entry, compiled.max_registers)
        if used is None:
            return None
        registers = math.prod(launch.block) * used.registers
        on_chip = max(on_chip, registers * REGISTER_BYTES + used.shared_bytes + launch.shared_bytes)
        spilled = max(spilled, used.spill_store_bytes + used.spill_load_bytes)
    return CompiledUsage(on_chip, spilled)
