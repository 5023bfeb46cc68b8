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

from harness.arguments import build_parser, problem_of, problem_with
from harness.discovery import Discovery, discover
from harness.errors import SandboxError, UsageError
from harness.file_replacement import replace_files, require_writable
from harness.problem import Problem

if TYPE_CHECKING:
    from harness.executors import Device, Executor
    from harness.fuzz.worker import Machine
    from harness.progress import Progress
    from harness.sweep import Sweep
    from harness.variant import Variant

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
    from harness.tile_choice import tile_of
    from harness.traffic import measure_traffic, on_chip_bytes
    from harness.traffic_report import TrafficReport, render_traffic
    from harness.variant import tile_text

    problem = problem_of(arguments)
    _check_output(arguments.output)
    _, (variant,) = _tiled(arguments, [_discover(arguments).registry.get(arguments.variant)], problem)
    with progress_bar(1) as progress:
        executor = _emulator(arguments, progress, _counted_arch(arguments), bank_conflicts=arguments.lines)
        progress.step(variant.name)
        account = measure_traffic(variant, problem, executor, arguments.regime, arguments.seed)
    on_chip = on_chip_bytes(variant, problem, executor.device.arch)
    bound = None if on_chip is None else io_bound(problem, on_chip)
    tile = tile_of(variant, problem)
    report = TrafficReport(account, bound, arguments.lines, None if tile is None else tile_text(tile))
    _publish(arguments, render_traffic(report, arguments.format))
    return PASSED


def _sweep(arguments: argparse.Namespace) -> int:
    from harness.gpus import gpu
    from harness.progress import progress_bar
    from harness.sweep import parse_sweep, require_sensible
    from harness.sweep_plot import draw_bytes, draw_roofline, require_drawable
    from harness.sweep_report import other_sizes, render_sweep, what_is_fixed
    from harness.sweep_run import run_sweep
    from harness.tile_choice import tile_names

    if arguments.lines:
        raise UsageError("--lines shows one problem; leave out --sweep")
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
    roof = gpu(arguments.gpu)
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
    return FAILED if any(point.failed for point in points) else PASSED


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


def _executor(arguments: argparse.Namespace, progress: Progress) -> Executor:
    if arguments.device == "emulator":
        return _emulator(arguments, progress)
    from harness.executors.gpu import GpuExecutor

    if GpuExecutor.available():
        return GpuExecutor()
    if arguments.device == "gpu":
        raise UsageError(NO_GPU)
    return _emulator(arguments, progress)


def _machine(arguments: argparse.Namespace) -> Machine:
    """What `_executor` would choose, for worker processes to make."""
    from harness.fuzz.worker import Machine

    _require_positive(arguments, "step_limit")
    if arguments.device != "emulator":
        from harness.executors.gpu import GpuExecutor

        if GpuExecutor.available():
            return Machine("gpu")
        if arguments.device == "gpu":
            raise UsageError(NO_GPU)
    machine = Machine(arch=DEFAULT_ARCH)
    return machine if arguments.step_limit is None else replace(machine, step_limit=arguments.step_limit)


def _machine_line(machine: Machine) -> str:
    from harness.tables import device_line

    return device_line(machine.executor().device)


def _emulator(
    arguments: argparse.Namespace, progress: Progress, arch: str = DEFAULT_ARCH, bank_conflicts: bool = False
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
