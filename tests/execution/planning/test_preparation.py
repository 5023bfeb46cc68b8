"""Kernels are compiled ahead, of as many variants at once as keep every compiler busy."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from harness.compilers.ptx_text import PtxKernel
from harness.execution.planning.preparation import Preparation
from harness.execution.protocol import Device, Execution
from harness.model.plan import Launch, Plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles(False)

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
MEETING = 3 * CORES
"""Variants that wait for each other: a compiler per core, one per language, and who waits for either."""


PLAN = Plan((Launch(PtxKernel(".entry k() { ret; }", "k"), (1,), (32,), ()),))


def variants(number: int) -> list[Variant]:
    return [Variant(name=f"v{place}", backend="ptx", plan=lambda problem: PLAN) for place in range(number)]


class Waiting:
    """Is ready with a variant when it is asked to prepare as many as meet."""

    device = Device("emulator", "waits", "sm_90")

    def __init__(self) -> None:
        self.meeting = threading.Barrier(MEETING, timeout=20)
        self.prepared = 0

    def prepare(self, problem: BaseProblem, plan: Plan) -> None:
        self.meeting.wait()
        self.prepared += 1

    def run(self, problem: BaseProblem, plan: Plan, inputs: Any) -> Execution:
        raise AssertionError


def test_variants_that_wait_for_a_compiler_do_not_keep_others_from_theirs() -> None:
    executor = Waiting()
    meeting = variants(MEETING)
    with Preparation(meeting, Problem(), executor) as preparation:
        for variant in meeting:
            preparation.wait(variant)
    assert executor.prepared == MEETING


class InTurn:
    """Is ready with a plan when that is said."""

    device = Device("emulator", "takes turns", "sm_90")

    def __init__(self, plans: list[Plan]) -> None:
        self.ready = {id(plan): threading.Event() for plan in plans}

    def prepare(self, problem: BaseProblem, plan: Plan) -> None:
        assert self.ready[id(plan)].wait(20)

    def run(self, problem: BaseProblem, plan: Plan, inputs: Any) -> Execution:
        raise AssertionError


def test_who_is_ready_first_comes_first() -> None:
    plans = [Plan(PLAN.launches) for _ in range(3)]
    three = [
        Variant(name=f"v{place}", backend="ptx", plan=lambda _, plan=plan: plan) for place, plan in enumerate(plans)
    ]
    executor = InTurn(plans)
    with Preparation(three, Problem(), executor) as preparation:
        came = preparation.as_prepared()
        for place in (2, 0, 1):
            executor.ready[id(plans[place])].set()
            assert next(came) is three[place]
        assert list(came) == []


def test_who_need_not_be_prepared_come_in_their_order() -> None:
    three = variants(3)
    with Preparation(three, Problem(), None) as preparation:
        assert list(preparation.as_prepared()) == three
