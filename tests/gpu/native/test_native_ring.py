"""Plans of several devices on the GPUs of this machine, which they share if there are too few."""

from __future__ import annotations

import functools

import cupy
import numpy as np
import pytest

from harness.cli import main
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.outcome import Row
from harness.execution.run_settings import Effort, RunSettings
from harness.gpu.contenders import bench_on_gpu
from harness.gpu.context import GpuContext, gpu_count
from harness.gpu.executor import GpuExecutor
from harness.gpu.plan_devices import PlanDevices
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Launch
from harness.operations.ring_attention.problem import RingProblem
from tests.gpu.summing_plan import summing_plan, summing_problem, sums

pytestmark = pytest.mark.skipif(not GpuExecutor.available(), reason="CuPy finds no GPU on this machine")
two_gpus = pytest.mark.skipif(gpu_count() < 2, reason=f"needs two GPUs, and CuPy finds {gpu_count()}")

VARIANTS = [variant.name for variant in discover().registry.select(None, "ring-attention")]
CASES = [
    (1, "contiguous", "causal", 300),
    (2, "zigzag", "causal", 300),
    (2, "contiguous", "none", 257),
    (3, "striped", "causal", 193),
    (4, "zigzag", "none", 512),
]
QUICK = Effort(noise=0.05, most_seconds=0.2, sustained_seconds=0.1)


def ring(devices: int, order: str, mask: str, length: int, heads: int = 4) -> RingProblem:
    """One head_dim and dtype for all, so that kernels are compiled once."""
    sizes = {"heads": heads, "kv_heads": heads // 2, "q_len": length, "kv_len": length, "head_dim": 128}
    return RingProblem(**sizes, dtype="bfloat16", devices=devices, row_order=order, mask=mask)


@functools.cache
def question(case: tuple[int, str, str, int]) -> Question:
    problem = ring(*case)
    return Question.pose(problem, draw_inputs(problem, "normal", seed=2))


@pytest.fixture(scope="module")
def executor() -> GpuExecutor:
    return GpuExecutor()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_variant_is_right_natively(executor: GpuExecutor, name: str, case: tuple[int, str, str, int]):
    asked = question(case)
    row = Row.of(attempt(discover().registry.get(name), asked.problem, executor, question=asked))
    if row.verdict == "unsupported":
        pytest.skip(row.reason)
    assert row.verdict == "pass", row.reason
    assert row.time_ms > 0


def test_devices_take_gpus_in_turns():
    devices = PlanDevices(GpuContext(), 5)
    assert [devices.on(device).gpu.id for device in range(5)] == [device % gpu_count() for device in range(5)]
    assert devices.on(gpu_count()) is devices.first or gpu_count() > 4


TEXT = """
__device__ void spin(long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles);
}
extern "C" __global__ void begin(const float *K, float *block, float *other, float *total, long long cycles)
{
    spin(cycles);
    block[threadIdx.x] = K[threadIdx.x], other[threadIdx.x] = __int_as_float(0x7fc00000), total[threadIdx.x] = 0;
}
extern "C" __global__ void add(const float *block, float *total, long long cycles)
{
    spin(cycles);
    total[threadIdx.x] += block[threadIdx.x];
}
extern "C" __global__ void spoil(float *block, long long cycles)
{
    spin(cycles);
    block[threadIdx.x] = __int_as_float(0x7fc00000);
}
extern "C" __global__ void end(const float *total, float *O, long long cycles)
{
    spin(cycles);
    O[threadIdx.x] = total[threadIdx.x];
}
"""


@pytest.mark.parametrize("slow", range(-1, 4))
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_launches_and_copies_wait_for_each_other(executor: GpuExecutor, devices: int, slow: int):
    """One device is slower than the others by milliseconds, or none is."""
    problem = summing_problem(devices)

    def launch(name: str, buffers: tuple[str, ...], device: int) -> Launch:
        cycles = np.int64(3_000_000 if device == slow else 0)
        return Launch(cupy.RawKernel(TEXT, name), (1,), (4,), (*buffers, cycles), device=device)

    inputs = draw_inputs(problem, seed=devices)
    found = executor.run(problem, summing_plan(devices, launch), inputs).outputs["O"]
    np.testing.assert_allclose(found, sums(problem, inputs), rtol=1e-5, atol=1e-5)


def test_every_run_gives_the_same_bits():
    problem = ring(2, "zigzag", "causal", 2048)
    plan, inputs = discover().registry.get("ring-mma-cupy").plan(problem), draw_inputs(problem)
    executor = GpuExecutor(timed=False)
    runs = [executor.run(problem, plan, inputs).outputs["O"].tobytes() for _ in range(10)]
    assert len(set(runs)) == 1


def test_bench_says_what_a_time_is():
    problem = ring(2, "zigzag", "causal", 1024)
    variants = [discover().registry.get(name) for name in ("ring-cupy", "ring-mma-cupy")]
    result = bench_on_gpu(variants, problem, RunSettings(effort=QUICK), libraries=False, step=lambda _: None)
    assert [row.verdict for row in result.rows] == ["pass", "pass"], [row.reason for row in result.rows]
    assert result.rows[0].time_ms > 0 and result.gpus == min(2, gpu_count())


@pytest.mark.parametrize(
    "command", [("compare", "--variants", "ring-mma-cupy"), ("fuzz", "ring-mma-cupy", "--examples", "3", "--seed", "1")]
)
def test_commands_run_plans_of_several_devices(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]):
    asked = ("--operation", "ring-attention", "--device", "gpu")
    sizes = () if command[0] == "fuzz" else ("--devices", "2", "--dtype", "bfloat16", "--head-dim", "128")
    assert main([*command, *asked, *sizes]) == 0, capsys.readouterr()


@two_gpus
def test_two_gpus_are_faster_than_one():
    """In one of a few tries: others may use the GPUs meanwhile."""
    variant = discover().registry.get("ring-mma-cupy")
    ratios = []
    for _ in range(3):
        times = []
        for devices, order in ((1, "contiguous"), (2, "zigzag")):
            problem = ring(devices, order, "causal", 16384, heads=32)  # each launch fills a GPU several times
            settings = RunSettings(effort=QUICK)
            (row,) = bench_on_gpu([variant], problem, settings, libraries=False, step=lambda _: None).rows
            assert row.verdict == "pass", row.reason
            times.append(row.time_ms)
        ratios.append(times[0] / times[1])
        if ratios[-1] > 1.5:
            return
    pytest.fail(f"speed of two GPUs by that of one: {ratios}")
