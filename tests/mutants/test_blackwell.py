"""Each mistake in fa4-cupy is found on one of a few problems: by its answer, by a fault, or by the sanitizer."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from lanes import exhaustive_unless

from harness.emulator import executor
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.run_settings import RunSettings
from harness.model.operation import Tolerance, draw_inputs
from harness.model.reference import Reference
from harness.model.variant import Variant
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault
from harness.support.gpu_data_sheets import usual_gpu
from tests.mutants.blackwell import FOLDER, MUTANTS, SCHEDULE
from tests.mutants.patching import VARIANTS, Mutant, mutated_variant
from variants.attention.fa4 import NUMERICS

SETTINGS = RunSettings(arch="sm_100a", step_limit=2_000_000)
MULTIPROCESSORS = 2
"""So that each block that starts takes several tiles of rows."""
# Two tiles of 256 rows, of which the second is partial; tiles of keys are seen whole, in part, or not at all.
CAUSAL = Problem(heads=4, kv_heads=2, q_len=300, kv_len=430, head_dim=64, dtype="float16", mask="causal")
# Rows that see no key.
BLIND = Problem(heads=2, q_len=600, kv_len=70, head_dim=64, dtype="float16", mask="causal")
PLAIN = Problem(heads=2, q_len=300, kv_len=430, head_dim=128, dtype="bfloat16")
CASES = ((CAUSAL, "rising"), (CAUSAL, "hot"), (CAUSAL, "infinite"), (BLIND, "normal"), (PLAIN, "rising"))
REQUEST = "barriers.schedule.request_next(round);"
QUICK = ("mask off by one", "P multiplied before it is stored", "no proxy fence before O is stored")
"""For the thorough lane."""


@pytest.fixture(autouse=True)
def few_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the emulated GPU hold two blocks."""
    monkeypatch.setattr(executor, "usual_gpu", lambda arch: replace(usual_gpu(arch), multiprocessors=MULTIPROCESSORS))


@functools.cache
def question(problem: Problem, regime: str) -> tuple[dict[str, np.ndarray], Reference, dict[str, Tolerance]]:
    """Inputs, reference and budget. `infinite`: V has infinities of either sign, and NaN, at some keys."""
    inputs = draw_inputs(problem, "normal" if regime == "infinite" else regime, 1)
    if regime == "infinite":
        inputs["V"][:, :, 200, 5], inputs["V"][:, :, 250, 5], inputs["V"][:, :, 300, 7] = -np.inf, np.inf, np.nan
        inputs["V"][:, :, 340, 9] = -np.inf
    reference = attention(problem, inputs)
    return inputs, reference, error_budget(problem, inputs, reference, NUMERICS)


def deaths(variant: Variant, sanitize: bool) -> Iterator[str]:
    """What is found wrong with the variant, problem by problem."""
    for problem, regime in CASES:
        inputs, reference, budget = question(problem, regime)
        plan = variant.plan(problem)
        if sanitize:
            findings = EmulatorSanitizer(SETTINGS, shuffled_runs=1).check(variant, problem, plan, inputs)
            yield from (finding.message for finding in findings)
        try:
            result = hold(emulator(SETTINGS).run(problem, plan, inputs).outputs, reference, budget)
        except KernelFault as fault:
            yield str(fault)
        else:
            if not result.passed:
                yield result.reason


@pytest.mark.parametrize(
    "mutant", exhaustive_unless(lambda mutant: mutant.bug in QUICK, MUTANTS), ids=lambda mutant: mutant.name
)
@pytest.mark.thorough
def test_each_mistake_is_found(mutant: Mutant):
    death = next(deaths(mutated_variant(mutant), mutant.sanitize), None)
    assert death is not None, f"{mutant.bug}: nothing is found"


@pytest.mark.parametrize(
    "mutant", exhaustive_unless(lambda mutant: mutant is SCHEDULE[0], SCHEDULE), ids=lambda mutant: mutant.name
)
@pytest.mark.thorough
def test_a_race_for_the_next_tile_names_both_lines(mutant: Mutant):
    """That of the request, and that of the load of its response."""
    inputs, _, _ = question(CAUSAL, "rising")
    variant = mutated_variant(mutant)
    found = EmulatorSanitizer(SETTINGS, shuffled_runs=2).check(variant, CAUSAL, variant.plan(CAUSAL), inputs)
    races = [finding for finding in found if "race" in finding.kind and "response" in finding.message]
    assert races, [finding.message for finding in found]
    text = (VARIANTS / FOLDER / "kernel.cu").read_text().split("\n")
    for race in races:
        assert race.place is not None and race.other is not None
        lines = {text[place.line - 1].strip() for place in (race.place, race.other)}
        assert REQUEST in lines and any("tile_after" in line or "run" in line for line in lines), lines
