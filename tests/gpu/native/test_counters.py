"""On a GPU whose counters may be read: what Nsight Compute says of kernels whose accesses were counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import main
from harness.emulator.executor import EmulatorExecutor
from harness.gpu.executor import GpuExecutor
from harness.gpu.hardware_counters import Run, measure_hardware, profile
from harness.gpu.nsight_compute import Replay
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem
from harness.studies.traffic.measurement import measure_traffic
from harness.support.errors import CountersUnavailable

PLUGIN = Path(__file__).parents[2] / "plugins" / "unpadded_column.py"
SMALL = Problem(heads=1, q_len=64, kv_len=64)


def why_not() -> str | None:
    if not GpuExecutor.available():
        return "CuPy finds no GPU on this machine"
    try:
        profile([Run("column-cupy", SMALL)], ["dram__bytes_read.sum"], [PLUGIN])
    except CountersUnavailable as error:
        return str(error)
    return None


REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.mark.parametrize("backend", ["cupy", "numba"])
def test_a_sector_per_lane(backend: str):
    found = measure_hardware(Run(f"column-{backend}", SMALL), GpuExecutor().device, [PLUGIN])
    l1, l2, dram = found.levels
    assert (l1.read_bytes, l1.write_bytes) == (32 * 32, 128)
    assert (l2.read_bytes, l2.write_bytes) == (32 * 32, 128)
    assert dram.read_bytes is not None and dram.read_bytes >= 1024


ATOMICS = '''
import cupy
from harness.model.plan import Launch, Plan
from harness.model.variant import Variant

kernel = cupy.RawKernel(r"""
extern "C" __global__ void add(const float* Q, float* O) {
    atomicAdd(&O[2 * threadIdx.x], Q[threadIdx.x]);         // without its result
    O[0] = atomicAdd(&O[8 * threadIdx.x], Q[threadIdx.x]);  // with it
}
""", "add")


def register(registry):
    registry.add(Variant(name="add", plan=lambda problem: Plan((Launch(kernel, (1,), (64,), ("Q", "O")),))))
'''


def test_atomics_read_and_write(tmp_path: Path):
    plugin = tmp_path / "add.py"
    plugin.write_text(ATOMICS)
    variant = discover([plugin]).registry.get("add")
    counted = measure_traffic(variant, SMALL, EmulatorExecutor()).level("sectors")
    sectors = measure_hardware(Run("add", SMALL), GpuExecutor().device, [plugin]).levels[0]
    assert (sectors.read_bytes, sectors.write_bytes) == (counted.read_bytes, counted.write_bytes)


def test_what_a_launch_leaves_in_l2_is_read_again_or_not():
    """S and P of three passes fit into L2: launch by launch they come from DRAM, as a whole they do not."""
    run = Run("three-pass-cupy", Problem(heads=4, q_len=512, kv_len=512))
    metric = "dram__bytes_read.sum"
    launches = sum(launch.values[metric] or 0 for launch in profile([run], [metric])[0])
    (whole,) = profile([run], [metric], replay=Replay.PLAN)[0]
    scores_bytes = 4 * 512 * 512 * 4
    assert launches - (whole.values[metric] or 0) > scores_bytes


def test_the_command(capsys: pytest.CaptureFixture[str]):
    assert main(["traffic", "column-cupy", "--plugin", str(PLUGIN), "--seq-len", "64", "--device", "gpu"]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "WRONG: column-cupy" in captured.out and "Nsight Compute's counters on" in captured.out
