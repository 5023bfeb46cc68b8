"""What an attempt is going to ask of a variant's process is asked in one message, and answered as if asked singly."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.execution.isolation.process import PlannerProcess
from harness.execution.isolation.variants import discover_isolated, prefetch_replies
from harness.execution.planning.tiles import tile_of, with_tile
from harness.execution.planning.variant_calls import claimed_traffic, declared_tiles, make_plan, refusal_of
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.support.errors import PlannerDied, UnsupportedProblem

pytestmark = pytest.mark.compiles(False)

PLUGINS = Path(__file__).parents[2] / "plugins"
SMALL = Problem(heads=1, q_len=4, kv_len=6, head_dim=4)


@pytest.fixture(scope="module")
def variants() -> dict[str, Variant]:
    return {each.name: each for each in discover_isolated([PLUGINS / "hostile.py"]).registry}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What planners are asked, in order."""
    found: list[str] = []
    ask = PlannerProcess.ask

    def counted(self: PlannerProcess, what: str, *arguments: object, **said: object) -> object:
        found.append(what)
        return ask(self, what, *arguments, **said)

    monkeypatch.setattr(PlannerProcess, "ask", counted)
    return found


def said_of(variant: Variant, problem: Problem) -> tuple[object, ...]:
    plan = make_plan(variant, problem)
    launches = [(step.kernel_name, step.grid, step.block, step.shared_bytes, len(step.args)) for step in plan.launches]
    return launches, plan.buffers, tile_of(variant, problem)


def test_one_message_says_what_three_would(variants: dict[str, Variant], asked: list[str]):
    variant = variants["fa2-cupy"]
    singly = said_of(variant, SMALL)
    assert asked == ["supports", "plan", "tiles"]
    asked.clear()
    prefetch_replies(variant, SMALL)
    assert said_of(variant, SMALL) == singly
    assert asked == ["attempt"]
    assert claimed_traffic(variant, SMALL) is not None
    assert asked == ["attempt", "claim"]  # a campaign holds no bytes


def test_a_plan_is_made_for_whoever_asks(variants: dict[str, Variant], asked: list[str]):
    variant = variants["fa2-cupy"]
    prefetch_replies(variant, SMALL)
    first, second = make_plan(variant, SMALL), make_plan(variant, SMALL)
    assert first is not second and isinstance(second, Plan)
    assert asked == ["attempt", "plan"]


def test_what_was_said_is_of_that_problem_alone(variants: dict[str, Variant], asked: list[str]):
    variant, longer = variants["fa2-cupy"], Problem(heads=1, q_len=400, kv_len=6, head_dim=4)
    prefetch_replies(variant, SMALL)
    grid = make_plan(variant, longer).launches[0].grid
    prefetch_replies(variant, longer)
    assert make_plan(variant, longer).launches[0].grid == grid
    assert asked == ["attempt", "supports", "plan", "attempt"]


def test_a_tile_that_is_wanted_goes_along(variants: dict[str, Variant], asked: list[str]):
    variant = variants["fa2-cupy"]
    other = declared_tiles(variant, SMALL)[1]
    planned = variant.plan(SMALL, other).launches[0]
    asked.clear()
    prefetch_replies(variant, SMALL, other)
    chosen = with_tile(variant, other)
    step = make_plan(chosen, SMALL).launches[0]
    assert (step.grid, step.block, step.shared_bytes) == (planned.grid, planned.block, planned.shared_bytes)
    prefetch_replies(variant, SMALL, {"Br": 7})
    with pytest.raises(UnsupportedProblem, match="no tile with Br=7"):
        make_plan(with_tile(variant, {"Br": 7}), SMALL)
    assert asked == ["attempt", "attempt"]
    assert claimed_traffic(chosen, SMALL) == variant.claim(SMALL, other)


def test_a_problem_that_is_refused_is_not_planned(variants: dict[str, Variant], asked: list[str]):
    masked = Problem(heads=1, q_len=4, kv_len=6, head_dim=4, mask="window:2")
    variant = variants["ends-in-plan"]
    assert "window" not in variant.takes
    prefetch_replies(variant, masked)
    assert "does not support window" in (refusal_of(variant, masked) or "")
    assert asked == ["attempt"]


@pytest.mark.parametrize("place", ["supports", "tiles", "plan"])
def test_who_ends_the_process_is_told_by_the_question(variants: dict[str, Variant], asked: list[str], place: str):
    variant = variants[f"ends-in-{place}"]
    prefetch_replies(variant, SMALL)
    with pytest.raises(PlannerDied, match=rf"^{place}\(\): .* exit status 0"):
        said_of(variant, SMALL)
    asked.clear()
    prefetch_replies(variant, SMALL)
    assert asked == []


def test_who_ends_the_process_in_a_claim_is_told_by_it(variants: dict[str, Variant]):
    variant = variants["ends-in-claim"]
    prefetch_replies(variant, SMALL)
    said_of(variant, SMALL)
    with pytest.raises(PlannerDied, match=r"^claim\(\): .* exit status 0"):
        claimed_traffic(variant, SMALL)
