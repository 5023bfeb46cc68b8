"""How fast is the emulated GPU? The same Numba kernels under NUMBA_ENABLE_CUDASIM=1 and on the emulator, in one run.

    .venv/bin/python scripts/bench_emulator.py [--repeats 3] [--threads N] [--only attention|ordinary]

Of attention, both compute the same small problem, taking turns, and their outputs have to agree. The emulator then
computes a larger one as well, for at the small size it has hardly started before it is done; there the two are compared
by multiply-adds per second. The nine kernels of `ordinary_kernels.py` are compared by CPU time per operation, with
about 10^7 operations on the emulator and fewer blocks in the simulator. Compilation is left out on both sides, and
shown for the nine: from PTX to native code with nothing in the cache. The exit status is 1 where the emulator is less
than 1000 times as fast.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32  # the simulator exchanges `cuda` among the globals of a kernel

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from ordinary_kernels import KERNELS, OrdinaryKernel  # noqa: E402

from harness import Launch, Plan, Problem  # noqa: E402
from harness.device import Device  # noqa: E402
from harness.emulator.executor import EmulatorExecutor  # noqa: E402
from harness.emulator.instruments import PLAIN  # noqa: E402
from harness.emulator.native.kernel_build import build_kernel  # noqa: E402
from harness.emulator.native.tier import Tier  # noqa: E402
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


class Seconds(NamedTuple):
    """The duration of a call."""

    wall: float
    cpu: float
    """Total of all cores."""

    @classmethod
    def of(cls, call: Callable[[], Any]) -> Seconds:
        """Call and measure."""
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        return cls(time.perf_counter() - wall, time.process_time() - cpu)


def simulate(name: str, output: Path) -> None:
    """The simulator's side, in a process of its own: one run per line of input, its wall and CPU time as the answer."""
    if name == "attention":
        inputs = make_inputs(SMALL)
        kernel, configuration = make_kernel(SMALL.head_dim), geometry(SMALL)
        result = np.full(SMALL.q_shape, np.nan, np.float32)
        arguments = (inputs["Q"], inputs["K"], inputs["V"], result, np.float32(SMALL.tau))
    else:
        (case,) = (case for case in KERNELS if case.name == name)
        kernel, configuration = case.make(), case.launch(case.small)
        arguments = tuple(case.arrays(case.small).values())
        result = arguments[-1]
    for _ in sys.stdin:
        seconds = Seconds.of(lambda: kernel[configuration](*arguments))
        np.save(output, result)
        print(*seconds, flush=True)


class Run(NamedTuple):
    """One run on the emulator."""

    seconds: float
    """Wall-clock time of the executor: copying the arrays in and out, looking up the compiled kernel, the launch."""
    execution: Execution


class Simulator:
    """A process with Numba's simulator switched on, for one kernel."""

    def __init__(self, folder: str, name: str = "attention") -> None:
        self.output = Path(folder, "result.npy")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--simulate", name, str(self.output)],
            env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> Seconds:
        """Seconds of one run of the small problem."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("bench_emulator: Numba's simulator failed (see above)")
        return Seconds(*map(float, answer.split()))


def main() -> int:
    """Run the benchmark and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the median counts (default 3)")
    parser.add_argument("--threads", type=int, help="CPU cores for the emulator (default: all)")
    parser.add_argument("--only", choices=("attention", "ordinary"), help="one of the two parts")
    parser.add_argument("--simulate", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.simulate is not None:
        simulate(options.simulate[0], Path(options.simulate[1]))
        return 0
    ratios: list[float] = []
    if options.only != "ordinary":
        ratios += compare_attention(options.repeats, options.threads)
    if options.only != "attention":
        ratios += compare_ordinary(options.repeats, options.threads)
    return 0 if min(ratios) >= REQUIRED_RATIO else 1


def compare_ordinary(repeats: int, threads: int | None) -> list[float]:
    """Print a row per ordinary kernel. Returns how many times as fast the emulator is."""
    print(f"\nmedians of {repeats} rounds, taking turns; seconds for all operations, the simulator's extrapolated\n")
    print(f"{'':<24}{'operations':>12}{'simulator CPU':>15}{'CPU':>9}{'wall':>9}{'ratio':>9}{'compilation CPU':>17}")
    return [_compare(case, repeats, threads) for case in KERNELS]


def _compare(case: OrdinaryKernel, repeats: int, threads: int | None) -> float:
    simulated: list[Seconds] = []
    emulated: list[Seconds] = []
    arrays = case.arrays(case.large)
    with Device(threads=threads) as device, tempfile.TemporaryDirectory() as folder:
        arguments = [device.array(values, name=name) for name, values in arrays.items()]
        kernel, (grid, block) = case.make(), case.launch(case.large)
        first = device.launch(kernel, grid, block, arguments)
        device.launch(kernel, grid, block, arguments)  # a long kernel is optimized after some time
        simulator = Simulator(folder, case.name)
        for _ in range(repeats):
            simulated.append(simulator.run())
            emulated += [Seconds.of(lambda: device.launch(kernel, grid, block, arguments)) for _ in range(3)]
        small = case.arrays(case.small)
        for found, expected in (
            (np.load(simulator.output), case.expected(small)),
            (arguments[-1].numpy(), case.expected(arrays)),
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        simulator.process.communicate()
    compilation = Seconds.of(lambda: build_kernel(first.compiled.ptx, first.compiled.entry, PLAIN, Tier.OPTIMIZED))
    operations = case.count(case.large)
    simulator_cpu = statistics.median(run.cpu for run in simulated) * operations / case.count(case.small)
    cpu, wall = (statistics.median(run[part] for run in emulated) for part in (1, 0))
    label, what = f"{case.name:<24}", f"{operations:>12,}{simulator_cpu:>15.1f}{cpu:>9.4f}{wall:>9.4f}"
    print(f"{label}{what}{simulator_cpu / cpu:>9,.0f}{compilation.cpu:>17.3f}", flush=True)
    return simulator_cpu / cpu


def compare_attention(repeats: int, threads: int | None) -> list[float]:
    """Print a table of attention. Returns how many times as fast the emulator is, on two problems."""
    executor = EmulatorExecutor(RunSettings(threads=threads))
    kernel = make_kernel(SMALL.head_dim)

    def emulate(problem: Problem) -> Run:
        launch = Launch(kernel, *geometry(problem), ("Q", "K", "V", "O", np.float32(problem.tau)))
        inputs = make_inputs(problem)
        start = time.perf_counter()
        execution = executor.run(problem, Plan((launch,)), inputs)
        return Run(time.perf_counter() - start, execution)

    emulate(SMALL)  # compiles
    simulated: list[float] = []
    small, large = [], []
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(folder)
        for _ in range(repeats):
            simulated.append(simulator.run().wall)
            small += [emulate(SMALL) for _ in range(5)]
            large.append(emulate(LARGE))
        difference = float(np.abs(np.load(simulator.output) - small[0].execution.outputs["O"]).max())
        simulator.process.communicate()
    if not difference <= TOLERANCE:
        sys.exit(f"bench_emulator: the outputs differ by {difference:g}, more than {TOLERANCE:g}")

    simulator_seconds = statistics.median(simulated)
    small_seconds, large_seconds = (statistics.median(run.seconds for run in runs) for runs in (small, large))
    print(f"medians of {repeats} rounds, taking turns; outputs agree to {difference:.1g}; {usable_cores()} CPU cores\n")
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
    return [same, per_fma]


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
