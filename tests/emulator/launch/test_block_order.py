"""Blocks that wait for each other: they take turns, on any number of cores, as far as a GPU holds them at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trace_recorder import Recorder

from harness.emulator.abi import layout as at
from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import Instruments
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.run_settings import RunSettings
from harness.model.operation import draw_inputs
from harness.model.plan import Buffer, Launch, Plan
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault
from tests.emulator.cuda_kernel import run

FLAG = """
extern "C" __global__ void k(volatile int* f) {
    if (blockIdx.x == 0) { while (f[1] == 0); f[0] = 7; } else f[1] = 1;
}
"""
MEETING = """
extern "C" __global__ void k(int* f, int* y) {
    __shared__ int s[64];
    int t = threadIdx.x, spins = 0;
    s[t] = blockIdx.x;
    for (int round = 1; round <= 3; ++round) {
        __syncthreads();
        if (t == 0) { __threadfence(); atomicAdd(f, 1); while (atomicAdd(f, 0) < round * gridDim.x) WAITING; }
        __syncthreads();
    }
    y[64 * blockIdx.x + t] = s[63 - t] + *(volatile int*)f + (spins < 0);
}
"""
"""Three barriers of the whole grid."""


@pytest.mark.parametrize("seed", [0, 5])
def test_a_block_waits_for_a_later_one_on_any_number_of_cores(seed: int) -> None:
    runs = [
        run(FLAG, {"F": np.zeros(4, np.int32)}, ("F",), (2, 1, 1), (1, 1, 1), threads=cores, seed=seed)
        for cores in (1, 2, 5)
    ]
    for after, counts in runs:
        assert after["F"].tolist() == [7, 1, 0, 0]
        assert counts.sites == runs[0][1].sites and counts.warp_instructions == runs[0][1].warp_instructions


def meet(blocks: int, waiting: str = "", **launch: Any) -> tuple[np.ndarray, Any]:
    """What 3 barriers of a grid leave behind, a row for each block, and the counts."""
    arrays = {"F": np.zeros(1, np.int32), "Y": np.zeros(64 * blocks, np.int32)}
    source = MEETING.replace("WAITING", waiting)
    launch = {"grid": (blocks, 1, 1), "block": (64, 1, 1), "threads": 2, **launch}
    after, counts = run(source, arrays, ("F", "Y"), **launch)
    return after["Y"].reshape(blocks, 64), counts


@pytest.mark.parametrize("cluster", [None, (2, 1, 1)])
def test_all_blocks_of_a_grid_meet(cluster: tuple[int, int, int] | None) -> None:
    """Each has its own shared memory and registers meanwhile."""
    expected = np.broadcast_to(np.arange(24)[:, None] + 3 * 24, (24, 64))
    found, counts = meet(24, cluster=cluster)
    assert np.array_equal(found, expected)
    assert meet(24, cluster=cluster, threads=1)[1].sites == counts.sites


def test_only_blocks_that_are_resident_together_take_turns() -> None:
    found, _ = meet(8, resident=lambda: 8)
    assert found.shape == (8, 64)
    words = r"block \(\d, 0, 0\), .*: 8 blocks wait in loops, and none makes progress \(.*\); the other 1 cannot start"
    with pytest.raises(KernelFault, match=words) as caught:
        meet(9, resident=lambda: 8)
    assert caught.value.kind == "step limit"


def test_a_loop_that_counts_is_suspended_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its registers are never the same again."""
    with pytest.raises(KernelFault, match="stopped after 2000000 instructions"):
        meet(2, waiting="++spins")
    monkeypatch.setattr(at, "PATIENCE_STEPS", 1 << 18)
    found, _ = meet(2, waiting="++spins")
    assert found[1].tolist() == [1 + 6] * 64


def test_who_listens_to_blocks_hears_of_each_once_it_has_ended() -> None:
    recorder = Recorder((0, 1000))
    meet(3, listener=recorder)
    assert sorted(recorder.blocks) == [0, 1, 2]
    assert all(any(kind == 1 for _, _, kind, _ in accesses) for accesses in recorder.blocks.values())


def test_a_block_that_waits_for_nobody_is_stopped() -> None:
    source = FLAG.replace("f[1] = 1", "f[2] = 1")
    with pytest.raises(KernelFault, match="waits in a loop, and no other block is left that could end the wait"):
        run(source, {"F": np.zeros(4, np.int32)}, ("F",), grid=(3, 1, 1), block=(1, 1, 1))


PROBLEM = Problem(heads=1, q_len=1, kv_len=1, head_dim=32)
SIGNALLED = """
extern "C" __global__ void k(volatile int* f, float* o) {
    if (blockIdx.x == 0) { while (f[0] != 1); __threadfence(); o[threadIdx.x] = 2; }
    else if (threadIdx.x == 0) f[0] = VALUE;
}
"""


def signalled(value: int) -> Variant:
    import cupy

    kernel = cupy.RawKernel(SIGNALLED.replace("VALUE", str(value)), "k")
    plan = Plan((Launch(kernel, (2,), (32,), ("flag", "O")),), (Buffer("flag", (1,), "int32"),))
    return Variant(name="signalled", plan=lambda problem: plan, backend="cupy")


def test_a_plan_whose_blocks_wait_for_each_other_is_sanitized_in_all_schedules() -> None:
    """The flag is scratch memory, which the waiting block reads before anybody has written it."""
    sanitizer, inputs = EmulatorSanitizer(RunSettings(step_limit=300_000)), draw_inputs(PROBLEM)
    done = attempt(signalled(1), PROBLEM, sanitizer.executor, inputs, sanitizer=sanitizer)
    assert done.error is None and done.execution is not None and done.findings is not None and done.note is None
    assert (done.execution.outputs["O"] == 2).all()
    assert {(finding.kind, finding.target) for finding in done.findings} == {("uninitialised read", "buffer flag")}


def test_a_loop_that_never_ends_is_a_fault_with_the_sanitizer_too() -> None:
    executor = EmulatorExecutor(RunSettings(step_limit=300_000), instruments=Instruments(sanitizer=True))
    done = attempt(signalled(3), PROBLEM, executor, draw_inputs(PROBLEM))
    assert isinstance(done.error, KernelFault) and done.error.kind == "step limit"
