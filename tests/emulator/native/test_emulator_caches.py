"""The caches behind a whole plan, on kernels whose traffic was worked out by hand."""

from __future__ import annotations

import cupy
import numpy as np
import pytest

from harness.compilers.ptxas import find_ptxas
from harness.emulator.emulated_gpu import CODE
from harness.emulator.executor import EmulatorExecutor
from harness.execution.protocol import Execution
from harness.execution.run_settings import CacheModel, RunSettings
from harness.execution.traffic.counts import CacheTraffic
from harness.model.operation import draw_inputs
from harness.model.plan import Buffer, Launch, Plan
from harness.operations.attention.problem import Problem
from harness.support.errors import PlanError
from harness.support.gpu_data_sheets import GPUS

pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed: no residency, so no caches")

PROBLEM = Problem(heads=1, q_len=256, kv_len=256)
BYTES = 256 * 64 * 4
"""Of Q, and of O."""
SOURCE = r"""
// Block b copies its 8192 elements, which are 32 KiB, `times` times.
extern "C" __global__ void copy(const float* from, float* to, int times) {
    for (int n = 0; n < times; ++n) {
        for (int i = threadIdx.x; i < 8192; i += 128) {
            to[8192 * blockIdx.x + i] = from[8192 * blockIdx.x + i] + n;
        }
        __syncthreads();
    }
}
"""


def copy(source: str, target: str, times: int = 1, shared_bytes: int = 0) -> Launch:
    return Launch(cupy.RawKernel(SOURCE, "copy"), (2,), (128,), (source, target, np.int32(times)), shared_bytes)


def run(*launches: Launch, model: CacheModel, threads: int = 1) -> Execution:
    plan = Plan(launches, (Buffer("S", (256 * 64,), "float32"),))
    return EmulatorExecutor(RunSettings(threads=threads, caches=model)).run(PROBLEM, plan, draw_inputs(PROBLEM))


def rows(execution: Execution, launch: int) -> dict[str, tuple[int, int, int, int]]:
    """Buffer -> bytes read and written at L2, and from and to DRAM."""
    report = execution.launches[launch].caches
    assert report is not None
    return {
        r.buffer: (r.l2_read_bytes, r.l2_write_bytes, r.dram_read_bytes, r.dram_write_bytes)
        for r in report.buffers
        if r.buffer != CODE
    }


H200 = CacheModel(GPUS["h200"])


def test_a_plan_finds_what_its_earlier_launches_left_in_l2():
    execution = run(copy("Q", "S"), copy("S", "O"), model=H200)
    assert rows(execution, 0) == {"Q": (BYTES, 0, BYTES, 0), "S": (0, BYTES, 0, 0)}
    assert rows(execution, 1) == {"S": (BYTES, 0, 0, 0), "O": (0, BYTES, 0, 0)}
    report = execution.launches[1].caches
    assert report is not None
    assert report.dirty_bytes == 2 * BYTES


def test_unless_every_launch_begins_with_empty_caches():
    execution = run(copy("Q", "S"), copy("S", "O"), model=CacheModel(GPUS["h200"], flushed=True))
    assert rows(execution, 1) == {"S": (BYTES, 0, BYTES, 0), "O": (0, BYTES, 0, 0)}
    report = execution.launches[1].caches
    assert report is not None
    assert report.dirty_bytes == BYTES


def test_l1_keeps_what_shared_memory_leaves_room_for():
    # An SM has 256 KiB for both. Each block reads 32 KiB and writes as many: more than 28 KiB, less than 224.
    roomy, crowded = (rows(run(copy("Q", "S", 5, size), model=H200), 0) for size in (0, 200 * 1024))
    assert roomy == {"Q": (BYTES, 0, BYTES, 0), "S": (0, 5 * BYTES, 0, 0)}
    assert crowded["S"] == roomy["S"]
    assert crowded["Q"][0] > 4.5 * BYTES
    assert crowded["Q"][2] == BYTES


def test_another_size_of_l2():
    small = CacheModel(GPUS["t4"], l2_bytes=BYTES // 4)
    execution = run(copy("Q", "S"), copy("Q", "O"), model=small)
    # Nothing of Q is left when it is read again, and what was stored has gone to DRAM but for the last of it.
    assert rows(execution, 1)["Q"] == (BYTES, 0, BYTES, 0)
    written = sum(row[3] for launch in (0, 1) for row in rows(execution, launch).values())
    report = execution.launches[1].caches
    assert report is not None
    assert written == 2 * BYTES - report.dirty_bytes
    assert 0 < report.dirty_bytes <= BYTES // 4


def test_every_launch_fetches_its_code():
    report = run(copy("Q", "S"), model=H200).launches[0].caches
    assert report is not None
    (code,) = (row for row in report.buffers if row.buffer == CODE)
    assert code == CacheTraffic(CODE, 0, 0, code.dram_read_bytes, 0)
    assert 2432 < code.dram_read_bytes < 20_000


def test_what_does_not_fit_the_gpu_is_refused():
    with pytest.raises(PlanError, match=r"kernel copy does not fit the T4: .* and 102400 bytes of shared memory"):
        run(copy("Q", "S", shared_bytes=100 * 1024), model=CacheModel(GPUS["t4"]))


def test_the_same_on_any_number_of_cores():
    launches = (copy("Q", "S", times=3), copy("S", "O"))
    one, three = (run(*launches, model=CacheModel(GPUS["l4"], 4096), threads=threads) for threads in (1, 3))
    assert [launch.caches for launch in one.launches] == [launch.caches for launch in three.launches]
