"""A planner process as the judge sees it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.execution.isolation import process
from harness.execution.isolation.process import end_planners
from harness.execution.isolation.variants import discover_isolated, prefetch_replies
from harness.execution.planning.variant_calls import make_plan
from harness.operations.attention.problem import Problem
from harness.support.errors import SandboxError

pytestmark = pytest.mark.compiles(False)

HOSTILE = Path(__file__).parents[2] / "plugins" / "hostile.py"
SMALL = Problem(heads=1, q_len=4, kv_len=6, head_dim=4)
ASKING = 4
SLOW_PLANS = """
import time

from harness import Variant


def plan(problem):
    end = time.process_time() + 1.5
    while time.process_time() < end:
        pass
    raise RuntimeError("planned")


def register(registry):
    for backend in ("cupy", "cute"):
        registry.add(Variant(name=f"slow-{backend}", plan=plan, backend=backend))
"""


def test_a_waiting_call_fails_when_planners_are_ended(monkeypatch: pytest.MonkeyPatch):
    variant = {each.name: each for each in discover_isolated([HOSTILE]).registry}["sleeps-in-plan"]
    planner = variant.plan.__self__.planner.process  # type: ignore[attr-defined]
    asking = threading.Semaphore(0)
    ask_planner = planner.ask

    def told(*what: Any, **said: Any) -> Any:
        asking.release()
        return ask_planner(*what, **said)

    monkeypatch.setattr(planner, "ask", told)

    def ask() -> None:
        with pytest.raises(SandboxError):
            make_plan(variant, SMALL)

    with ThreadPoolExecutor(ASKING) as threads:
        asked = [threads.submit(ask) for _ in range(ASKING)]
        for _ in range(ASKING):
            assert asking.acquire(timeout=60)
        time.sleep(0.3)  # one has the planner, and the others wait for it
        processes = planner.started
        began = time.monotonic()
        end_planners()
        assert time.monotonic() - began < 5
        for each in asked:
            each.result()
    assert planner.started == processes


@pytest.mark.parametrize(("backend", "told"), [("cupy", "no answer within 0.2 s"), ("cute", "planned")])
@pytest.mark.parametrize("at_once", [False, True])
def test_only_a_language_whose_plans_compile_may_plan_for_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, told: str, at_once: bool
):
    monkeypatch.setattr(process, "CALL_SECONDS", 0.2)
    plugin = tmp_path / "slow_plans.py"
    plugin.write_text(SLOW_PLANS)
    variant = discover_isolated([plugin]).registry.get(f"slow-{backend}")
    assert variant.supports(SMALL) is None  # the first request may import packages
    if at_once:
        prefetch_replies(variant, SMALL)
    with pytest.raises(SandboxError, match=told):
        make_plan(variant, SMALL)
