"""Runs of stamped kernels: on the emulator, which plays the GPU, and as the driver is asked for them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from fake_driver import FakeDriver

from harness import PtxKernel
from harness.compilers.native_gpu import NativeGpu
from harness.execution.planning.variant_calls import make_plan
from harness.execution.schedule.warp_timestamps import STAMP, StampedLaunch, StampedRun
from harness.gpu import stamped_run as module
from harness.gpu.context import bind_stamped
from harness.gpu.stamped_run import stamped_run, stamps_per_warp
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Launch, Plan
from harness.operations.attention.problem import Problem
from harness.ptx.timestamps import ARRIVES, BEGINS, ENDS, LEAVES
from harness.text.stamp_trace import render_stamp_trace
from tests.emulators import emulator
from tests.gpu.emulated_context import EmulatedContext
from tests.text.trace_event_format import require_valid

SMALL = Problem(heads=1, q_len=256, kv_len=64, head_dim=32)


@pytest.mark.parametrize("name", ["three-pass-cupy", "fa2-numba"])
def test_a_variant_stamped_gives_its_answer_and_a_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: list[EmulatedContext] = []

    def context() -> EmulatedContext:
        contexts.append(EmulatedContext())
        return contexts[-1]

    monkeypatch.setattr(module, "GpuContext", context)
    variant = discover().registry.get(name)
    plan, inputs = make_plan(variant, SMALL), draw_inputs(SMALL, "normal", 0)
    run = stamped_run(variant.name, SMALL, plan, inputs)
    expected = emulator().run(SMALL, plan, inputs).outputs["O"]
    assert np.array_equal(contexts[0].arrays["O"][1].view(np.float32).reshape(expected.shape), expected)
    assert [launch.kernel for launch in run.launches] == [launch.kernel_name for launch in plan.launches]
    for launch in run.launches:
        kinds = launch.warp_timestamps["kind"]
        assert (kinds[:, :, 0] == BEGINS).all() and (kinds[:, :, -1] == ENDS).all()
    kinds = run.launches[0].warp_timestamps["kind"][0, 0]
    assert (kinds == ARRIVES).sum() == (kinds == LEAVES).sum() > 2
    text, left_out = render_stamp_trace(run, 100_000)
    document = json.loads(text)
    require_valid(document)
    assert left_out is None
    assert {event["name"] for event in document["traceEvents"] if event["ph"] == "X"} >= {"runs", "barrier"}
    part, left_out = render_stamp_trace(run, 100)
    require_valid(json.loads(part))
    assert left_out is not None and len(part) < len(text)
    assert left_out == json.loads(part)["otherData"]["blocks"]


def test_real_multiprocessors_and_microseconds() -> None:
    rows = [(5000, 7, BEGINS), (5500, 7, ARRIVES), (7250, 7, LEAVES), (9000, 7, ENDS)]
    later = [(6000, 3, BEGINS), (0, 0, 0), (0, 0, 0), (6001, 3, ENDS)]
    stamps = np.array([[rows], [later]], STAMP)
    text, _ = render_stamp_trace(
        StampedRun("v", "p", "a GPU", (StampedLaunch("k", (2, 1, 1), (32, 1, 1), stamps),)), 99
    )
    document = json.loads(text)
    require_valid(document)
    found = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in document["traceEvents"] if e["ph"] == "X"]
    assert found[0] == (0, "k", 0.0, 4.0)
    assert found[1:3] == [(8, "runs", 0.0, 0.5), (8, "barrier", 0.5, 1.75)]
    assert found[4][:3] == (4, "runs", 1.0)
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert names == ["launches", "SM 3", "SM 7"]


TEXT = """.version 8.0
.target sm_90
.address_size 64
.visible .entry first(
.param .u64 first_param_0
)
{
ret;
}
.visible .entry second(.param .u64 second_param_0) { ret; }
"""


class Array:
    """An array of CuPy's, as far as a launch looks at it."""

    def __init__(self, address: int) -> None:
        self.data = type("Data", (), {"ptr": address})
        self.dtype, self.shape = np.dtype("float32"), (4,)
        self.flags = SimpleNamespace(c_contiguous=True)


def test_the_driver_is_given_one_module_with_all_its_kernels_stamped() -> None:
    driver = FakeDriver()
    gpu = NativeGpu(driver, None, "a GPU", "sm_90")
    launches = [Launch(PtxKernel(TEXT, name), (2,), (64,), ("A",)) for name in ("first", "second")]
    calls = bind_stamped(launches, {"A": Array(256)}, [Array(512), Array(1024)], gpu, 8)
    for call in calls:
        call()
    (_, image), *launched = driver.calls
    assert image.count(b"attention_sandbox_stamps];") == 2
    assert [(name, args) for name, _, _, args, *_ in launched] == [("first", (256, 512)), ("second", (256, 1024))]


def test_large_grids_have_room_for_fewer_stamps() -> None:
    def plan(blocks: int) -> Plan:
        return Plan((Launch(PtxKernel(TEXT, "first"), (blocks,), (256,), ("Q",)),))

    assert stamps_per_warp(plan(1)) == 1024
    assert stamps_per_warp(plan(4096)) == 128
    assert stamps_per_warp(plan(10_000_000)) == 4
