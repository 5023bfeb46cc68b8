#!/usr/bin/env python3
"""How long the main job takes: `compare` with nothing compiled, `compare` again, and one long head on the emulator.

    .venv/bin/python scripts/bench_compare.py

Uses a cache directory of its own and leaves yours alone. Exit status 1 where a target is missed.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
WARM_RUNS = 3
LONG_HEAD = """
import time
from harness.model.discovery import discover
from harness.emulator.executor import EmulatorExecutor
from harness.model.operation import draw_inputs
from harness import Problem

problem = Problem(heads=1, q_len=4096, kv_len=4096)
inputs, plan = draw_inputs(problem), discover().registry.get("fa2-cupy").plan(problem)
executor = EmulatorExecutor()
executor.prepare(problem, plan)
started = time.perf_counter()
executor.run(problem, plan, inputs)
print(time.perf_counter() - started)
"""


def run(command: list[str], cache: str) -> tuple[float, str]:
    """Seconds, and what it printed."""
    started = time.perf_counter()
    environment = {**os.environ, "ATTENTION_SANDBOX_CACHE_DIR": cache}
    ran = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(command[:4])} failed:\n{ran.stdout}{ran.stderr}")
    return time.perf_counter() - started, ran.stdout


def main() -> None:
    """Measure, print, judge."""
    compare = ["-m", "harness", "compare", "--device", "emulator"]
    with tempfile.TemporaryDirectory() as folder:
        cache = str(Path(folder) / "cache")
        cold, _ = run(compare, cache)
        peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        warm = statistics.median(run(compare, cache)[0] for _ in range(WARM_RUNS))
        _, long_head = run(["-c", LONG_HEAD], cache)
    rows = [
        ("compare, nothing compiled", cold, 20.0, "s"),
        (f"compare again, median of {WARM_RUNS}", warm, 5.0, "s"),
        ("largest process of the first", peak_mib, 1024.0, "MiB"),
        ("fa2-cupy on one head of 4096 x 4096 x 64, float32", float(long_head), 15.0, "s"),
    ]
    cells = [(what, f"{value:.1f} {unit}", f"{limit:.0f} {unit}") for what, value, limit, unit in rows]
    print(tabulate(cells, ("", "measured", "at most"), colalign=("left", "right", "right")))
    sys.exit(0 if all(value <= limit for _, value, limit, _ in rows) else 1)


if __name__ == "__main__":
    main()
