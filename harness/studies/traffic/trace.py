"""`traffic --trace`: runs the variant again, records its events, and writes a file for trace viewers."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.execution.events import Observer
from harness.execution.planning import make_plan
from harness.execution.timeline import timeline_of
from harness.model.operation import draw_inputs
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.options.standard_streams import complain
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files
from harness.support.gpus import Gpu
from harness.text.chrome_trace import leaves_out, render_chrome_trace, what_is_shown
from harness.text.stamp_trace import render_stamp_trace

MOST_EVENTS = 100_000
"""About 15 MB of JSON, which viewers open in seconds."""


def require_trace(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` if --trace-events is used without --trace, or if the file is not a JSON file."""
    if arguments.trace is None:
        if arguments.trace_events is not None:
            raise UsageError("--trace-events goes with --trace FILE.json")
        return
    if arguments.trace.suffix.lower() != ".json":
        raise UsageError(f"cannot write a trace to {arguments.trace}: viewers open JSON; end the name in .json")
    if arguments.trace_events is not None and arguments.trace_events < 1:
        raise UsageError(f"--trace-events is {arguments.trace_events}; it has to be at least 1")


def write_trace(
    arguments: argparse.Namespace, variant: Variant, problem: BaseProblem, executor: Observer, gpu: Gpu
) -> None:
    """Run, and write the file of `--trace`: from the GPU with --device gpu, else from the emulator.

    If blocks are left out, a line on standard error says which.
    """
    path: Path = arguments.trace
    inputs = draw_inputs(problem, arguments.regime, arguments.seed)
    most = MOST_EVENTS if arguments.trace_events is None else arguments.trace_events
    plan = make_plan(variant, problem)
    if arguments.device == "gpu":
        from harness.gpu.stamped_run import stamped_run

        text, shown = render_stamp_trace(stamped_run(variant.name, problem, plan, inputs), most)
    else:
        timeline = timeline_of(variant.name, problem, plan, executor, inputs, gpu, most)
        text, shown = render_chrome_trace(timeline), what_is_shown(timeline) if leaves_out(timeline) else None
    replace_files({path: text.encode()})
    if shown is not None:
        complain(f"{path} has the blocks {shown}; --trace-events N takes more")
