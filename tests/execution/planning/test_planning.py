from __future__ import annotations

import pytest
from numpy_executor import numpy_variant

from harness.execution.planning.variant_calls import claimed_traffic, make_plan, refusal_of
from harness.model.plan import Buffer, Plan
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.support.errors import PlanError, UnsupportedProblem, UsageError

PROBLEM = Problem(q_len=4, kv_len=4, head_dim=4)


def variant(**fields: object) -> Variant:
    return Variant(**({"name": "mine", "plan": lambda problem: Plan(())} | fields))


def test_a_refusal_carries_the_variants_reason():
    with pytest.raises(UnsupportedProblem) as caught:
        make_plan(variant(supports=lambda problem: "too\n  long"), PROBLEM)
    assert caught.value.reason == "too long"
    assert str(caught.value) == "mine does not support this problem: too long"
    assert isinstance(caught.value, UsageError)


def test_a_plan_is_checked():
    with pytest.raises(PlanError, match="two buffers named 'O'"):
        make_plan(variant(plan=lambda problem: Plan((), (Buffer("O", (1,), "float32"),))), PROBLEM)
    assert make_plan(numpy_variant("right"), PROBLEM).launches


def test_a_plan_is_told_the_architecture_if_it_takes_one():
    def plan(problem: Problem, arch: str = "default") -> Plan:
        if arch == "sm_70":
            raise UnsupportedProblem("mine", "needs sm_80")
        asked.append(arch)
        return Plan(())

    asked: list[str] = []
    for takes_arch in (True, False):
        for arch in ("sm_100a", None):
            make_plan(variant(plan=plan, takes_arch=takes_arch), PROBLEM, arch)
    assert asked == ["sm_100a", "default", "default", "default"]
    with pytest.raises(UnsupportedProblem, match="needs sm_80"):
        make_plan(variant(plan=plan, takes_arch=True), PROBLEM, "sm_70")


def test_what_a_variant_raises_has_its_place():
    with pytest.raises(PlanError, match=r"^plan\(\) failed: .*test_planning.py:\d+: ZeroDivisionError"):
        make_plan(variant(plan=lambda problem: 1 // 0), PROBLEM)
    with pytest.raises(PlanError, match=r"^supports\(\) failed: "):
        make_plan(variant(supports=lambda problem: 1 // 0), PROBLEM)
    with pytest.raises(PlanError, match=r"^claim\(\) failed: "):
        claimed_traffic(variant(claim=lambda problem: 1 // 0), PROBLEM)


def test_claims():
    assert claimed_traffic(variant(), PROBLEM) is None
    assert claimed_traffic(variant(claim=lambda problem: Traffic(1, 2)), PROBLEM) == Traffic(1, 2)
    with pytest.raises(PlanError, match="returned a int"):
        claimed_traffic(variant(claim=lambda problem: 3), PROBLEM)


def test_a_variant_of_another_operation_is_refused_with_the_option_that_selects_it():
    other = Variant(name="x", plan=lambda problem: Plan(()), operation="softmax")
    assert refusal_of(other, Problem()) == "it computes softmax, not attention; add --operation softmax"
