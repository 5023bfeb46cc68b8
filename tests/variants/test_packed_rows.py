"""Sequences with different numbers of rows over pages: answers, claims, races, invariances, arrays of a caller."""

from __future__ import annotations

import numpy as np
import pytest
from emulators import emulator
from twins import of_one_language

import harness
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.invariance import invariance_of
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.operations.paged_attention.problem import PagedProblem

VARIANTS = [each for each in discover().registry.select(None, "paged-attention") if "q_lengths" in each.takes]
EXECUTOR = emulator()
# Empty chunks first, last and between; tokens; a whole prompt; a chunk that ends beside a tile of rows, and no keys.
MIXED = PagedProblem(
    lengths=(40, 70, 33, 9, 0, 100, 5), q_lengths=(0, 1, 33, 0, 2, 17, 0), heads=6, kv_heads=2, head_dim=24,
    page_size=32, dtype="float16",
)  # fmt: skip
RULES = MIXED.with_fields(window=20, softcap=2.0, alibi=True, sinks=True)

each_variant = pytest.mark.parametrize(
    "variant", of_one_language(lambda variant: variant.name == "paged-cupy", VARIANTS), ids=lambda variant: variant.name
)


def test_plain_kernels_take_them():
    assert {"paged-cupy", "paged-numba"} <= {variant.name for variant in VARIANTS}


@each_variant
@pytest.mark.parametrize("problem", [MIXED, RULES], ids=["plain", "rules"])
def test_answers_are_right_and_claims_exact(variant: Variant, problem: PagedProblem):
    in_the_first_and_last = (9, 0, 0, 0, 0, 0, 100)
    for rows, regime in ((MIXED.rows, "rising"), ((1,), "normal"), (in_the_first_and_last, "hot")):
        posed = problem.with_fields(q_lengths=rows)
        done = attempt(variant, posed, EXECUTOR, question=Question.draw(posed, regime, 1))
        assert done.verdict == PASS and done.claim_holds, done.reason


@pytest.mark.thorough
@each_variant
def test_no_races_and_no_unwritten_memory(variant: Variant):
    inputs = draw_inputs(RULES, "normal", 2)
    findings = EmulatorSanitizer(shuffled_runs=1).check(variant, RULES, variant.plan(RULES), inputs)
    assert findings == (), [finding.message for finding in findings]


@each_variant
def test_bits_are_those_of_padded_rows_and_of_the_sequence_alone(variant: Variant):
    inputs = draw_inputs(MIXED, "normal", 3)
    found = EXECUTOR.run(MIXED, variant.plan(MIXED), inputs).outputs
    for sequence, rows in ((1, 1), (2, 33), (5, 17)):
        single = MIXED.with_fields(
            q_lengths=None, q_len=rows, lengths=(MIXED.lengths[sequence],), batch=1, pages=MIXED.pool_pages,
            table_len=MIXED.table_shape[1],
        )  # fmt: skip
        own = slice(*MIXED.row_starts[sequence : sequence + 2])
        given = {name: inputs[name][sequence : sequence + 1] for name in ("table", "lengths")}
        given["Q"] = np.ascontiguousarray(inputs["Q"][:, :, own])
        padded = EXECUTOR.run(single, variant.plan(single), {**inputs, **given}).outputs
        for name in ("O", "lse"):
            np.testing.assert_array_equal(found[name][:, :, own], padded[name])


@pytest.mark.thorough
@each_variant
def test_declared_invariances_hold(variant: Variant):
    kinds = invariance_of(variant, RULES, draw_inputs(RULES, "normal", 3), EXECUTOR).kinds
    assert {each.kind for each in kinds if each.declared and each.ulps == 0} == {*variant.invariant_to}


def test_a_callers_arrays_are_tokens_by_heads():
    inputs = draw_inputs(MIXED, "normal", 1)
    expected = EXECUTOR.run(MIXED, discover().registry.get("paged-cupy").plan(MIXED), inputs).outputs
    arrays = {name.lower(): array for name, array in inputs.items()}
    arrays["q"] = np.ascontiguousarray(inputs["Q"][0].transpose(1, 0, 2))
    done = harness.run("paged-cupy", operation="paged-attention", **arrays)
    assert done.passed
    np.testing.assert_array_equal(done.outputs["O"], expected["O"][0].transpose(1, 0, 2))
    np.testing.assert_array_equal(done.outputs["lse"], expected["lse"][0])
