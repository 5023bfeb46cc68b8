#!/usr/bin/env python3
"""A stand-in for `ncu` on a machine without a GPU: answers as Nsight Compute does, and plays the program's part too.

It makes the plans that it is asked to profile, but runs none. Each counter is a number that tells which launch and
which metric it belongs to. What it should do instead is in the environment, FAKE_NCU.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness.execution.planning.variant_calls import make_plan
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem

COLUMNS = ("ID", "Process ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")


def counter(launch: int, metric: str) -> int:
    """What this stand-in says of the launch."""
    return 1000 * (launch + 1) + sum(metric.encode()) % 1000


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 0.0.0 (a stand-in)")
        return 0
    options = {name: value for name, value in itertools.pairwise(arguments) if name.startswith("--")}
    log, metrics = Path(options["--log-file"]), options["--metrics"].split(",")
    request, reply = map(Path, arguments[-2:])
    mode = os.environ.get("FAKE_NCU")
    if mode == "no gpu":
        reply.write_text(json.dumps({"runs": [], "error": "no usable GPU: none\nat all"}))
        log.write_text("==PROF== Connected to process 7\n==WARNING== No kernels were profiled.\n")
        return 1
    names = [kernel_names(run, json.loads(request.read_text())) for run in json.loads(request.read_text())["runs"]]
    if mode != "crash":
        reply.write_text(json.dumps({"runs": names, "error": None}))
    if mode == "denied":
        log.write_text(
            "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to "
            "access NVIDIA GPU Performance Counters on the target device 0.\n"
        )
        return 1
    if options["--replay-mode"] == "app-range":
        rows = ["range" for _ in names]
    else:
        rows = [f"void {name}(const float *, int)" for run in names for name in run]
    rows = rows[:-1] if mode == "lost" else ["other" for _ in rows] if mode == "other" else rows
    with log.open("w") as file:
        file.write("==PROF== Connected to process 7\n")
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(COLUMNS)
        for launch, name in enumerate(rows):
            for metric in metrics:
                value = "n/a" if "nonsense" in metric else f"{counter(launch, metric):,}"
                writer.writerow((launch, 7, name, metric, "sector", value))
    return 0


def kernel_names(run: dict, request: dict) -> list[str]:
    registry = discover([Path(path) for path in request["plugins"]]).registry
    plan = make_plan(registry.get(run["variant"]), Problem.from_fields(run["problem"]))
    return [launch.kernel_name for launch in plan.launches]


if __name__ == "__main__":
    sys.exit(main())
