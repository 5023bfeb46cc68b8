"""The program that runs under a profiler: it runs plans natively, once each.

    python -m harness.gpu.profiled_run REQUEST.json REPLY.json

`hardware_counters` writes the request and reads the reply. It is a separate program, because ncu starts the
program that it profiles.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import make_plan
from harness.gpu.executor import GpuExecutor
from harness.model.discovery import discover
from harness.model.operation import draw_inputs, operation_named
from harness.support.errors import SandboxError


def main(request_path: str, reply_path: str) -> int:
    """Run the requested plans. The reply has each run's kernels in order, or the reason for a failure."""
    request = json.loads(Path(request_path).read_text())
    reply: dict[str, Any] = {"runs": [], "error": None}
    try:
        _run_all(request, reply["runs"])
    except SandboxError as error:
        reply["error"] = str(error)
    Path(reply_path).write_text(json.dumps(reply))
    return 1 if reply["error"] else 0


def _run_all(request: dict[str, Any], kernels: list[list[str]]) -> None:
    registry = discover([Path(path) for path in request["plugins"]]).registry
    executor = GpuExecutor(timed=False, poison=request.get("poison", True))
    drawn: tuple[Any, Any] = (None, None)
    for run in request["runs"]:
        problem = operation_named(run["operation"]).problem.from_fields(run["problem"])
        wanted = (problem, run["regime"], run["seed"])
        if drawn[0] != wanted:  # many variants share one question
            drawn = (wanted, draw_inputs(*wanted))
        variant = registry.get(run["variant"])
        tiled = with_tile(variant, run["tile"]) if run.get("tile") else variant
        plan = make_plan(tiled, problem, executor.device.arch)
        executor.run(problem, plan, drawn[1])
        kernels.append([launch.kernel_name for launch in plan.launches])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
