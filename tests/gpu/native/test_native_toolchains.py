"""Every language on the GPU of this machine: the same kernel as CUDA and as PTX text, and Numba's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cupy
import numpy as np
import pytest

from harness import Buffer, Launch, Plan, Problem, PtxKernel, Variant
from harness.compilers import compile_kernel
from harness.execution.comparison import compare
from harness.execution.run_settings import RunSettings
from harness.gpu.executor import GpuExecutor
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.support.errors import CompileError, PlanError

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"

pytestmark = pytest.mark.skipif(not GpuExecutor.available(), reason="CuPy finds no GPU on this machine")


@pytest.fixture(scope="module")
def executor() -> GpuExecutor:
    return GpuExecutor()


def registered(name: str) -> Variant:
    return discover([PLUGINS / "one_thread_per_row.py", PLUGINS / "one_key.py"]).registry.get(name)


def as_ptx(kernel: object, executor: GpuExecutor) -> PtxKernel:
    compiled = compile_kernel(kernel, (), executor.device.arch)
    return PtxKernel(compiled.ptx, compiled.entry)


def in_ptx(variant: Variant, executor: GpuExecutor) -> Variant:
    """The variant with its one RawKernel as the PTX that NVRTC makes of it."""

    def plan(problem: Problem) -> Plan:
        original = variant.plan(problem)
        (launch,) = original.launches
        return replace(original, launches=(replace(launch, kernel=as_ptx(launch.kernel, executor)),))

    return replace(variant, name="in-ptx", backend="ptx", plan=plan)


def verdict_of(variant: Variant, problem: Problem, executor: GpuExecutor) -> tuple[str, str | None]:
    (row,) = compare([variant], problem, executor, RunSettings(seed=3)).rows
    assert row.verdict != "pass" or row.time_ms > 0
    return row.verdict, row.reason


@pytest.mark.parametrize("name", ["one-thread-per-row", "fa2-cupy", "fa2-numba"])
def test_the_ecosystems_own_kernels(executor: GpuExecutor, name: str):
    problem = Problem(heads=2, q_len=100, kv_len=130, head_dim=32, mask="causal")
    assert verdict_of(registered(name), problem, executor) == ("pass", None)


def test_ptx_text(executor: GpuExecutor):
    problem = Problem(heads=2, q_len=100, kv_len=130, head_dim=32, mask="causal")
    assert verdict_of(in_ptx(registered("one-thread-per-row"), executor), problem, executor) == ("pass", None)
    one_key = Problem(heads=2, q_len=1, kv_len=1, head_dim=16)
    assert verdict_of(registered("one-key"), one_key, executor) == ("pass", None)


# --- launches --------------------------------------------------------------------------------------------------------

SMALL = Problem(heads=1, q_len=4, kv_len=4, head_dim=4)

COPY = """
extern "C" __global__ void copy(const float* from, float* to, int n)
{
    extern __shared__ float staged[];
    __shared__ float first;
    int i = threadIdx.x;
    if (i < n) { staged[i] = from[i]; to[i] = staged[i]; }
    if (i == 0) { first = to[0]; to[0] = first; }
}
"""


def run(executor: GpuExecutor, kernel: object, *args: object, shared_bytes: int = 256) -> np.ndarray:
    scratch = Buffer("scratch", (8,), "float32")
    plan = Plan((Launch(kernel, (1,), (32,), args, shared_bytes),), (scratch,))
    return executor.run(SMALL, plan, draw_inputs(SMALL)).outputs["O"]


def test_more_than_48_kilobytes_of_shared_memory(executor: GpuExecutor):
    copy, args = as_ptx(cupy.RawKernel(COPY, "copy"), executor), ("Q", "O", np.int32(16))
    most = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    assert np.array_equal(run(executor, copy, *args, shared_bytes=most - 1024), draw_inputs(SMALL)["Q"])
    with pytest.raises(PlanError, match=r"copy asks for .* dynamic shared memory besides \d+ static"):
        run(executor, copy, *args, shared_bytes=most + 1024)
    # The executor stays usable.
    assert np.array_equal(run(executor, copy, *args), draw_inputs(SMALL)["Q"])


def test_ptx_that_does_not_run_is_said(executor: GpuExecutor):
    copy = as_ptx(cupy.RawKernel(COPY, "copy"), executor)
    with pytest.raises(CompileError, match="the PTX defines copy, not copies"):
        run(executor, replace(copy, name="copies"))
    with pytest.raises(CompileError, match="its PTX is for sm_900, and is to run on"):
        run(executor, replace(copy, text=copy.text.replace(f".target {executor.device.arch}", ".target sm_900")))
    with pytest.raises(CompileError, match="'no' is not an instruction of PTX"):
        run(executor, replace(copy, text=copy.text.replace("ret;", "no.such.opcode;")), "Q", "O", np.int32(16))
    with pytest.raises(CompileError, match="kernel copy: the driver does not take its PTX"):
        run(executor, replace(copy, text=copy.text.replace("ret;", "ret.such;")), "Q", "O", np.int32(16))
    assert np.array_equal(run(executor, copy, "Q", "O", np.int32(16)), draw_inputs(SMALL)["Q"])


COUNTING = r"""
__device__ unsigned counter;
extern "C" __global__ void count(unsigned* out, int place) { out[place] = atomicAdd(&counter, 1); }
extern "C" __global__ void add() { counter += 100; }
"""


@pytest.mark.parametrize("language", ["cupy", "ptx"])
def test_kernels_of_one_text_share_its_variables(language: str):
    """As on the emulator, from launch to launch and from run to run of a plan."""
    executor = GpuExecutor(timed=False)

    def launch(name: str, *args: object) -> Launch:
        kernel = cupy.RawKernel(COUNTING, name)  # another object each time
        if language == "ptx":
            kernel = PtxKernel(compile_kernel(kernel, (), executor.device.arch).ptx, name)
        return Launch(kernel, (1,), (1,), args)

    plan = Plan((launch("count", "O", np.int32(0)), launch("add"), launch("count", "O", np.int32(1))))
    problem = Problem(heads=1, q_len=1, kv_len=1, head_dim=2)
    runs = [executor.run(problem, plan, draw_inputs(problem)).outputs["O"].reshape(-1).view(np.uint32) for _ in "12"]
    first, second, third, fourth = np.concatenate(runs).tolist()
    assert (second - first, third - second, fourth - third) == (101, 1, 101)
