"""One variant's traffic on one problem: run it where bytes are counted, and add them up."""

from __future__ import annotations

from harness.compilers import DevicePointer, compile_kernel
from harness.compilers.ptxas import resources
from harness.execution.planning import claimed_traffic, make_plan
from harness.execution.protocol import Execution, Executor
from harness.execution.traffic_account import TrafficAccount, account
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.inputs import draw_inputs
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault

REGISTER_BYTES = 4
_ALIGNED = 256
"""An address as a GPU's allocator gives it; ptxas does not look at it."""


def measure_traffic(
    variant: Variant, problem: Problem, executor: Executor, regime: str = "normal", seed: int = 0
) -> TrafficAccount:
    """Run the variant once and count.

    Raises `UnsupportedProblem`, and whatever planning, compiling and running raise; `UsageError` for a bad regime.
    """
    plan = make_plan(variant, problem)
    inputs = draw_inputs(problem, regime, seed)
    execution = run_counted(executor, problem, plan, inputs)
    names = plan.all_buffers(problem)
    claim = claimed_traffic(variant, problem)
    return account(variant.name, problem, regime, seed, executor.device, execution, claim, names)


def run_counted(executor: Executor, problem: Problem, plan: Plan, inputs: object) -> Execution:
    """`Executor.run`, where Ctrl-C is Ctrl-C also inside of a kernel."""
    try:
        return executor.run(problem, plan, inputs)  # type: ignore[arg-type]
    except KernelFault as fault:
        if fault.kind == "interrupted":
            raise KeyboardInterrupt from fault
        raise


def on_chip_bytes(variant: Variant, problem: Problem, arch: str) -> int | None:
    """Registers and shared memory of one thread block, of the launch that has most. None where ptxas is missing."""
    plan = make_plan(variant, problem)
    buffers = plan.all_buffers(problem)
    most = 0
    for launch in plan.launches:
        args = tuple(
            DevicePointer(_ALIGNED, buffers[a].shape, buffers[a].dtype) if isinstance(a, str) else a
            for a in launch.args
        )
        compiled = compile_kernel(launch.kernel, args, arch)
        used = resources(compiled.ptx, compiled.arch, compiled.entry, compiled.max_registers)
        if used is None:
            return None
        threads = 1
        for extent in launch.block:
            threads *= extent
        shared = used.shared_bytes + launch.shared_bytes
        most = max(most, threads * used.registers * REGISTER_BYTES + shared)
    return most
