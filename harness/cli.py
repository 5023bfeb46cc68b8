"""The command line: joins what was asked to what does it. The only module that loads variants."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.arguments import build_parser, problem_of, problem_with
from harness.discovery import Discovery, discover
from harness.errors import SandboxError, UsageError
from harness.file_replacement import replace_files, require_writable
from harness.problem import Problem

if TYPE_CHECKING:
    from harness.executors import Device, Executor
    from harness.progress import Progress

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

    problem = problem_of(arguments)
    _check_output(arguments.output)
    found = _discover(arguments)
    chosen = found.registry.select(arguments.variants)
    # Who asked for certain variants does not miss a broken module; who asked for all does.
    lost = [lost_row(b.name, b.reason, problem) for b in found.broken] if arguments.variants is None else []
    if not chosen and not lost:
        raise UsageError("there are no variants; put one into variants/ or name a file with --plugin")
    with progress_bar(1 + len(chosen)) as progress:
        executor = _executor(arguments, progress)
        comparison = compare(
            chosen,
            problem,
            executor,
            regime=arguments.regime,
            seed=arguments.seed,
            counter=_counter(arguments, problem, executor.device, progress),
            lost=lost,
            step=progress.step,
        )
    _publish(arguments, render_comparison(comparison, arguments.format))
    return PASSED if comparison.all_passed else FAILED


def _run(arguments: argparse.Namespace) -> int:
    from harness.compare import Question, judge, rank, where_counted
    from harness.outcome import Comparison
    from harness.planning import make_plan
    from harness.progress import progress_bar
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
    from harness.traffic import measure_traffic, on_chip_bytes
    from harness.traffic_report import TrafficReport, render_traffic

    problem = problem_of(arguments)
    _check_output(arguments.output)
    variant = _discover(arguments).registry.get(arguments.variant)
    with progress_bar(1) as progress:
        executor = _emulator(arguments, progress, _counted_arch(arguments), bank_conflicts=arguments.lines)
        progress.step(variant.name)
        account = measure_traffic(variant, problem, executor, arguments.regime, arguments.seed)
    on_chip = on_chip_bytes(variant, problem, executor.device.arch)
    bound = None if on_chip is None else io_bound(problem, on_chip)
    _publish(arguments, render_traffic(TrafficReport(account, bound, arguments.lines), arguments.format))
    return PASSED


def _sweep(arguments: argparse.Namespace) -> int:
    from harness.gpus import gpu
    from harness.progress import progress_bar
    from harness.sweep import parse_sweep, require_sensible
    from harness.sweep_plot import draw_bytes, draw_roofline, require_drawable
    from harness.sweep_report import render_sweep, what_is_fixed
    from harness.sweep_run import run_sweep

    if arguments.lines:
        raise UsageError("--lines shows one problem; leave out --sweep")
    if arguments.variant is not None and arguments.variants is not None:
        raise UsageError("VARIANT and --variants both select; leave out one")
    sweep = parse_sweep(arguments.sweep)
    problems = [problem_with(arguments, sweep.field, value) for value in sweep.values]
    require_sensible(problems)
    roof = gpu(arguments.gpu)
    pictures = [path for path in (arguments.plot, arguments.roofline) if path is not None]
    for path in pictures:
        require_drawable(path)
    _check_output(arguments.output, *pictures)
    registry = _discover(arguments).registry
    chosen = registry.select(arguments.variants) if arguments.variant is None else [registry.get(arguments.variant)]
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
    drawn = {}
    if arguments.plot is not None:
        drawn[arguments.plot] = draw_bytes(sweep, points, fixed, arguments.plot.suffix)
    if arguments.roofline is not None:
        drawn[arguments.roofline] = draw_roofline(points, sweep, roof, fixed, arguments.roofline.suffix)
    replace_files(drawn)
    _publish(arguments, render_sweep(sweep, points, executor.device, arguments.format))
    return FAILED if any(point.failed for point in points) else PASSED


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
    variant = registry.get(arguments.variant)
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
    with progress_bar(1 + len(others)) as progress:
        executor = _executor(arguments, progress)
        progress.step(variant.name)
        found = [reveal_orders(variant, problem, executor)]
        for other in others:
            progress.step(other.name)
            found.append(reveal_if_it_runs(other, problem, executor, known=found))
    report = OrderReport(problem, executor.device, found[0], tuple(found[1:]))
    _publish(arguments, render_order(report, arguments.format))
    return PASSED


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "compare": _compare,
    "run": _run,
    "traffic": _traffic,
    "show": _show,
}


def _discover(arguments: argparse.Namespace) -> Discovery:
    found = discover(arguments.plugin)
    for broken in found.broken:
        print(f"harness: warning: {broken.reason}", file=sys.stderr)
    return found


def _arch() -> str:
    """What to compile for: the GPU that is there, else the default."""
    from harness.executors.gpu import GpuExecutor

    return GpuExecutor().device.arch if GpuExecutor.available() else DEFAULT_ARCH


def _counted_arch(arguments: argparse.Namespace) -> str:
    return DEFAULT_ARCH if arguments.device == "emulator" else _arch()


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
    arguments: argparse.Namespace, progress: Progress, arch: str = DEFAULT_ARCH, bank_conflicts: bool = False
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
