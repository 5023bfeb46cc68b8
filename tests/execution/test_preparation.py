"""Kernels are compiled ahead, of as many variants at once as keep every compiler busy."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from harness.compilers.ptx_text import PtxKernel
from harness.execution.preparation import Preparation
from harness.execution.protocol import Device, Execution
from harness.model.plan import Launch, Plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles(False)

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
MEETING = 3 * CORES
"""Variants that wait for each other: a compiler per core, one per language, and who waits for either."""


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
    plan = Plan((Launch(PtxKernel(".entry k() { ret; }", "k"), (1,), (32,), ()),))
    variants = [Variant(name=f"waits-{number}", backend="ptx", plan=lambda problem: plan) for number in range(MEETING)]
    with Preparation(variants, Problem(), executor) as preparation:
        for variant in variants:
            preparation.wait(variant)
    assert executor.prepared == MEETING
