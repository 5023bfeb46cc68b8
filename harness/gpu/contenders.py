"""From variants to contenders on the GPU of this process: plan, compile, bind, and add the libraries' own attention."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from harness.execution.planning import claimed_traffic, make_plan
from harness.execution.spot_check import choose_spots
from harness.gpu.bench import BenchResult, Entry, Step, bench
from harness.gpu.ceilings import measure_ceilings
from harness.gpu.clocks import ClockReader
from harness.gpu.context import GpuContext
from harness.gpu.effort import Effort
from harness.gpu.floor import least_ms
from harness.gpu.stage import GpuStage
from harness.gpu.stopwatch import Stopwatch
from harness.gpu.torch_attention import BACK_ENDS, TorchAttention, torch_version
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.inputs import draw_inputs
from harness.operations.attention.problem import Problem
from harness.support.errors import SandboxError, UnsupportedProblem
from harness.support.gpus import gpu_like

INPUT_SETS = 2
"""Sets of inputs that runs rotate through, drawn with seeds one apart."""


def steps_of(variants: int, libraries: bool) -> int:
    """How many steps `bench_on_gpu` takes, for a progress bar."""
    contenders = variants + (len(BACK_ENDS) if libraries else 0)
    return 3 + variants + 3 * contenders


def bench_on_gpu(
    variants: Sequence[Variant],
    problem: Problem,
    *,
    regime: str,
    seed: int,
    effort: Effort,
    libraries: bool,
    step: Step,
) -> BenchResult:
    """Measure `variants` and, with `libraries`, PyTorch's attention, in turns. Raises `SandboxError` without a GPU."""
    context = GpuContext()
    step("inputs and the oracle")
    input_sets = [draw_inputs(problem, regime, seed + number) for number in range(INPUT_SETS)]
    spots = [choose_spots(problem, inputs) for inputs in input_sets]
    clocks = ClockReader(context.cupy.cuda.Device().pci_bus_id)

    def watch(measurement: Callable[[], float]) -> tuple[float, float | None, str | None]:
        with clocks.reading() as read:
            result = measurement()
        return result, read.median_mhz, ", ".join(sorted(read.held_down_by)) or None

    torch = torch_version() if libraries else None
    with context.memory():
        stopwatch = Stopwatch(context)
        step("the GPU's own ceilings")
        ceilings = measure_ceilings(context, stopwatch, problem.dtype)
        planned = [(entry, plan) for variant in variants for entry, plan in [_plan(variant, problem)]]
        stage = GpuStage(context, problem, input_sets, [plan for _, plan in planned if plan is not None])
        for entry, plan in planned:
            if plan is not None:
                step(f"{entry.name}: compiling")
                _bind(entry, plan, stage)
        entries = [entry for entry, _ in planned]
        if torch is not None:
            entries += [_library(name, stage) for name in BACK_ENDS]
        floor_ms = least_ms(problem, gpu_like(context.device.name))
        rows = bench(entries, spots, stopwatch, effort, floor_ms, watch, step)
        del stage, stopwatch, entries, planned
    return BenchResult(
        problem=problem,
        regime=regime,
        seed=seed,
        device=context.device,
        driver=clocks.driver,
        torch=torch,
        ceilings=ceilings,
        floor_ms=floor_ms,
        effort=effort,
        rows=rows,
    )


def _plan(variant: Variant, problem: Problem) -> tuple[Entry, Plan | None]:
    entry = Entry(variant.name, "variant", None, numerics=variant.numerics)
    with _told(entry):
        started = time.perf_counter()
        plan = make_plan(variant, problem)
        entry.plan_ms = 1000 * (time.perf_counter() - started)
        claim = claimed_traffic(variant, problem)
        entry.sector_bytes = None if claim is None else claim.total_bytes
        return entry, plan
    return entry, None


def _bind(entry: Entry, plan: Plan, stage: GpuStage) -> None:
    with _told(entry):
        started = time.perf_counter()
        entry.contender = stage.bind(plan)
        entry.compile_ms = 1000 * (time.perf_counter() - started)


def _library(name: str, stage: GpuStage) -> Entry:
    entry = Entry(name, "library", None)
    with _told(entry):
        contender = TorchAttention(name, stage)
        contender.require_support()
        entry.contender = contender
    return entry


@contextlib.contextmanager
def _told(entry: Entry) -> Iterator[None]:
    """What goes wrong is told in the entry; the others go on."""
    try:
        yield
    except UnsupportedProblem as refusal:
        entry.verdict, entry.reason = "unsupported", refusal.reason
    except SandboxError as error:
        entry.verdict, entry.reason = "error", str(error)
