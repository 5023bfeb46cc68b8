"""The command line: joins what was asked to what does it. The only module that loads variants."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.arguments import build_parser, effort_of, problem_of, problem_with
from harness.discovery import Discovery, discover
from harness.errors import SandboxError, UsageError
from harness.file_replacement import replace_files, require_writable
from harness.problem import Problem

if TYPE_CHECKING:
    from harness.bench import BenchResult
    from harness.effort import Effort
    from harness.executors import Device, Executor
    from harness.executors.emulator import CacheModel
    from harness.gpus import Gpu
    from harness.progress import Progress
    from harness.sweep import Sweep
    from harness.variant import Variant

# Executors, compilers and the oracle are imported by the commands that use them: `list` waits for none of them.

PASSED, FAILED, WRONG_CALL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
"""Exit statuses. The last two are a shell's for SIGINT and SIGPIPE."""

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
        executor = _executor(arguments, progress)
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
    caches = _cache_model(arguments)
    _, (variant,) = _tiled(arguments, [_discover(arguments).registry.get(arguments.variant)], problem)
    with progress_bar(1) as progress:
        arch = _counted_arch(arguments) if arguments.gpu is None else caches.gpu.multiprocessor.arch
        executor = _emulator(arguments, progress, arch, bank_conflicts=arguments.lines, caches=caches)
        progress.step(variant.name)
        account = measure_traffic(variant, problem, executor, arguments.regime, arguments.seed)
    on_chip = on_chip_bytes(variant, problem, executor.device.arch)
    bound = None if on_chip is None else io_bound(problem, on_chip)
    tile = tile_of(variant, problem)
    report = TrafficReport(
        account, bound, arguments.lines, None if tile is None else tile_text(tile), caches.gpu.name, caches.flushed
    )
    _publish(arguments, render_traffic(report, arguments.format))
    return FAILED if account.claim_holds is False else PASSED


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
    _require_gpu(gpu_available())
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
    _require_gpu(gpu_available())
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


def _require_gpu(available: bool) -> None:
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


def _show(arguments: argparse.Namespace) -> int:
    from harness.kernel_listing import list_kernels, render_kernels

    problem = problem_of(arguments)
    registry = _discover(arguments).registry
    _, (variant,) = _tiled(arguments, [registry.get(arguments.variant)], problem)
    listings = list_kernels(variant, problem, _arch())
    print(
        f"{variant.name}: {variant.idea or variant.algorithm} ({variant.backend}, {registry.origin_of(variant.name)})\n"
    )
    sys.stdout.write(render_kernels(listings, arguments.ptx))
    return PASSED


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "compare": _compare,
    "run": _run,
    "traffic": _traffic,
    "bench": _bench,
    "tune": _tune,
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

    if GpuExecutor.available():
        return GpuExecutor()
    if arguments.device == "gpu":
        raise UsageError("--device gpu: CuPy finds no GPU on this machine; --device emulator needs none")
    return _emulator(arguments, progress)


def _emulator(
    arguments: argparse.Namespace,
    progress: Progress,
    arch: str = DEFAULT_ARCH,
    bank_conflicts: bool = False,
    caches: CacheModel | None = None,
) -> Executor:
    from harness.emulator.instruments import Instruments
    from harness.executors.emulator import DEFAULT_STEP_LIMIT, EmulatorExecutor

    for option in ("step_limit", "threads"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise UsageError(f"--{option.replace('_', '-')} is {value}; it has to be at least 1")
    return EmulatorExecutor(
        arch=arch,
        step_limit=DEFAULT_STEP_LIMIT if arguments.step_limit is None else arguments.step_limit,
        threads=arguments.threads,
        seed=arguments.seed,
        progress=progress.part,
        instruments=Instruments(bank_conflicts=bank_conflicts),
        caches=caches,
    )


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
