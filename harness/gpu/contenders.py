"""Turns variants into contenders on this process's GPU (plan, compile, bind) and adds those of libraries."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.spot_check import choose_spots
from harness.execution.judging.verdict import ERROR, FAIL
from harness.execution.run_settings import RunSettings
from harness.execution.timings import BenchResult, Ceilings
from harness.gpu.bench import Contender, Entry, Step, bench
from harness.gpu.context import GpuContext
from harness.gpu.plan_devices import PlanDevices
from harness.gpu.stage import GpuStage
from harness.gpu.stopwatch import ClockReader, Stopwatch
from harness.model.contenders.library_versions import library_versions
from harness.model.operation import draw_input_parts, operation_of
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import SandboxError, UnsupportedProblem
from harness.support.gpu_data_sheets import Gpu, gpu_like

INPUT_SETS = 2
"""Number of input sets that runs rotate through, drawn with consecutive seeds."""


def steps_of(variants: int, problem: BaseProblem, libraries: bool) -> int:
    """Number of steps that `bench_on_gpu` takes, for a progress bar."""
    contenders = variants + (len(operation_of(problem).libraries) if libraries else 0)
    return 3 + variants + 3 * contenders


def torch_version() -> str | None:
    """Version of PyTorch; None if it is absent or finds no GPU."""
    try:
        import torch

        return str(torch.__version__) if torch.cuda.is_available() else None
    except Exception:
        return None


@dataclass(frozen=True)
class Prepared:
    """What is worked out before a benchmark, which may be in another process."""

    spots: tuple[tuple[Question, ...], ...]
    """For each set of inputs the places to check, with the inputs themselves."""
    ceilings: Ceilings | None = None
    """The GPU's measured peak rates; None to measure them."""

    @classmethod
    def of(cls, problem: BaseProblem, settings: RunSettings, whole_flops: float | None = None) -> Prepared:
        """Draw inputs and choose places to check; `whole_flops` is that of `choose_spots`, for each set of inputs."""
        seeds = range(settings.seed, settings.seed + INPUT_SETS)
        input_sets = [draw_input_parts(problem, settings.regime, seed) for seed in seeds]
        return cls(tuple(choose_spots(problem, inputs, whole_flops) for inputs in input_sets))


def bench_on_gpu(
    variants: Sequence[Variant],
    problem: BaseProblem,
    settings: RunSettings,
    *,
    libraries: bool,
    step: Step,
    only_cold: Collection[str] = (),
    left_out: Collection[str] = (),
    prepared: Prepared | None = None,
) -> BenchResult:
    """Measure `variants`, and with `libraries` third-party kernels, in turns. Raises `SandboxError` without a GPU.

    Contenders named in `only_cold` are not timed back to back, and third-party kernels in `left_out` not at all. What
    is not `prepared` is worked out first.
    """
    context = GpuContext()
    devices = PlanDevices(context, problem.devices)
    step("inputs and the oracle")
    prepared = prepared or Prepared.of(problem, settings)
    clocks = ClockReader(context.cupy.cuda.Device().pci_bus_id)

    def watch(measurement: Callable[[], float]) -> tuple[float, float | None, str | None]:
        with clocks.reading() as read:
            result = measurement()
        return result, read.median_mhz, ", ".join(sorted(read.held_down_by)) or None

    torch = torch_version() if libraries else None
    with devices.memory():
        stopwatch = Stopwatch(context, devices.contexts[1:])
        step("the GPU's own ceilings")
        ceilings = prepared.ceilings or measure_ceilings(context, stopwatch, problem.outputs[0].dtype)
        entries, stage = _entries(devices, variants, problem, prepared, step, torch is not None, left_out)
        gpu = gpu_like(context.device.name)
        floor_ms = least_ms(problem, gpu) / len(devices.contexts)
        for entry in entries:
            entry.sustained = entry.name not in only_cold
            if entry.numerics.factors != "problem":
                entry.floor_ms = least_ms(problem, gpu, entry.numerics.factors) / len(devices.contexts)
        rows = bench(entries, prepared.spots, stopwatch, settings.effort, floor_ms, watch, step)
        del stage, stopwatch, entries
    return BenchResult(
        problem=problem,
        regime=settings.regime,
        seed=settings.seed,
        device=context.device,
        driver=clocks.driver,
        torch=torch,
        libraries={} if torch is None else library_versions(),
        ceilings=ceilings,
        floor_ms=floor_ms,
        effort=settings.effort,
        rows=rows,
    )


def prepare_on_gpu(
    variants: Sequence[Variant],
    problem: BaseProblem,
    settings: RunSettings,
    *,
    left_out: Collection[str] = (),
    whole_flops: float | None = None,
    prepared: Prepared | None = None,
) -> Prepared:
    """Prepare `bench_on_gpu` with libraries: also compile all kernels, which compilers keep on disk, and time nothing.

    Several processes can do this at the same time for different problems. Returns what another process can use. What is
    `prepared` already is kept.
    """
    devices = PlanDevices(GpuContext(), problem.devices)
    prepared = prepared or Prepared.of(problem, settings, whole_flops)
    with devices.memory():
        has_libraries = torch_version() is not None
        entries, stage = _entries(devices, variants, problem, prepared, lambda _: None, has_libraries, left_out)
        devices.synchronize()
        numerics = {entry.numerics for entry in entries if entry.contender is not None}
        del stage, entries
    return Prepared(tuple(tuple(each.settled(numerics) for each in questions) for questions in prepared.spots))


def _entries(
    devices: PlanDevices,
    variants: Sequence[Variant],
    problem: BaseProblem,
    prepared: Prepared,
    step: Step,
    has_libraries: bool,
    left_out: Collection[str],
) -> tuple[list[Entry], GpuStage]:
    """Entries of variants and libraries, compiled and bound to inputs on the GPU."""
    input_sets = [questions[0].inputs for questions in prepared.spots]
    planned = [(entry, plan) for variant in variants for entry, plan in [_plan(variant, problem)]]
    stage = GpuStage(devices.first, problem, input_sets, [plan for _, plan in planned if plan is not None], devices)
    for entry, plan in planned:
        if plan is not None:
            step(f"{entry.name}: compiling")
            _bind(entry, plan, stage)
    entries = [entry for entry, _ in planned]
    if has_libraries:
        rows = operation_of(problem).libraries.items()
        entries += [_library(name, on, stage) for name, on in rows if name not in left_out]
    return entries, stage


def least_ms(problem: BaseProblem, gpu: Gpu | None, factors: str = "problem") -> float:
    """The larger of the time to read every input once and the time to compute all FLOP, in milliseconds.

    It is a lower bound: a shorter measured time is a measurement error. Rates are the peaks of the GPU's data sheet.
    Writes are left out, since they may still lie in L2 when the clock stops. The FLOP rate is that of the fastest
    16-bit tensor core dtype for any problem, or of `factors` (as in `Numerics.factors`) if that is faster. 0 if the
    GPU's peaks are not known.
    """
    if gpu is None:
        return 0.0
    fastest = max([gpu.float32_flops, *(gpu.tensor_flops.get(x, 0.0) for x in ("float16", "bfloat16", factors))])
    return 1000 * max(problem.compulsory_read_bytes / gpu.memory_bytes_per_s, problem.flops / fastest)


def _plan(variant: Variant, problem: BaseProblem) -> tuple[Entry, Plan | None]:
    started = time.perf_counter()
    done = attempt(variant, problem)
    entry = Entry(variant.name, "variant", None, numerics=variant.numerics)
    entry.plan_ms = 1000 * (time.perf_counter() - started)
    if done.refusal is not None or done.error is not None or done.claim_failure is not None:
        entry.verdict, entry.reason = done.verdict if done.verdict != FAIL else ERROR, done.reason
        return entry, None
    entry.sector_bytes = None if done.claim is None else done.claim.total_bytes
    return entry, done.plan


def _bind(entry: Entry, plan: Plan, stage: GpuStage) -> None:
    with _failures_recorded(entry):
        started = time.perf_counter()
        entry.contender = stage.bind(plan)
        entry.compile_ms = 1000 * (time.perf_counter() - started)


def _library(name: str, contender_on: Callable[[GpuStage], Contender], stage: GpuStage) -> Entry:
    entry = Entry(name, "library", None)
    with _failures_recorded(entry):
        entry.contender = contender_on(stage)
    return entry


@contextlib.contextmanager
def _failures_recorded(entry: Entry) -> Iterator[None]:
    """A context manager that records an exception as the entry's verdict, so that the others continue."""
    try:
        yield
    except UnsupportedProblem as refusal:
        entry.verdict, entry.reason = "unsupported", refusal.reason
    except SandboxError as error:
        entry.verdict, entry.reason = "error", str(error)


COPY_BYTES = 1 << 30
MATRIX_EXTENT = 8192
SAMPLES = 9


def measure_ceilings(context: GpuContext, stopwatch: Stopwatch, dtype: str) -> Ceilings:
    """Measure both rates, which takes about a second and 2 GiB of memory."""
    cupy = context.cupy
    dtype = "float32" if dtype == "float32" else "float16"
    source, target = cupy.empty(COPY_BYTES, dtype="uint8"), cupy.empty(COPY_BYTES, dtype="uint8")

    def copy() -> None:
        target.data.copy_from_device_async(source.data, COPY_BYTES, context.stream)

    copy_ms = _median_ms(stopwatch, copy)
    random = cupy.random.default_rng(0)
    A, B = (random.standard_normal((MATRIX_EXTENT, MATRIX_EXTENT), dtype="float32").astype(dtype) for _ in "AB")
    C = cupy.empty_like(A)
    matrix_ms = _median_ms(stopwatch, lambda: cupy.matmul(A, B, out=C))
    return Ceilings(2e3 * COPY_BYTES / copy_ms, 2e3 * MATRIX_EXTENT**3 / matrix_ms, dtype)


def _median_ms(stopwatch: Stopwatch, enqueue: Any) -> float:
    stopwatch.cold_ms(enqueue)
    return statistics.median(stopwatch.cold_ms(enqueue) for _ in range(SAMPLES))
