"""`traffic --trace`: runs the variant again, records its events, and writes a file for trace viewers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.execution.planning.variant_calls import make_plan
from harness.execution.schedule.events import Observer
from harness.execution.schedule.timeline import timeline_of
from harness.model.operation import draw_inputs
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.options.standard_streams import complain
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files
from harness.support.gpu_data_sheets import Gpu
from harness.text.chrome_trace import leaves_out, render_chrome_trace, what_is_shown
from harness.text.stamp_trace import render_stamp_trace

if TYPE_CHECKING:
    from harness.studies.traffic.command import TrafficRequest

MOST_EVENTS = 100_000
"""About 15 MB of JSON, which viewers open in seconds."""


def require_trace(request: TrafficRequest) -> None:
    """Raise `UsageError` if --trace-events is used without --trace, or if the file is not a JSON file."""
    path, events = request.trace, request.trace_events
    if path is None:
        if events is not None:
            raise UsageError("--trace-events goes with --trace FILE.json")
        return
    if path.suffix.lower() != ".json":
        raise UsageError(f"cannot write a trace to {path}: viewers open JSON; end the name in .json")
    if events is not None and events < 1:
        raise UsageError(f"--trace-events is {events}; it has to be at least 1")


def write_trace(request: TrafficRequest, variant: Variant, problem: BaseProblem, executor: Observer, gpu: Gpu) -> None:
    """Run, and write the file of `--trace`: from the GPU with --device gpu, else from the emulator.

    If blocks are left out, a line on standard error says which.
    """
    path, settings = request.trace, request.settings
    assert path is not None
    inputs = draw_inputs(problem, settings.regime, settings.seed)
    most = request.trace_events or MOST_EVENTS
    plan = make_plan(variant, problem, executor.device.arch)
    if settings.device == "gpu":
        from harness.gpu.stamped_run import stamped_run

        text, shown = render_stamp_trace(stamped_run(variant.name, problem, plan, inputs), most)
    else:
        timeline = timeline_of(variant.name, problem, plan, executor, inputs, gpu, most)
        text, shown = render_chrome_trace(timeline), what_is_shown(timeline) if leaves_out(timeline) else None
    replace_files({path: text.encode()})
    if shown is not None:
        complain(f"{path} contains only the blocks {shown}; a larger --trace-events N records more")
