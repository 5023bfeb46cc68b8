"""The command line: joins what was asked to what does it. The only module that loads variants."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.arguments import build_parser, problem_of
from harness.discovery import Discovery, discover
from harness.errors import SandboxError, UsageError
from harness.file_replacement import replace_files, require_writable
from harness.problem import Problem

if TYPE_CHECKING:
    from harness.executors import Device, Executor

# Executors, compilers and the oracle are imported by the commands that use them: `list` waits for none of them.

PASSED, FAILED, WRONG_CALL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
"""Exit statuses. The last two are a shell's for SIGINT and SIGPIPE."""

DEFAULT_ARCH = "sm_90"
"""What kernels are compiled for where there is no GPU to ask."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. A user's mistake is one line on stderr, never a traceback."""
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
    executor = _executor(arguments)
    with progress_bar(1 + len(chosen)) as step:
        comparison = compare(
            chosen,
            problem,
            executor,
            regime=arguments.regime,
            seed=arguments.seed,
            counter=_counter(arguments, problem, executor.device),
            lost=lost,
            step=step,
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
    executor = _executor(arguments)
    counter = _counter(arguments, problem, executor.device)
    with progress_bar(2) as step:
        step("the oracle")
        question = Question.pose(problem, arrays.inputs)
        step(variant.name)
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


def _show(arguments: argparse.Namespace) -> int:
    from harness.executors.gpu import GpuExecutor
    from harness.kernel_listing import list_kernels, render_kernels

    problem = problem_of(arguments)
    registry = _discover(arguments).registry
    variant = registry.get(arguments.variant)
    arch = GpuExecutor().device.arch if GpuExecutor.available() else DEFAULT_ARCH
    listings = list_kernels(variant, problem, arch)
    print(
        f"{variant.name}: {variant.idea or variant.algorithm} ({variant.backend}, {registry.origin_of(variant.name)})\n"
    )
    sys.stdout.write(render_kernels(listings, arguments.ptx))
    return PASSED


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "compare": _compare,
    "run": _run,
    "show": _show,
}


def _discover(arguments: argparse.Namespace) -> Discovery:
    found = discover(arguments.plugin)
    for broken in found.broken:
        print(f"harness: warning: {broken.reason}", file=sys.stderr)
    return found


def _executor(arguments: argparse.Namespace) -> Executor:
    if arguments.device == "emulator":
        return _emulator(arguments)
    from harness.executors.gpu import GpuExecutor

    if arguments.device == "gpu" and not GpuExecutor.available():
        raise UsageError("--device gpu: CuPy finds no GPU on this machine; --device emulator needs none")
    return GpuExecutor() if GpuExecutor.available() else _emulator(arguments)


def _emulator(arguments: argparse.Namespace, arch: str = DEFAULT_ARCH) -> Executor:
    from harness.executors.emulator import EmulatorExecutor

    options = {"step_limit": arguments.step_limit, "threads": arguments.threads, "seed": vars(arguments).get("seed")}
    for option in ("step_limit", "threads"):
        if options[option] is not None and options[option] < 1:
            raise UsageError(f"--{option.replace('_', '-')} is {options[option]}; it has to be at least 1")
    return EmulatorExecutor(arch=arch, **{name: value for name, value in options.items() if value is not None})


def _counter(arguments: argparse.Namespace, problem: Problem, device: Device) -> Executor | None:
    from harness.compare import counts_beside

    return _emulator(arguments, device.arch) if counts_beside(arguments.count, problem, device) else None


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
