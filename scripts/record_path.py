#!/usr/bin/env python3
"""Record how long the kernels of the learning path take on a GPU, and how many bytes its counters count.

Needs a GPU; the bytes also need Nsight Compute (`ncu`) and the permission to read counters. Run from the repository's
root, then put the figures into the pages:

    python scripts/record_path.py tests/hardware/path_h200.json
    python scripts/path_pages.py

Times are those of `bench`: all kernels of a problem take turns, L2 is overwritten before each run, answers are checked
before and after, and a time is the median of the runs. The problems are those of scripts/recording/path_problems.py.
Recorded besides are full kernels, and PyTorch's, on the problems of a published table of times (docs/path.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness import Variant  # noqa: E402
from harness.execution.planning.variant_calls import make_plan  # noqa: E402
from harness.execution.run_settings import Effort, RunSettings  # noqa: E402
from harness.gpu.contenders import bench_on_gpu, torch_version  # noqa: E402
from harness.gpu.hardware_counters import Run, profile  # noqa: E402
from harness.gpu.nsight_compute import LEVEL_METRICS, TRAFFIC_METRICS, Counters  # noqa: E402
from harness.model.discovery import discover  # noqa: E402
from harness.model.operation import operation_of  # noqa: E402
from harness.model.problem import BaseProblem  # noqa: E402
from harness.studies.learn.steps import find_lessons  # noqa: E402
from harness.support.errors import SandboxError  # noqa: E402
from harness.support.file_replacement import replace_files, require_writable  # noqa: E402
from scripts.record_traffic import ncu_version, text_of  # noqa: E402
from scripts.recording import path_problems  # noqa: E402
from scripts.recording.environment import environment  # noqa: E402
from scripts.recording.path_problems import (  # noqa: E402
    FLASH,
    LIBRARY,
    NAIVE,
    PUBLISHED_LENGTHS,
    own_and_largest,
    published,
    runs,
)
from scripts.recording.path_record import recorded_fields  # noqa: E402
from scripts.recording.plan_hash import plan_hash  # noqa: E402

EFFORT = Effort(noise=0.01, most_seconds=0.5, most_samples=60, sustained_seconds=0.0)
"""Enough for two digits."""


def record(counters: bool) -> Iterator[dict[str, Any]]:
    """The record, whole each time that some more is measured. Raises `SandboxError` without a GPU."""
    found: dict[str, Any] = {**environment(), "torch": torch_version() or "", "times": [], "counters": []}
    lessons = find_lessons()
    on_path = runs(lessons)
    for problem, variants in on_path.items():
        found["times"] += times(variants, problem)
        yield found
    registry = discover().registry
    for n in PUBLISHED_LENGTHS:
        for causal, names, libraries in ((False, (NAIVE, FLASH), (LIBRARY,)), (True, (FLASH,), ())):
            found["times"] += times([registry.get(name) for name in names], published(n, causal), libraries)
    yield found
    if counters:
        for counted in own_and_largest(lessons):
            found["counters"] += bytes_by_level([(v, p) for p in counted for v in on_path[p] if v.backend == "cupy"])
            yield {**found, "ncu": ncu_version()}


def times(variants: Sequence[Variant], problem: BaseProblem, libraries: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A row for each contender that is right: its median time in microseconds, with the bounds of its interval."""
    settings = RunSettings(effort=EFFORT)
    others = [name for name in operation_of(problem).libraries if name not in libraries]
    result = bench_on_gpu(variants, problem, settings, libraries=bool(libraries), left_out=others, step=lambda _: None)
    hashes = {variant.name: plan_hash(make_plan(variant, problem), problem) for variant in variants}
    rows = []
    for row in result.rows:
        if row.time_ms is None or row.time_low_ms is None or row.time_high_ms is None:
            print(f"{row.variant} on {problem.headline}: {row.verdict}: {row.reason}", file=sys.stderr, flush=True)
            continue
        us = {"us": row.time_ms, "low_us": row.time_low_ms, "high_us": row.time_high_ms}
        rows.append(
            {
                "variant": row.variant,
                "problem": recorded_fields(problem),
                "hash": hashes.get(row.variant),
                **{name: round(1000 * value, 3) for name, value in us.items()},
                "samples": row.samples,
            }
        )
        print(f"{row.variant:28}{problem.headline:75}{1000 * row.time_ms:12,.1f} us", flush=True)
    return rows


def bytes_by_level(cases: Sequence[tuple[Variant, BaseProblem]]) -> list[dict[str, Any]]:
    """Bytes of each run by memory level, reads and writes of all launches together.

    Raises `CountersUnavailable` if ncu does not measure them.
    """
    measured = profile([Run(v.name, p) for v, p in cases], TRAFFIC_METRICS, [Path(path_problems.__file__)])
    return [
        {
            "variant": variant.name,
            "problem": recorded_fields(problem),
            "hash": plan_hash(make_plan(variant, problem), problem),
            "bytes": {level: _bytes(launches, level) for level in LEVEL_METRICS},
        }
        for (variant, problem), launches in zip(cases, measured, strict=True)
    ]


def _bytes(launches: Sequence[Counters], level: str) -> int | None:
    metrics = LEVEL_METRICS[level]
    counts = [one.total(names) for one in launches for names in (metrics.read, metrics.written)]
    return None if None in counts else metrics.unit_bytes * sum(count for count in counts if count is not None)


def main() -> None:
    """Parse, record, write whole after each problem: what was measured outlives a run that is cut off."""
    parser = argparse.ArgumentParser(description="Record times and bytes of the learning path's kernels on a GPU.")
    parser.add_argument("output", type=Path, help="where the record goes (JSON)")
    parser.add_argument("--no-counters", action="store_true", help="record no bytes, so that ncu is not needed")
    arguments = parser.parse_args()
    output: Path = arguments.output
    try:
        require_writable(output)
        for found in record(not arguments.no_counters):
            replace_files({output: text_of(found).encode()})
    except SandboxError as error:
        sys.exit(str(error))
    print(f"{len(found['times'])} times, {len(found['counters'])} counts of bytes recorded in {output}")


if __name__ == "__main__":
    main()
