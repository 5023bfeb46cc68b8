"""The command line: joins what was asked to what does it. The only module that loads variants."""

from __future__ import annotations

import argparse
import functools
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.arguments import build_parser, effort_of, problem_of, problem_with
from harness.discovery import Discovery, discover
from harness.errors import CountersUnavailable, SandboxError, UsageError
from harness.file_replacement import replace_files, require_writable
from harness.problem import Problem

if TYPE_CHECKING:
    from harness.bench import BenchResult
    from harness.effort import Effort
    from harness.executors import Device, Executor, Sanitizer
    from harness.executors.emulator import CacheModel
    from harness.fuzz.worker import Machine
    from harness.gpus import Gpu
    from harness.progress import Progress
    from harness.sweep import Sweep
    from harness.traffic_account import HardwareTraffic
    from harness.variant import TileSizes, Variant

# Executors, compilers and the oracle are imported by the commands that use them: `list` waits for none of them.

PASSED, FAILED, WRONG_CALL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
"""Exit statuses. The last two are a shell's for SIGINT and SIGPIPE."""

NO_GPU = "--device gpu: CuPy finds no GPU on this machine; --device emulator needs none"

DEFAULT_ARCH = "sm_90"
"""What kernels are compiled for where there is no GPU to ask."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. A user's mistake is one line on stderr, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a letter of some plugin's text is no reason to stop.
            stream.reconfigure(errors="backslashreplace")
    try:
        arguments = build_parser().parse_args(argv)
        status = COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
        return status
    except SandboxError as error:
        print(f"harness: {error}", file=sys.stderr)
        return WRONG_CALL if isinstance(error, UsageError) else FAILED
    except MemoryError as error:
        print(f"harness: not enough memory for this problem: {error}", file=sys.stderr)
        return WRONG_CALL
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has left. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _list(arguments: argparse.Namespace) -> int:
    from harness.report import render_listing

    _check_output(arguments.output)
    registry = _discover(arguments).registry
    chosen = registry.select(arguments.variants)
    _publish(arguments, render_listing(chosen, registry, arguments.format))
    return PASSED


def _compare(arguments: argparse.Namespace) -> int:
    from harness.compare import compare, lost_row
    from harness.progress import progress_bar
    from harness.report import render_comparison
    from harness.tuned_tiles import with_tuned_tiles

    problem = problem_of(arguments)
    _check_output(arguments.output)
    found = _discover(arguments)
    chosen = found.registry.select(arguments.variants)
    tile, chosen = _tiled(arguments, chosen, problem)
    # Who asked for certain variants does not miss a broken module; who asked for all does.
    lost = [lost_row(b.name, b.reason, problem) for b in found.broken] if arguments.variants is None else []
    if not chosen and not lost:
        raise UsageError("there are no variants; put one into variants/ or name a file with --plugin")
    with progress_bar(1 + len(chosen)) as progress:
        executor, sanitizer = _sanitizing(arguments, progress)
        if tile is None:
            chosen = with_tuned_tiles(chosen, problem, executor.device)
        comparison = compare(
            chosen,
            problem,
            executor,
            regime=arguments.regime,
            seed=arguments.seed,
            counter=_counter(arguments, problem, executor.device, progress),
            tile=tile,
            sanitizer=sanitizer,
            lost=lost,
            step=progress.step,
        )
    _publish(arguments, render_comparison(comparison, arguments.format))
    return PASSED if comparison.all_passed else FAILED


def _run(arguments: argparse.Namespace) -> int:
    from harness.compare import judge, rank, where_counted
    from harness.outcome import Comparison
    from harness.planning import make_plan
    from harness.progress import progress_bar
    from harness.question import Question
    from harness.report import render_comparison
    from harness.user_arrays import load_arrays

    _check_output(arguments.out, arguments.lse, arguments.output)
    arrays = load_arrays({"Q": arguments.q, "K": arguments.k, "V": arguments.v}, arguments.dtype)
    problem = arrays.problem(arguments.causal, arguments.scale)
    variant = _discover(arguments).registry.get(arguments.variant)
    plan = make_plan(variant, problem)
    if arguments.lse is not None and "lse" not in plan.all_buffers(problem):
        raise UsageError(f"{variant.name} stores no log-sum-exp; leave out --lse")
    with progress_bar(2) as progress:
        executor = _executor(arguments, progress)
        counter = _counter(arguments, problem, executor.device, progress)
        progress.step("the oracle")
        question = Question.pose(problem, arrays.inputs)
        progress.step(variant.name)
        row, execution = judge(variant, question, executor, counter)
    comparison = Comparison(
        problem=problem,
        regime=None,
        seed=None,
        device=executor.device,
        counted_on=where_counted(executor, counter),
        rows=rank([row], executor.device),
    )
    if execution is not None:
        files = {arguments.out: arrays.npy(execution.outputs["O"])}
        if arguments.lse is not None:
            files[arguments.lse] = arrays.npy(execution.outputs["lse"])
        replace_files(files)
    _publish(arguments, render_comparison(comparison, arguments.format))
    return PASSED if comparison.all_passed else FAILED


def _traffic(arguments: argparse.Namespace) -> int:
    if arguments.sweep is not None:
        return _sweep(arguments)
    for option in ("variants", "plot", "roofline"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option} goes with --sweep, such as --sweep q_len=512..4096")
    if arguments.count != "auto":
        raise UsageError("--count goes with --sweep; one variant alone is always counted")
    if arguments.variant is None:
        raise UsageError("traffic needs the name of a variant, or --sweep; 'list' shows all")
    from harness.measure.io_bound import io_bound
    from harness.progress import progress_bar
    from harness.tile_choice import tile_of
    from harness.traffic import measure_traffic, on_chip_bytes
    from harness.traffic_report import TrafficReport, render_traffic
    from harness.variant import tile_text

    problem = problem_of(arguments)
    _check_output(arguments.output)
    _require_gpu(arguments)
    caches = _cache_model(arguments)
    _, (variant,) = _tiled(arguments, [_discover(arguments).registry.get(arguments.variant)], problem)
    with progress_bar(2 if arguments.device == "gpu" else 1) as progress:
        arch = _counted_arch(arguments) if arguments.gpu is None else caches.gpu.multiprocessor.arch
        executor = _emulator(arguments, progress, arch, bank_conflicts=arguments.lines, caches=caches)
        progress.step(variant.name)
        account = measure_traffic(variant, problem, executor, arguments.regime, arguments.seed)
        if arguments.device == "gpu":
            progress.step(f"{variant.name} under ncu")
            account = replace(account, hardware=_hardware(arguments, problem, tile_of(variant, problem)))
    on_chip = on_chip_bytes(variant, problem, executor.device.arch)
    bound = None if on_chip is None else io_bound(problem, on_chip)
    tile = tile_of(variant, problem)
    report = TrafficReport(
        account, bound, arguments.lines, None if tile is None else tile_text(tile), caches.gpu.name, caches.flushed
    )
    _publish(arguments, render_traffic(report, arguments.format))
    return FAILED if account.claim_holds is False else PASSED


def _hardware(arguments: argparse.Namespace, problem: Problem, tile: TileSizes | None) -> HardwareTraffic | None:
    """What the GPU's counters say. Where they cannot be read, a warning, and what was counted has to do."""
    from harness.executors.gpu import GpuExecutor
    from harness.hardware_counters import Run, measure_hardware

    run = Run(arguments.variant, problem, arguments.regime, arguments.seed, tile)
    try:
        return measure_hardware(run, GpuExecutor().device, arguments.plugin)
    except CountersUnavailable as error:
        print(f"harness: warning: no hardware counters: {error}", file=sys.stderr)
        return None


def _sweep(arguments: argparse.Namespace) -> int:
    from harness.drawing import require_drawable
    from harness.progress import progress_bar
    from harness.sweep import parse_sweep, require_sensible
    from harness.sweep_plot import draw_bytes, draw_roofline
    from harness.sweep_report import other_sizes, render_sweep, what_is_fixed
    from harness.sweep_run import run_sweep
    from harness.tile_choice import tile_names

    if arguments.lines:
        raise UsageError("--lines shows one problem; leave out --sweep")
    if arguments.device == "gpu":
        raise UsageError("--device gpu reads the GPU's counters for one problem; leave out --sweep")
    if arguments.l2_bytes is not None or arguments.cache_control is not None:
        raise UsageError("--l2-bytes and --cache-control are for one problem; a sweep stays before the caches")
    if arguments.variant is not None and arguments.variants is not None:
        raise UsageError("VARIANT and --variants both select; leave out one")
    registry = _discover(arguments).registry
    chosen = registry.select(arguments.variants) if arguments.variant is None else [registry.get(arguments.variant)]
    sweep = parse_sweep(arguments.sweep, lambda: tile_names(chosen, problem_of(arguments)))
    if sweep.of_tile:
        problems = [problem_of(arguments)] * len(sweep.values)
    else:
        problems = [problem_with(arguments, sweep.field, value) for value in sweep.values]
    require_sensible(problems)
    sweep = _tiled_sweep(arguments, sweep, chosen, problems)
    roof = _gpu(arguments)
    pictures = [path for path in (arguments.plot, arguments.roofline) if path is not None]
    for path in pictures:
        require_drawable(path)
    _check_output(arguments.output, *pictures)
    with progress_bar(len(problems) * len(chosen)) as progress:
        executor = _emulator(arguments, progress, _counted_arch(arguments))
        points = run_sweep(
            chosen,
            sweep,
            problems,
            executor,
            count=arguments.count,
            regime=arguments.regime,
            seed=arguments.seed,
            step=progress.step,
        )
    fixed = what_is_fixed(sweep, problems)
    if sweep.of_tile and (others := other_sizes(sweep, points)):
        fixed += f"\n{others}"
    drawn = {}
    if arguments.plot is not None:
        drawn[arguments.plot] = draw_bytes(sweep, points, fixed, arguments.plot.suffix)
    if arguments.roofline is not None:
        drawn[arguments.roofline] = draw_roofline(points, sweep, roof, fixed, arguments.roofline.suffix)
    replace_files(drawn)
    _publish(arguments, render_sweep(sweep, points, executor.device, arguments.format))
    return FAILED if any(point.failed or point.claim_holds is False for point in points) else PASSED


def _bench(arguments: argparse.Namespace) -> int:
    from harness.executors.gpu_context import gpu_available
    from harness.progress import progress_bar

    if arguments.sweep is not None:
        return _bench_sweep(arguments)
    if arguments.plot is not None:
        raise UsageError("--plot goes with --sweep, such as --sweep seq_len=256..4096")
    problem = problem_of(arguments)
    effort_of(arguments)
    _check_output(arguments.output)
    _require_gpu_to_bench(gpu_available())
    from harness.bench_gpu import steps_of
    from harness.bench_report import render_bench

    chosen = _discover(arguments).registry.select(arguments.variants)
    with progress_bar(steps_of(len(chosen), not arguments.no_libraries)) as progress:
        result = _benched(arguments, chosen, problem, progress)
    _publish(arguments, render_bench(result, arguments.format))
    return FAILED if result.failed else PASSED


def _bench_sweep(arguments: argparse.Namespace) -> int:
    from harness.bench_gpu import steps_of
    from harness.bench_sweep import BenchPoint, draw_bench_sweep, render_bench_sweep
    from harness.drawing import require_drawable
    from harness.executors.gpu_context import gpu_available
    from harness.progress import progress_bar
    from harness.sweep import parse_sweep, require_sensible
    from harness.sweep_report import what_is_fixed

    sweep = parse_sweep(arguments.sweep)
    problems = [problem_with(arguments, sweep.field, value) for value in sweep.values]
    require_sensible(problems)
    effort_of(arguments)
    if arguments.plot is not None:
        require_drawable(arguments.plot)
        if not sweep.is_numeric:
            raise UsageError(f"--plot needs numbers to sweep over, and {sweep.field} has none")
    _check_output(arguments.output, arguments.plot)
    _require_gpu_to_bench(gpu_available())
    chosen = _discover(arguments).registry.select(arguments.variants)
    points = []
    with progress_bar(len(problems) * steps_of(len(chosen), not arguments.no_libraries)) as progress:
        for value, problem in zip(sweep.values, problems):
            points.append(BenchPoint(value, _benched(arguments, chosen, problem, progress)))
    fixed = what_is_fixed(sweep, problems)
    if arguments.plot is not None:
        replace_files({arguments.plot: draw_bench_sweep(sweep, points, fixed, arguments.plot.suffix)})
    _publish(arguments, render_bench_sweep(sweep, points, fixed, arguments.format))
    return FAILED if any(point.result.failed for point in points) else PASSED


def _require_gpu_to_bench(available: bool) -> None:
    if not available:
        raise UsageError("bench needs a GPU, and CuPy finds none; 'compare' ranks by counted bytes without one")


def _benched(
    arguments: argparse.Namespace, variants: list[Variant], problem: Problem, progress: Progress
) -> BenchResult:
    from harness.bench_gpu import bench_on_gpu
    from harness.executors.gpu_context import GpuContext
    from harness.tuned_tiles import with_tuned_tiles

    tile, chosen = _tiled(arguments, variants, problem)
    return bench_on_gpu(
        chosen if tile is not None else with_tuned_tiles(chosen, problem, GpuContext().device),
        problem,
        regime=arguments.regime,
        seed=arguments.seed,
        effort=effort_of(arguments),
        libraries=not arguments.no_libraries,
        step=progress.step,
    )


def _tune(arguments: argparse.Namespace) -> int:
    from harness.executors.gpu_context import gpu_available
    from harness.tune import best_tile, tile_contenders, tuning_verdict

    problem = problem_of(arguments)
    effort = effort_of(arguments)
    _check_output(arguments.output)
    if arguments.device == "gpu" and not gpu_available():
        raise UsageError("--device gpu: CuPy finds no GPU on this machine; --device emulator needs none")
    variant = _discover(arguments).registry.get(arguments.variant)
    contenders = tile_contenders(variant, problem)
    variants = [contender for _, contender in contenders.values()]
    if arguments.device == "emulator" or not gpu_available():
        text, ranks = _tune_by_bytes(arguments, variants, problem)
        best, kept_for = best_tile(ranks, contenders), None
    else:
        from harness.tuned_tiles import remember

        text, ranks, device = _tune_by_time(arguments, variants, problem, effort)
        best = best_tile(ranks, contenders)
        kept = best is not None and remember(variant, problem, device, contenders[best][0])
        kept_for = device.name if kept else None
    if arguments.format in ("table", "markdown"):
        text += f"\n{tuning_verdict(variant.name, best, next(iter(contenders)), kept_for)}\n"
    _publish(arguments, text)
    return FAILED if best is None else PASSED


def _tune_by_bytes(
    arguments: argparse.Namespace, variants: list[Variant], problem: Problem
) -> tuple[str, dict[str, int | None]]:
    from harness.compare import compare
    from harness.progress import progress_bar
    from harness.report import render_comparison

    with progress_bar(1 + len(variants)) as progress:
        executor = _emulator(arguments, progress)
        comparison = compare(
            variants, problem, executor, regime=arguments.regime, seed=arguments.seed, step=progress.step
        )
    return render_comparison(comparison, arguments.format), {row.variant: row.rank for row in comparison.rows}


def _tune_by_time(
    arguments: argparse.Namespace, variants: list[Variant], problem: Problem, effort: Effort
) -> tuple[str, dict[str, int | None], Device]:
    from harness.bench_gpu import bench_on_gpu, steps_of
    from harness.bench_report import render_bench
    from harness.progress import progress_bar

    with progress_bar(steps_of(len(variants), libraries=False)) as progress:
        result = bench_on_gpu(
            variants,
            problem,
            regime=arguments.regime,
            seed=arguments.seed,
            effort=effort,
            libraries=False,
            step=progress.step,
        )
    ranks = {row.variant: row.rank for row in result.rows}
    return render_bench(result, arguments.format), ranks, result.device


def _fuzz(arguments: argparse.Namespace) -> int:
    from harness.case import Case
    from harness.fuzz.campaign import DEFAULT_EXAMPLES, CampaignSettings, replay, run_campaign
    from harness.fuzz.database import failure_folder
    from harness.fuzz.report import render_campaigns, render_replay
    from harness.progress import progress_bar

    _check_output(arguments.output)
    registry = _discover(arguments).registry
    chosen = registry.select(",".join(arguments.variant) or None)
    if not chosen:
        raise UsageError("there are no variants; put one into variants/ or name a file with --plugin")
    machine = _machine(arguments)

    def load(variant: Variant) -> Callable[[], Variant]:
        return functools.partial(_load_variant, variant.name, tuple(arguments.plugin))

    if arguments.replay is not None:
        if len(chosen) != 1:
            raise UsageError(f"--replay runs one variant, and {len(chosen)} are chosen; name one")
        case = Case.from_json(arguments.replay)
        answer = replay(case, load(chosen[0]), machine)
        _publish(arguments, render_replay(chosen[0].name, case, answer, arguments.format))
        return PASSED if answer.finding is None and answer.refusal is None else FAILED
    seed = int.from_bytes(os.urandom(3), "big") if arguments.seed is None else arguments.seed
    examples = arguments.examples
    if examples is None and arguments.seconds is None:
        examples = DEFAULT_EXAMPLES
    results = []
    with progress_bar(len(chosen)) as progress:
        for variant in chosen:
            progress.step(variant.name)
            how = CampaignSettings(
                examples=examples,
                seconds=arguments.seconds,
                seed=seed,
                checks=_properties(arguments.properties),
                database=failure_folder(variant.name),
            )
            results.append(run_campaign(variant.name, load(variant), machine, how, _speed(progress, variant.name)))
    options = [word for path in arguments.plugin for word in ("--plugin", str(path))]
    options += ["--device", arguments.device] if arguments.device != "auto" else []
    options += ["--sanitize"] if arguments.sanitize else []
    _publish(arguments, render_campaigns(results, _machine_line(machine), arguments.format, options))
    return PASSED if all(result.verdict == "pass" for result in results) else FAILED


def _speed(progress: Progress, name: str) -> Callable[[int, float], None]:
    """Tells a campaign's progress, with its examples per second."""
    began = time.monotonic()

    def told(examples: int, part: float) -> None:
        seconds = max(time.monotonic() - began, 1e-9)
        progress.part(part, f"{name}: {examples:,} examples, {examples / seconds:,.0f} per second")

    return told


def _properties(text: str) -> tuple[str, ...]:
    from harness.measure.properties import PROPERTIES

    if text in ("all", "none"):
        return tuple(PROPERTIES) if text == "all" else ()
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _load_variant(name: str, plugins: tuple[Path, ...]) -> Variant:
    """The variant of that name, in whatever process this is called."""
    return discover(plugins).registry.get(name)


def _show(arguments: argparse.Namespace) -> int:
    if arguments.order:
        return _show_order(arguments)
    from harness.kernel_listing import list_kernels, render_kernels

    if arguments.variants is not None or arguments.format != "table":
        option = "format" if arguments.variants is None else "variants"
        raise UsageError(f"--{option} goes with --order; a kernel's source has no other form")
    problem = problem_of(arguments)
    _check_output(arguments.output)
    registry = _discover(arguments).registry
    _, (variant,) = _tiled(arguments, [registry.get(arguments.variant)], problem)
    listings = list_kernels(variant, problem, _arch())
    origin = registry.origin_of(variant.name)
    headline = f"{variant.name}: {variant.idea or variant.algorithm} ({variant.backend}, {origin})\n\n"
    _publish(arguments, headline + render_kernels(listings, arguments.ptx))
    return PASSED


def _show_order(arguments: argparse.Namespace) -> int:
    from harness.attention_sums import reveal_if_it_runs, reveal_orders
    from harness.order_report import OrderReport, render_order
    from harness.progress import progress_bar

    if arguments.ptx:
        raise UsageError("--ptx and --order show different things; leave out one")
    problem = problem_of(arguments)
    _check_output(arguments.output)
    registry = _discover(arguments).registry
    variant = registry.get(arguments.variant)
    others = [other for other in registry.select(arguments.variants) if other.name != variant.name]
    tile, (variant, *others) = _tiled(arguments, [variant, *others], problem)
    with progress_bar(1 + len(others)) as progress:
        executor = _executor(arguments, progress)
        progress.step(variant.name)
        found = [reveal_orders(variant, problem, executor)]
        for other in others:
            progress.step(other.name)
            found.append(reveal_if_it_runs(other, problem, executor, known=found))
    report = OrderReport(problem, tile, executor.device, found[0], tuple(found[1:]))
    _publish(arguments, render_order(report, arguments.format))
    return PASSED


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "compare": _compare,
    "run": _run,
    "traffic": _traffic,
    "bench": _bench,
    "tune": _tune,
    "fuzz": _fuzz,
    "show": _show,
}


def _discover(arguments: argparse.Namespace) -> Discovery:
    found = discover(arguments.plugin)
    for broken in found.broken:
        print(f"harness: warning: {broken.reason}", file=sys.stderr)
    return found


def _tiled(
    arguments: argparse.Namespace, variants: list[Variant], problem: Problem
) -> tuple[str | None, list[Variant]]:
    """What --tile says, in one spelling, and the variants with that tile only."""
    if arguments.tile is None:
        return None, variants
    from harness.tile_choice import choose_tile, parse_tile
    from harness.variant import tile_text

    wanted = parse_tile(arguments.tile)
    return tile_text(wanted), choose_tile(variants, problem, wanted)


def _tiled_sweep(
    arguments: argparse.Namespace, sweep: Sweep, variants: Sequence[Variant], problems: Sequence[Problem]
) -> Sweep:
    """The sweep with what --tile says. Raises `UsageError` where no variant has such a tile anywhere."""
    from harness.tile_choice import parse_tile, require_tile

    if arguments.tile is not None:
        sweep = replace(sweep, tile=parse_tile(arguments.tile))
        if sweep.of_tile and sweep.field in sweep.tile:
            raise UsageError(f"--sweep {sweep.field} and --tile set the same tile size; leave out one")
    if sweep.tile or sweep.of_tile:
        require_tile(variants, [(p, sweep.tile_at(value)) for p, value in zip(problems, sweep.values)])
    return sweep


def _arch() -> str:
    """What to compile for: the GPU that is there, else the default."""
    from harness.executors.gpu import GpuExecutor

    return GpuExecutor().device.arch if GpuExecutor.available() else DEFAULT_ARCH


def _counted_arch(arguments: argparse.Namespace) -> str:
    return DEFAULT_ARCH if arguments.device == "emulator" else _arch()


def _gpu(arguments: argparse.Namespace) -> Gpu:
    """The GPU that was asked for, else the one that is there, else an H200."""
    from harness.executors.gpu import GpuExecutor
    from harness.gpus import GPUS, gpu, gpu_like

    if arguments.gpu is not None:
        return gpu(arguments.gpu)
    here = None
    if arguments.device != "emulator" and GpuExecutor.available():
        here = gpu_like(GpuExecutor().device.name)
    return here or GPUS["h200"]


def _cache_model(arguments: argparse.Namespace) -> CacheModel:
    from harness.executors.emulator import CacheModel

    if arguments.l2_bytes is not None and arguments.l2_bytes < 1:
        raise UsageError(f"--l2-bytes is {arguments.l2_bytes}; it has to be at least 1")
    # Beside counters of Nsight Compute, which empties the caches before each launch, only the same can be compared.
    control = arguments.cache_control or ("all" if arguments.device == "gpu" else "none")
    return CacheModel(_gpu(arguments), arguments.l2_bytes, flushed=control == "all")


def _executor(arguments: argparse.Namespace, progress: Progress) -> Executor:
    if arguments.device == "emulator":
        return _emulator(arguments, progress)
    from harness.executors.gpu import GpuExecutor

    _require_gpu(arguments)
    return GpuExecutor() if GpuExecutor.available() else _emulator(arguments, progress)


def _require_gpu(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` where --device gpu asks for a GPU that is not there."""
    from harness.executors.gpu import GpuExecutor

    if arguments.device == "gpu" and not GpuExecutor.available():
        raise UsageError(NO_GPU)


def _sanitizing(arguments: argparse.Namespace, progress: Progress) -> tuple[Executor, Sanitizer | None]:
    """What runs the variants, and what looks for findings if it was asked for."""
    executor = _executor(arguments, progress)
    if not arguments.sanitize:
        return executor, None
    from harness.checks.compute_sanitizer import ComputeSanitizer
    from harness.sanitize import EmulatorSanitizer

    if executor.device.kind == "gpu":
        return executor, ComputeSanitizer(arguments.regime, arguments.seed, arguments.plugin)
    sanitizer = EmulatorSanitizer(DEFAULT_ARCH, arguments.step_limit, arguments.seed, progress.part)
    return sanitizer.executor, sanitizer


def _machine(arguments: argparse.Namespace) -> Machine:
    """What `_executor` would choose, for worker processes to make."""
    from harness.executors.gpu import GpuExecutor
    from harness.fuzz.worker import Machine

    _require_positive(arguments, "step_limit")
    _require_gpu(arguments)
    if arguments.device != "emulator" and GpuExecutor.available():
        if arguments.sanitize:
            raise UsageError("fuzz --sanitize runs on the emulator; say --device emulator")
        return Machine("gpu")
    machine = Machine(arch=DEFAULT_ARCH, sanitize=arguments.sanitize)
    return machine if arguments.step_limit is None else replace(machine, step_limit=arguments.step_limit)


def _machine_line(machine: Machine) -> str:
    from harness.tables import device_line

    return device_line(machine.executor().device)


def _emulator(
    arguments: argparse.Namespace,
    progress: Progress,
    arch: str = DEFAULT_ARCH,
    bank_conflicts: bool = False,
    caches: CacheModel | None = None,
) -> Executor:
    from harness.emulator.instruments import Instruments
    from harness.executors.emulator import DEFAULT_STEP_LIMIT, EmulatorExecutor

    _require_positive(arguments, "step_limit", "threads")
    return EmulatorExecutor(
        arch=arch,
        step_limit=DEFAULT_STEP_LIMIT if arguments.step_limit is None else arguments.step_limit,
        threads=arguments.threads,
        seed=arguments.seed,
        progress=progress.part,
        instruments=Instruments(bank_conflicts=bank_conflicts),
        caches=caches,
    )


def _require_positive(arguments: argparse.Namespace, *options: str) -> None:
    for option in options:
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UsageError(f"--{option.replace('_', '-')} is {value}; it has to be at least 1")


def _counter(arguments: argparse.Namespace, problem: Problem, device: Device, progress: Progress) -> Executor | None:
    from harness.compare import counts_beside

    if not counts_beside(arguments.count, problem, device):
        return None
    return _emulator(arguments, progress, device.arch)


def _check_output(*paths: Path | None) -> None:
    """Before any work: outputs that could not be written later."""
    targets = [path for path in paths if path is not None]
    for path in targets:
        require_writable(path)
    if len({os.path.realpath(path) for path in targets}) < len(targets):
        raise UsageError(f"two outputs go to one file: {', '.join(map(str, targets))}")


def _publish(arguments: argparse.Namespace, text: str) -> None:
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        replace_files({arguments.output: text.encode()})
