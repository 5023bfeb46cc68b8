"""One battery for every softmax that is registered: answers, claims, races, and the failures that are declared."""

from __future__ import annotations

import os

import numpy as np
import pytest
from emulators import emulator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from right_answers import require_right

from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import FAIL, PASS
from harness.execution.run_settings import RunSettings
from harness.model.cases.case import Case
from harness.model.discovery import discover
from harness.model.operation import draw_inputs, operation_named
from harness.model.variant import Variant
from harness.operations.softmax.cases import SoftmaxBuild
from harness.operations.softmax.problem import SoftmaxProblem
from harness.operations.softmax.strategies import cases, problems

VARIANTS = discover().registry.select(None, "softmax")
EXECUTOR = emulator()
SANITIZER = EmulatorSanitizer(shuffled_runs=1)
# A dtype is a compilation: one of each width.
BUILDS = (SoftmaxBuild("float32"), SoftmaxBuild("float16"))

each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


def battery(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,  # the first example of a kernel compiles it
        derandomize="CI" in os.environ,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.differing_executors, HealthCheck.filter_too_much),
    )


def test_there_is_each_algorithm_in_each_language():
    algorithms = ("native", "safe", "online", "on-chip", "pipelined")
    names = {f"softmax-{algorithm}-{language}" for algorithm in algorithms for language in LANGUAGES}
    assert names <= {variant.name for variant in VARIANTS}


LANGUAGES = ("cupy", "numba")


@each_variant
@given(data=st.data())
@battery(50)
def test_answers_are_within_what_is_expected_and_claims_are_exact(variant: Variant, data: st.DataObject):
    case: Case = data.draw(cases(BUILDS, most_tiles=12).filter(lambda case: case.regime not in variant.fails_in))
    done = attempt(variant, case.problem, EXECUTOR, question=Question.pose(case.problem, case.inputs()))
    require_right(done)


@each_variant
def test_it_fails_where_it_declares_it_and_nowhere_else(variant: Variant):
    regimes = operation_named("softmax").regimes
    assert set(variant.fails_in) <= set(regimes)
    problem = SoftmaxProblem(rows=8, columns=100)
    verdicts = {r: attempt(variant, problem, EXECUTOR, question=Question.draw(problem, r)).verdict for r in regimes}
    assert {regime for regime, verdict in verdicts.items() if verdict == FAIL} == set(variant.fails_in)
    assert {verdict for regime, verdict in verdicts.items() if regime not in variant.fails_in} == {PASS}


def test_only_the_one_without_the_maximum_declares_failures():
    assert {v.algorithm for v in VARIANTS if v.name.startswith("softmax-") and v.fails_in} == {"softmax-native"}


@each_variant
@pytest.mark.parametrize("columns", [1, 127, 5000])
def test_bfloat16_and_lengths_from_one_column_to_many(variant: Variant, columns: int):
    problem = SoftmaxProblem(rows=3, columns=columns, dtype="bfloat16")
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, "normal", 1))
    assert done.verdict == PASS and done.claim_holds, done.reason


SWEEPS = {"softmax-native": 2, "softmax-safe": 3, "softmax-online": 2, "softmax-on-chip": 1, "softmax-pipelined": 1}
"""Reads per element: Milakov and Gimelshein 2018, sections 2 and 3, which count one write more; of the last two, the
least."""


@pytest.mark.parametrize("algorithm", SWEEPS)
def test_claims_are_the_accesses_that_the_paper_counts(algorithm: str):
    problem = SoftmaxProblem(rows=7, columns=4096)
    matrix_bytes = 7 * 4096 * 4
    for variant in (v for v in VARIANTS if v.algorithm == algorithm):
        assert variant.claim is not None
        claim = variant.claim(problem)
        assert (claim.read_bytes, claim.write_bytes) == (SWEEPS[algorithm] * matrix_bytes, matrix_bytes)


@each_variant
def test_a_claim_for_another_length_does_not_fit(variant: Variant):
    problem, longer = (SoftmaxProblem(rows=5, columns=columns) for columns in (100, 108))
    done = attempt(variant, problem, EXECUTOR, draw_inputs(problem))
    assert done.claim_holds and variant.claim is not None
    assert done.counted is not None and done.counted.read_bytes != variant.claim(longer).read_bytes


@each_variant
@given(problem=problems((SoftmaxBuild("float16"),), most_tiles=6), seed=st.integers(0, 2**16))
@battery(8)
def test_no_races_no_unwritten_memory_no_order_that_matters(variant: Variant, problem: SoftmaxProblem, seed: int):
    findings = SANITIZER.check(variant, problem, variant.plan(problem), draw_inputs(problem, "normal", seed))
    assert findings == (), [finding.message for finding in findings]


@each_variant
def test_bits_do_not_depend_on_threads_or_the_order_of_warps(variant: Variant):
    problem = SoftmaxProblem(rows=9, columns=333)
    inputs, plan = draw_inputs(problem, "normal", 3), variant.plan(problem)
    runs = [emulator(RunSettings(threads=t, seed=s)).run(problem, plan, inputs) for t, s in ((1, 0), (2, 77))]
    assert runs[0].outputs["Y"].tobytes() == runs[1].outputs["Y"].tobytes()


@each_variant
def test_a_worked_example(variant: Variant):
    # exp(0) : exp(ln 2) : exp(ln 5) = 1 : 2 : 5.
    problem = SoftmaxProblem(rows=2, columns=3)
    X = np.log(np.array([[1, 2, 5], [5, 1, 2]])).astype(np.float32)
    Y = EXECUTOR.run(problem, variant.plan(problem), {"X": X}).outputs["Y"]
    np.testing.assert_allclose(Y, np.array([[1, 2, 5], [5, 1, 2]]) / 8, rtol=1e-6)


@each_variant
def test_what_is_out_of_reach_is_said(variant: Variant):
    assert variant.supports(SoftmaxProblem(rows=2**31 - 1)) is None
    assert "columns is 2147483647" in (variant.supports(SoftmaxProblem(rows=1, columns=2**31 - 1)) or "")
