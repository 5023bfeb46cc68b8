"""Every variant's answers on the emulator against an H200's (scripts/record_outputs.py made the record)."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from emulators import emulator
from lanes import exhaustive_unless

from harness.execution.planning.variant_calls import refusal_of
from harness.model.discovery import discover
from scripts.recording.output_record import (
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
from scripts.recording.plan_hash import plan_hash

ENVIRONMENT, RECORDED_CASES, _answers = load(Path(__file__).parent / "outputs_h200.zip")
ANSWERS = {(answer.case, answer.variant): answer for answer in _answers}


@functools.cache
def bounds_of(case: int) -> dict[str, Array]:
    return bounds(problem_of(case), inputs_of(case))


FEW = ("fa1-numba", "fa2-cupy", "three-pass-cupy")
"""Variants whose answers the default lane has, as far as other tests of it compile the same kernels."""
ASKED = [
    (case, variant.name)
    for case in range(len(CASES))
    for variant in discover().registry
    if refusal_of(variant, problem_of(case)) is None
]


def recorded(case: int, variant: str, plan: str) -> Recorded:
    """What the GPU answered to this plan. Skips the test where the record has no answer to it."""
    fields, regime = CASES[case]
    answer = (
        ANSWERS.get((RECORDED_CASES.index([fields, regime]), variant)) if [fields, regime] in RECORDED_CASES else None
    )
    if answer is None:
        pytest.skip(f"{variant} is not recorded yet on this problem; run scripts/record_outputs.py on a GPU")
    if answer.plan != plan:
        pytest.skip(
            f"the kernels or launches of {variant} have changed since {ENVIRONMENT['date']}; "
            "run scripts/record_outputs.py on a GPU"
        )
    return answer


@pytest.mark.parametrize(
    ("case", "variant"),
    exhaustive_unless(lambda asked: problem_of(asked[0]).build_key == ("float32", 64) and asked[1] in FEW, ASKED),
)
def test_outputs_are_those_of_the_hardware(case: int, variant: str):
    """Bit for bit where every exp is exact; else as far apart as ex2.approx allows."""
    problem, inputs = problem_of(case), inputs_of(case)
    plan = discover().registry.get(variant).plan(problem)
    answer = recorded(case, variant, plan_hash(plan, problem))
    outputs = emulator().run(problem, plan, inputs).outputs
    # Without a maximum to subtract, equal scores are exponentiated as they are.
    exact = is_exact(case) and (problem.scale == 0.0 or not variant.startswith("native"))
    assert outputs.keys() == answer.outputs.keys()
    for name, ours in outputs.items():
        theirs = as_array(problem, name, answer.outputs[name])
        if exact:
            assert ours.tobytes() == theirs.tobytes(), name
        else:
            assert not too_far(ours, theirs, bounds_of(case)[name]), name


def test_what_is_not_recorded_is_skipped_with_the_reason():
    known = next(iter(ANSWERS.values()))
    for name, plan, reason in (
        ("not-a-variant", known.plan, "not recorded yet"),
        (known.variant, "another plan", "have changed since"),
    ):
        with pytest.raises(pytest.skip.Exception, match=reason):
            recorded(CASES.index(tuple(RECORDED_CASES[known.case])), name, plan)


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
