"""Outputs full of NaN: what nobody stored is told from what was stored, but came out of unwritten memory."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emulators import emulator
from numpy_executor import NumpyExecutor, NumpyKernel

from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import Instruments
from harness.execution.attempt import Attempt, attempt
from harness.execution.judging.question import Question
from harness.execution.protocol import Executor
from harness.model.cases.case import Case
from harness.model.plan import Buffer, Launch, Plan
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.examining.examination import examine

pytestmark = pytest.mark.compiles

PROBLEM = Problem(heads=1, q_len=8, kv_len=8, head_dim=4)
SOURCE = r"""
extern "C" __global__ void k(const float* V, const float* S, float* O, int which) {
    __shared__ float s[32];
    int t = threadIdx.x;
    if (which == 0 && t < 29) O[t] = V[t];
    if (which == 1) { if (t != 5) s[t] = V[t]; __syncthreads(); O[t] = s[t]; }
    if (which == 2) O[t] = S[t] * V[t];
    if (which == 3 && t != 7) O[t] = O[t] + V[t];
    if (which == 4) {
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[t]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(&V[t]));
        O[t] = s[t];
        asm volatile("cp.async.wait_all;");
    }
}
"""
STORED = (
    r"^{} of 32 elements of O were written with bits of unwritten memory, the first at .*{}: shared memory or "
    r"scratch was read before .*, or before an asynchronous copy was waited for; --sanitize names the line$"
)
NEVER = r"^{} of 32 elements of O were never written, the first at .*{}$"
SAID = {
    0: NEVER.format(3, "row 7, column 1"),
    1: STORED.format(1, "row 1, column 1"),
    2: STORED.format(32, "row 0, column 0"),
    3: NEVER.format(1, "row 1, column 3"),
    4: STORED.format(32, "row 0, column 0"),
}
"""By `which`: three elements that nobody wrote; shared memory, scratch and O itself read before; a copy in flight."""


def variant(which: int) -> Variant:
    import cupy

    launch = Launch(cupy.RawKernel(SOURCE, "k"), (1,), (32,), ("V", "S", "O", np.int32(which)))
    return Variant(name="planted", plan=lambda problem: Plan((launch,), (Buffer("S", (32,), "float32"),)))


def tried(which: int, executor: Executor) -> Attempt:
    return attempt(variant(which), PROBLEM, executor, question=Question.draw(PROBLEM))


@pytest.mark.parametrize("which", SAID)
def test_what_is_said_of_outputs_that_look_as_they_were_given(which: int) -> None:
    done = tried(which, emulator())
    assert done.verdict == "fail" and done.execution is not None
    assert re.search(SAID[which], done.reason or ""), done.reason
    assert done.execution.unwritten is not None
    assert int(done.execution.unwritten["O"].sum()) == (int(SAID[which][1]) if "never" in SAID[which] else 0)


def test_the_sanitizer_says_the_same() -> None:
    executor = EmulatorExecutor(instruments=Instruments(sanitizer=True))
    for which in (0, 1):
        assert tried(which, executor).reason == tried(which, emulator()).reason


def test_a_campaign_sees_the_same() -> None:
    patterns = {}
    for which in (0, 1):
        finding = examine(Case(PROBLEM, "normal", 0), variant(which), emulator()).finding
        assert finding is not None
        patterns[which] = finding.pattern or ""
    assert "never written" in patterns[0] and "never written" not in patterns[1]


@pytest.mark.compiles(False)
def test_where_nobody_looked_both_are_said() -> None:
    launch = Launch(NumpyKernel("none", lambda problem, arrays: None), (1,), (1,), ("O",))
    silent = Variant(name="silent", backend="numpy", plan=lambda problem: Plan((launch,)))
    done = attempt(silent, PROBLEM, NumpyExecutor(), question=Question.draw(PROBLEM))
    assert "32 of 32 elements of O were never written, or with bits of unwritten memory" in (done.reason or "")


def test_a_right_output_is_not_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = emulator()
    runs: list[object] = []
    real = executor._launch_all
    monkeypatch.setattr(executor, "_launch_all", lambda *args: runs.append(1) or real(*args))
    assert tried(0, executor).verdict == "fail" and len(runs) == 2
    runs.clear()
    launch = Launch(variant(0).plan(PROBLEM).launches[0].kernel, (1,), (32,), ("V", "V", "O", np.int32(2)))
    executor.run(PROBLEM, Plan((launch,)), Question.draw(PROBLEM).inputs)
    assert len(runs) == 1
