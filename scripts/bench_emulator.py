"""How fast is the emulated GPU? The same Numba kernel under NUMBA_ENABLE_CUDASIM=1 and on the emulator, in one run.

    .venv/bin/python scripts/bench_emulator.py [--repeats 3] [--threads N]

Both compute the same small problem, taking turns, and their outputs have to agree. The emulator then computes a larger
one as well, for at the small size it has hardly started before it is done; there the two are compared by
multiply-adds per second. Compilation is left out on both sides. The exit status is 1 where the emulator is less than
1000 times as fast.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32  # the simulator exchanges `cuda` among the globals of a kernel

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness import Launch, Plan, Problem  # noqa: E402
from harness.emulator.executor import EmulatorExecutor  # noqa: E402
from harness.execution.protocol import Execution  # noqa: E402 - the repository need not be installed
from harness.execution.run_settings import RunSettings  # noqa: E402
from harness.support.cores import usable_cores  # noqa: E402

REQUIRED_RATIO = 1000
SMALL = Problem(heads=8, q_len=128, kv_len=128, head_dim=64)
LARGE = Problem(heads=8, q_len=1024, kv_len=1024, head_dim=64)
ROWS, KEYS = 32, 16
# Both sides round to float32 in their own order: Python's simulator does not fuse multiply and add, and its exp is not
# the GPU's. A row is a weighted mean of normal values, so 1e-5 is some hundred roundings.
TOLERANCE = 1e-5


def make_kernel(head_dim: int) -> Any:
    """Attention, a thread per query row, K and V through shared memory. No shuffles: Numba's simulator has none."""

    @cuda.jit
    def attention(Q, K, V, O, tau):
        K_tile = cuda.shared.array((KEYS, head_dim), float32)
        V_tile = cuda.shared.array((KEYS, head_dim), float32)
        q = cuda.local.array(head_dim, float32)
        o = cuda.local.array(head_dim, float32)
        head = cuda.blockIdx.y
        t = cuda.threadIdx.x
        row = cuda.blockIdx.x * ROWS + t
        m = float32(-math.inf)
        l = float32(0)
        for d in range(head_dim):
            q[d] = Q[0, head, row, d]
            o[d] = float32(0)
        for first_key in range(0, K.shape[2], KEYS):
            for e in range(t, KEYS * head_dim, ROWS):
                K_tile[e // head_dim, e % head_dim] = K[0, head, first_key + e // head_dim, e % head_dim]
                V_tile[e // head_dim, e % head_dim] = V[0, head, first_key + e // head_dim, e % head_dim]
            cuda.syncthreads()
            for j in range(KEYS):
                s = float32(0)
                for d in range(head_dim):
                    s += q[d] * K_tile[j, d]
                s *= tau
                m_new = max(m, s)
                correction = math.exp(m - m_new)
                p = math.exp(s - m_new)
                l = correction * l + p
                m = m_new
                for d in range(head_dim):
                    o[d] = correction * o[d] + p * V_tile[j, d]
            cuda.syncthreads()
        for d in range(head_dim):
            O[0, head, row, d] = o[d] / l

    return attention


def make_inputs(problem: Problem) -> dict[str, np.ndarray]:
    """Q, K and V from a normal distribution."""
    random = np.random.default_rng(0)
    shapes = {"Q": problem.q_shape, "K": problem.kv_shape, "V": problem.kv_shape}
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def geometry(problem: Problem) -> tuple[tuple[int, int], tuple[int]]:
    """Grid and block."""
    return (problem.q_len // ROWS, problem.heads), (ROWS,)


def multiply_adds(problem: Problem) -> int:
    """Multiply-adds of S = Q K^T and O = P V."""
    return 2 * problem.heads * problem.q_len * problem.kv_len * problem.head_dim


def simulate(output: Path) -> None:
    """The simulator's side, in a process of its own: one run per line of input, the seconds as the answer."""
    inputs = make_inputs(SMALL)
    kernel = make_kernel(SMALL.head_dim)
    O = np.full(SMALL.q_shape, np.nan, np.float32)
    for _ in sys.stdin:
        start = time.perf_counter()
        kernel[geometry(SMALL)](inputs["Q"], inputs["K"], inputs["V"], O, np.float32(SMALL.tau))
        seconds = time.perf_counter() - start
        np.save(output, O)
        print(seconds, flush=True)


class Run(NamedTuple):
    """One run on the emulator."""

    seconds: float
    """Wall-clock time of the executor: copying the arrays in and out, looking up the compiled kernel, the launch."""
    execution: Execution


class Simulator:
    """A process with Numba's simulator switched on."""

    def __init__(self, folder: str) -> None:
        self.output = Path(folder, "O.npy")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--simulate", str(self.output)],
            env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> float:
        """Seconds of one run of `SMALL`."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("bench_emulator: Numba's simulator failed (see above)")
        return float(answer)


def main() -> int:
    """Run the benchmark and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the median counts (default 3)")
    parser.add_argument("--threads", type=int, help="CPU cores for the emulator (default: all)")
    parser.add_argument("--simulate", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.simulate is not None:
        simulate(options.simulate)
        return 0

    executor = EmulatorExecutor(RunSettings(threads=options.threads))
    kernel = make_kernel(SMALL.head_dim)

    def emulate(problem: Problem) -> Run:
        launch = Launch(kernel, *geometry(problem), ("Q", "K", "V", "O", np.float32(problem.tau)))
        inputs = make_inputs(problem)
        start = time.perf_counter()
        execution = executor.run(problem, Plan((launch,)), inputs)
        return Run(time.perf_counter() - start, execution)

    emulate(SMALL)  # compiles
    simulated, small, large = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(folder)
        for _ in range(options.repeats):
            simulated.append(simulator.run())
            small += [emulate(SMALL) for _ in range(5)]
            large.append(emulate(LARGE))
        difference = float(np.abs(np.load(simulator.output) - small[0].execution.outputs["O"]).max())
        simulator.process.communicate()
    if not difference <= TOLERANCE:
        print(f"bench_emulator: the outputs differ by {difference:g}, more than {TOLERANCE:g}", file=sys.stderr)
        return 1

    simulator_seconds = statistics.median(simulated)
    small_seconds, large_seconds = (statistics.median(run.seconds for run in runs) for runs in (small, large))
    print(
        f"medians of {options.repeats} rounds, taking turns; outputs agree to {difference:.1g}; "
        f"{usable_cores()} CPU cores\n"
    )
    print(f"{'':<18}{'heads x q x kv x d':<20}{'seconds':>10}{'1e6 FMA/s':>12}", end="")
    print(f"{'1e9 lane instr/s':>18}{'1e6 warp instr/s':>18}")
    line("Numba's simulator", SMALL, simulator_seconds)
    line("emulated GPU", SMALL, small_seconds, small[0])
    line("emulated GPU", LARGE, large_seconds, large[0])
    same = simulator_seconds / small_seconds
    per_fma = (simulator_seconds / multiply_adds(SMALL)) / (large_seconds / multiply_adds(LARGE))
    print(
        f"\nThe emulated GPU is {same:,.0f} times as fast on the same problem, "
        f"{per_fma:,.0f} times per FMA on the larger one."
    )
    return 0 if min(same, per_fma) >= REQUIRED_RATIO else 1


def line(label: str, problem: Problem, seconds: float, run: Run | None = None) -> None:
    """Print one row of the table."""
    size = f"{problem.heads} x {problem.q_len} x {problem.kv_len} x {problem.head_dim}"
    print(f"{label:<18}{size:<20}{seconds:>10.4f}{multiply_adds(problem) / seconds / 1e6:>12.2f}", end="")
    if run is not None:
        (report,) = run.execution.launches
        assert report.lane_instructions is not None
        assert report.warp_instructions is not None
        lanes, warps = report.lane_instructions / seconds / 1e9, report.warp_instructions / seconds / 1e6
        print(f"{lanes:>18.2f}{warps:>18.1f}", end="")
    print()


if __name__ == "__main__":
    sys.exit(main())
