"""The program that ncu starts, without ncu: which plans it runs, on which inputs, and what it replies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.execution.protocol import Device
from harness.gpu import profiled_run
from harness.model.operation import draw_inputs
from harness.model.plan import Plan
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault

PLUGIN = Path(__file__).parents[1] / "plugins" / "unpadded_column.py"
PROBLEM = {"heads": 1, "q_len": 64, "kv_len": 64, "dtype": "float16"}


class Executor:
    """Notes what it is asked to run."""

    def __init__(self) -> None:
        self.device = Device("gpu", "stand-in", "sm_90")
        self.ran: list[tuple[Problem, Plan, dict[str, np.ndarray]]] = []
        self.fault: KernelFault | None = None

    def run(self, problem: Problem, plan: Plan, inputs: dict[str, np.ndarray]) -> None:
        if self.fault is not None:
            raise self.fault
        self.ran.append((problem, plan, inputs))


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Executor:
    found = Executor()

    def make(timed: bool, poison: bool) -> Executor:
        assert poison and not timed  # a profiler wants to see each launch once
        return found

    monkeypatch.setattr(profiled_run, "GpuExecutor", make)
    return found


def ask(folder: Path, *runs: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    defaults = {"operation": "attention", "problem": PROBLEM, "regime": "normal", "seed": 0, "tile": None}
    request, reply = folder / "request.json", folder / "reply.json"
    request.write_text(json.dumps({"plugins": [str(PLUGIN)], "runs": [defaults | run for run in runs]}))
    status = profiled_run.main(str(request), str(reply))
    return status, json.loads(reply.read_text())


def test_each_run_on_its_inputs(tmp_path: Path, executor: Executor):
    status, reply = ask(
        tmp_path, {"variant": "three-pass-numba"}, {"variant": "column-cupy", "regime": "uniform", "seed": 4}
    )
    assert (status, reply["error"]) == (0, None)
    assert reply["runs"] == [["three_pass_scores", "three_pass_softmax", "three_pass_output"], ["column"]]
    problem = Problem(**PROBLEM)
    for (ran, _, inputs), wanted in zip(executor.ran, (draw_inputs(problem), draw_inputs(problem, "uniform", 4))):
        assert ran == problem
        assert all(np.array_equal(inputs[name], wanted[name]) for name in "QKV")


def test_the_tile_that_was_asked_for(tmp_path: Path, executor: Executor):
    tile = {"Br": 32, "Bc": 32}
    assert ask(tmp_path, {"variant": "fa2-cupy", "tile": tile}, {"variant": "fa2-cupy"})[0] == 0
    grids = [plan.launches[0].grid for _, plan, _ in executor.ran]
    assert grids[0] == (1, 2, 1)
    assert "-DBR=32" in executor.ran[0][1].launches[0].kernel.options


def test_what_goes_wrong_is_the_reply(tmp_path: Path, executor: Executor):
    status, reply = ask(tmp_path, {"variant": "no-such"})
    assert status == 1
    assert "no variant 'no-such'" in reply["error"]
    executor.fault = KernelFault("trap", "kernel column: it fell")
    status, reply = ask(tmp_path, {"variant": "column-cupy"})
    assert (status, reply["error"]) == (1, "kernel column: it fell")
