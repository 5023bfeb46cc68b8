"""What a worker that times keeps from one task to the next."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import harness.gpu.spread as spread
from harness.execution.cluster.worker_side import end_all
from harness.execution.timings import Effort
from harness.gpu.contenders import INPUT_SETS, InputSets
from harness.gpu.spread import Timing, inputs_here, time_on_gpu
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles(False)

PROBLEM = Problem(heads=1, q_len=5, kv_len=7, head_dim=8)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch):
    """What was drawn, in order."""
    said: list[tuple[Problem, str, int]] = []
    draw = InputSets.draw

    def noted(problem: Problem, regime: str, seed: int) -> InputSets:
        said.append((problem, regime, seed))
        return draw(problem, regime, seed)

    monkeypatch.setattr(InputSets, "draw", staticmethod(noted))
    yield said
    end_all()


def test_inputs_and_their_answers_are_kept_until_others_are_asked_for(drawn: list):
    first = inputs_here(PROBLEM, "normal", 3)
    assert inputs_here(Problem(heads=1, q_len=5, kv_len=7, head_dim=8), "normal", 3) is first
    assert len(first.values) == len(first.spots) == INPUT_SETS
    others = [(Problem(heads=1, q_len=5, kv_len=7, head_dim=8, softcap=2.0), "normal", 3), (PROBLEM, "normal", 4)]
    for other in others:
        inputs_here(*other)
    assert inputs_here(PROBLEM, "normal", 3) is not first
    assert drawn == [(PROBLEM, "normal", 3), *others, (PROBLEM, "normal", 3)]


def test_the_final_of_a_tuning_is_timed_on_what_the_heat_was(drawn: list, monkeypatch: pytest.MonkeyPatch):
    used = []

    def bench_on_gpu(variants, problem, *, regime, seed, effort, libraries, step, draw):
        used.append(draw(problem, regime, seed))
        return SimpleNamespace(rows=variants)

    monkeypatch.setattr(spread, "bench_on_gpu", bench_on_gpu)
    monkeypatch.setattr(spread, "_is_broken", lambda: False)
    timing = Timing(PROBLEM, "normal", 0, Effort(), libraries=False)
    for tiles in ("heat", "final"):
        assert time_on_gpu([tiles], timing).rows == [tiles]
    assert used[0] is used[1] and len(drawn) == 1
