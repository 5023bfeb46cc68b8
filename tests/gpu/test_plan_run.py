"""Launches and copies of several devices, on stand-ins for GPUs that do what events allow in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.gpu.executor import GpuExecutor
from harness.gpu.plan_devices import PlanDevices
from harness.gpu.plan_run import PlanRun
from harness.gpu.stage import GpuStage
from harness.gpu.stopwatch import Stopwatch
from harness.model.operation import draw_inputs
from harness.model.plan import Launch
from tests.gpu.fake_gpus import FakeEvent, FakeMachine, FakeStream
from tests.gpu.summing_plan import summing_plan, summing_problem, sums

DEVICES = 3
SEEDS = range(25)


def kernel(ms: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def with_time(body: Callable[..., None]) -> Callable[..., None]:
        body.ms = ms  # type: ignore[attr-defined]
        return body

    return with_time


@kernel(3.0)
def begin(K: np.ndarray, block: np.ndarray, other: np.ndarray, total: np.ndarray) -> None:
    block[...], other[...], total[...] = K, np.nan, 0


@kernel(3.0)
def add(block: np.ndarray, total: np.ndarray) -> None:
    total += block


@kernel(1.0)
def spoil(block: np.ndarray) -> None:
    block[...] = np.nan


@kernel(1.0)
def end(total: np.ndarray, O: np.ndarray) -> None:
    O[...] = total


KERNELS = {"begin": begin, "add": add, "spoil": spoil, "end": end}
PLAN = summing_plan(DEVICES, lambda name, buffers, device: Launch(KERNELS[name], (1,), (1,), buffers, device=device))
PROBLEM = summing_problem(DEVICES)


def on(monkeypatch: pytest.MonkeyPatch, machine: FakeMachine) -> GpuExecutor:
    monkeypatch.setattr("harness.gpu.executor.GpuContext", lambda: machine.contexts[0])
    return GpuExecutor()


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_the_sum_is_right_in_any_order_on_any_number_of_gpus(monkeypatch: pytest.MonkeyPatch, gpus: int):
    inputs = draw_inputs(PROBLEM)
    for seed in SEEDS:
        execution = on(monkeypatch, FakeMachine(gpus, seed)).run(PROBLEM, PLAN, inputs)
        np.testing.assert_allclose(execution.outputs["O"], sums(PROBLEM, inputs), rtol=1e-6)
        assert execution.outputs["O"].shape == PROBLEM.tensor("O").shape


@pytest.mark.parametrize("lost", ["wait_event", "record"])
def test_each_event_is_needed(monkeypatch: pytest.MonkeyPatch, lost: str):
    """Without any one of the waits of a run, or of the records, some order gives another sum, or none."""
    inputs, problem, plan = draw_inputs(PROBLEM), PROBLEM.sharing.held, PLAN
    buffers, holder = plan.all_buffers(problem), {"wait_event": FakeStream, "record": FakeEvent}[lost]
    right = getattr(holder, lost)

    def is_right(seed: int, left_out: int | None = None) -> tuple[bool, int]:
        """Whether the sum is right without this call of the method, and how many calls there are."""
        machine, calls = FakeMachine(DEVICES, seed), [0]
        arrays = {name: np.full(buffer.shape, np.nan, buffer.dtype) for name, buffer in buffers.items()}

        def upload() -> None:
            for name, values in PROBLEM.sharing.split(inputs).items():
                arrays[name][...] = values

        def some(self: Any, other: Any) -> None:
            calls[0] += 1
            if calls[0] - 1 != left_out:
                right(self, other)

        with monkeypatch.context() as patch:
            patch.setattr(holder, lost, some)
            first = machine.contexts[0].stream
            first.add(upload)
            PlanRun(PlanDevices(machine.contexts[0], DEVICES), plan, buffers, arrays).enqueue()
            found: list[np.ndarray] = []
            first.add(lambda: found.append(PROBLEM.sharing.join(arrays)["O"]))
            machine.run()
        return np.allclose(found[0], sums(PROBLEM, inputs)), calls[0]

    assert all(is_right(seed)[0] for seed in SEEDS)
    calls = is_right(0)[1]
    assert [call for call in range(calls) if all(is_right(seed, call)[0] for seed in SEEDS)] == []


@pytest.mark.parametrize(
    ("gpus", "copy_ms", "expected_ms"),
    [
        pytest.param(3, 2.0, 15.0, id="copies of 2 ms run beside launches of 3 ms"),
        pytest.param(3, 4.0, 17.0, id="copies take a millisecond longer"),
        pytest.param(1, 2.0, 45.0, id="devices share a GPU"),
    ],
)
def test_time_is_from_a_common_start_to_the_end_of_the_last_device(gpus: int, copy_ms: float, expected_ms: float):
    machine = FakeMachine(gpus, copy_ms=copy_ms)
    devices = PlanDevices(machine.contexts[0], DEVICES)
    contender = GpuStage(devices.first, PROBLEM, [draw_inputs(PROBLEM)], [PLAN], devices).bind(PLAN)
    stopwatch = Stopwatch(devices.first, devices.contexts[1:])
    stopwatch.cold_ms(lambda: contender.enqueue(0))
    assert stopwatch.cold_ms(lambda: contender.enqueue(0)) == expected_ms
    assert stopwatch.cold_ms(lambda: contender.enqueue(0, copies=False)) == (15.0 if gpus == 3 else 45.0)
    assert stopwatch.cold_ms(lambda: contender.enqueue(0, launches=False)) == 2 * copy_ms
