"""A native run in the planner's process, with an executor that plays the GPU: outputs and times come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.execution.attempt import attempt
from harness.execution.isolation.native import IsolatedExecutor
from harness.execution.isolation.variants import discover_isolated
from harness.execution.judging.question import Question
from harness.execution.protocol import Device
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault

pytestmark = pytest.mark.compiles

GPU = Device("gpu", "a stand-in", "sm_90")
PLUGINS = Path(__file__).parents[2] / "plugins"
SMALL, LONG = (Problem(heads=1, q_len=4, kv_len=kv_len, head_dim=4) for kv_len in (6, 41))


@pytest.fixture(scope="module")
def variant() -> Variant:
    found = discover_isolated([PLUGINS / "one_thread_per_row.py"], "no_such_package_of_variants")
    return found.registry.get("one-thread-per-row")


def executor(monkeypatch: pytest.MonkeyPatch, **options: object) -> IsolatedExecutor:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return IsolatedExecutor(GPU, "fake_gpu:FakeGpu", **options)


def test_outputs_and_times_come_back_and_are_judged_here(variant: Variant, monkeypatch: pytest.MonkeyPatch):
    done = attempt(variant, SMALL, executor(monkeypatch), question=Question.draw(SMALL))
    assert (done.verdict, done.reason) == ("pass", None)
    assert done.execution is not None and done.execution.time_ms is not None
    assert done.execution.time_ms.median == 2.0 and done.execution.read_bytes is None
    assert set(done.execution.outputs) == {"O", "lse"}
    assert done.execution.outputs["O"].dtype == np.float32 and done.accuracy is not None
    untimed = executor(monkeypatch, timed=False)
    assert attempt(variant, SMALL, untimed, question=Question.draw(SMALL)).execution.time_ms is None


def test_a_fault_costs_its_process_and_the_next_run_meets_a_fresh_one(
    variant: Variant, monkeypatch: pytest.MonkeyPatch
):
    faulty = executor(monkeypatch, does="fault")
    error = attempt(variant, LONG, faulty, question=Question.draw(LONG)).error
    assert isinstance(error, KernelFault) and error.kind == "out of bounds" and "one_thread_per_row" in str(error)
    assert attempt(variant, SMALL, faulty, question=Question.draw(SMALL)).verdict == "pass"


@pytest.mark.parametrize(
    ("does", "words"), [("die", "exit status 0"), ("shorten", "bytes of O came back"), ("rename", "outputs ['P']")]
)
def test_what_does_not_come_back_as_it_has_to_is_an_error(
    variant: Variant, monkeypatch: pytest.MonkeyPatch, does: str, words: str
):
    done = attempt(variant, SMALL, executor(monkeypatch, does=does), question=Question.draw(SMALL))
    assert done.verdict == "error" and words in done.reason
