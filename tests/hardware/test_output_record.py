"""Every variant's answers on the emulator against an H200's (scripts/record_outputs.py made the record)."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from harness.emulator.executor import EmulatorExecutor
from harness.model.discovery import discover
from tests.hardware.output_record import (
    CASES,
    Array,
    Recorded,
    as_array,
    bounds,
    inputs_of,
    is_exact,
    load,
    problem_of,
)
from tests.hardware.record import plan_hash

ENVIRONMENT, RECORDED_CASES, ANSWERS = load(Path(__file__).parent / "outputs_h200.zip")


@functools.cache
def bounds_of(case: int) -> dict[str, Array]:
    return bounds(problem_of(case), inputs_of(case))


def test_the_record_is_of_these_cases_and_variants():
    assert RECORDED_CASES == [[fields, regime] for fields, regime in CASES]
    wanted = {
        (case, variant.name)
        for case in range(len(CASES))
        for variant in discover().registry.select(None, "attention")
        if variant.supports(problem_of(case)) is None
    }
    assert {(answer.case, answer.variant) for answer in ANSWERS} == wanted, "run scripts/record_outputs.py on a GPU"


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer.case}-{answer.variant}")
def test_outputs_are_those_of_the_hardware(answer: Recorded):
    """Bit for bit where every exp is exact; else as far apart as ex2.approx allows."""
    problem, inputs = problem_of(answer.case), inputs_of(answer.case)
    plan = discover().registry.get(answer.variant).plan(problem)
    assert plan_hash(plan, problem) == answer.plan, (
        f"the record of {answer.variant} is stale: its kernels or launches have changed since {ENVIRONMENT['date']}; "
        "run scripts/record_outputs.py on a GPU"
    )
    outputs = EmulatorExecutor().run(problem, plan, inputs).outputs
    assert outputs.keys() == answer.outputs.keys()
    for name, ours in outputs.items():
        theirs = as_array(problem, name, answer.outputs[name])
        if is_exact(answer.case):
            assert ours.tobytes() == theirs.tobytes(), name
        else:
            assert not too_far(ours, theirs, bounds_of(answer.case)[name]), name


def too_far(ours: Array, theirs: Array, bound: Array) -> str:
    """The worst element, where one is beyond its bound."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore"):
        fine = (np.abs(a - b) <= bound) | (a == b) | (np.isnan(a) & np.isnan(b))
    return "" if fine.all() else f"{a[~fine][0]} where the GPU has {b[~fine][0]}"


def test_two_ulps_of_one_weight_pass_and_a_lost_key_does_not():
    problem, inputs = problem_of(9), inputs_of(9)
    assert CASES[9] == ({"q_len": 33, "kv_len": 70, "head_dim": 64}, "normal")
    q, k, v = (inputs[name].astype(np.float64) for name in ("Q", "K", "V"))
    p = np.exp(problem.tau * (q @ k.swapaxes(-1, -2)))
    answer = (p / p.sum(-1, keepdims=True)) @ v
    moved, lost = p.copy(), p.copy()
    moved[..., 3] *= 1 + 2**-22
    lost[..., 69] = 0
    bound = bounds(problem, inputs)["O"]
    assert not too_far((moved / moved.sum(-1, keepdims=True)) @ v, answer, bound)
    assert too_far((lost / lost.sum(-1, keepdims=True)) @ v, answer, bound)
