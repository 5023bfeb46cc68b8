#!/usr/bin/env python3
"""Hold the stopwatch of `bench` against Triton's `do_bench`, another cold-cache method, variant by variant.

Needs a GPU, PyTorch and Triton. Run from the repository's root:

    python scripts/check_timing.py [--variants 'fa2*'] [--within 3]

Both measure the same bound launches, in turns. Exit status 1 where they differ by more than `--within` percent.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness import Problem  # noqa: E402
from harness.gpu.context import GpuContext  # noqa: E402
from harness.gpu.stage import GpuStage  # noqa: E402
from harness.gpu.stopwatch import Stopwatch  # noqa: E402
from harness.model.discovery import discover  # noqa: E402
from harness.model.operation import draw_inputs  # noqa: E402
from harness.text.tables import table  # noqa: E402

PROBLEMS = (
    Problem(heads=8, q_len=1024, kv_len=1024),
    Problem(heads=16, q_len=4096, kv_len=4096, dtype="float16", mask="causal"),
)
TURNS = 5
RUNS_PER_TURN = 10


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold bench's stopwatch against Triton's do_bench.")
    parser.add_argument("--variants", help="names or shell patterns (default: all but fa1)")
    parser.add_argument("--within", type=float, default=3.0, help="percent (default: %(default)s)")
    arguments = parser.parse_args()
    import torch
    from triton.testing import do_bench

    registry = discover().registry
    chosen = [v for v in registry.select(arguments.variants) if arguments.variants or v.algorithm != "fa1"]
    context = GpuContext()
    stream = torch.cuda.ExternalStream(context.stream.ptr)
    lines, differs = [], False
    with context.memory():
        stopwatch = Stopwatch(context)
        for problem in PROBLEMS:
            plans = {v.name: v.plan(problem) for v in chosen}
            stage = GpuStage(context, problem, [draw_inputs(problem)], list(plans.values()))
            for name, plan in plans.items():
                contender = stage.bind(plan)
                ours: list[float] = []
                theirs: list[float] = []
                stopwatch.cold_ms(lambda c=contender: c.enqueue(0))
                for _ in range(TURNS):
                    ours += [stopwatch.cold_ms(lambda c=contender: c.enqueue(0)) for _ in range(RUNS_PER_TURN)]
                    with torch.cuda.stream(stream):
                        theirs.append(do_bench(lambda c=contender: c.enqueue(0), return_mode="median"))
                mine, other = statistics.median(ours), statistics.median(theirs)
                percent = 100 * (mine / other - 1)
                differs |= abs(percent) > arguments.within
                what = f"{problem.heads} x {problem.q_len} x {problem.head_dim}, {problem.dtype}"
                lines.append([what, name, f"{mine:.4f}", f"{other:.4f}", f"{percent:+.2f}"])
    headers = ["problem", "variant", "bench\nms", "do_bench\nms", "difference\n%"]
    print(table(headers, lines, [False, False, True, True, True]))
    sys.exit(1 if differs else 0)


if __name__ == "__main__":
    main()
