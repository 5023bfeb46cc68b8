"""What is particular to kernels that append to a paged cache, beside what every registered variant is held to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulators import emulator

from harness.cli import main
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.operations.kv_append.problem import AppendProblem
from harness.support.errors import KernelFault

VARIANTS = discover().registry.select(None, "kv-append")
EXECUTOR = emulator()
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
# Rows of 66 bytes: no wide vector divides them, and requests end within the rows of a head. All tests here share them.
NARROW: dict[str, Any] = {"head_dim": 33, "dtype": "bfloat16"}


def test_there_is_one_in_each_language():
    assert {"append-cupy", "append-numba"} <= {variant.name for variant in VARIANTS}


@each_variant
@pytest.mark.parametrize("regime", ["normal", "bits"])
def test_tokens_at_the_edges_of_pages_and_none(variant: Variant, regime: str):
    problem = AppendProblem(
        lengths=(0, 16, 17, 15, 33, 40, 64), new_lengths=(0, 16, 1, 2, 0, 25, 1), kv_heads=3, prefix=16, table_len=9,
        **NARROW,
    )  # fmt: skip
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, regime, 1))
    assert done.verdict == PASS and done.claim_holds, done.reason


@each_variant
def test_no_new_token_at_all(variant: Variant):
    problem = AppendProblem(lengths=(5, 0), new_lengths=(0, 0), kv_heads=1, **NARROW)
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem))
    assert done.verdict == PASS and done.claim_holds, done.reason


@each_variant
def test_two_sequences_with_one_slot_are_a_race_and_others_none(variant: Variant):
    problem = AppendProblem(lengths=(20, 20), new_lengths=(3, 3), kv_heads=1, **NARROW)
    inputs, plan, sanitizer = draw_inputs(problem), variant.plan(problem), EmulatorSanitizer(shuffled_runs=1)
    assert sanitizer.check(variant, problem, plan, inputs) == ()
    inputs["table"][1, 1] = inputs["table"][0, 1]
    assert {finding.kind for finding in sanitizer.check(variant, problem, plan, inputs)} == {"WAW race"}


@each_variant
def test_an_entry_that_is_no_page_is_a_fault(variant: Variant):
    problem = AppendProblem(lengths=(20,), new_lengths=(3,), kv_heads=1, **NARROW)
    inputs = draw_inputs(problem)
    inputs["table"][0, 1] = -1
    with pytest.raises(KernelFault, match=r"out-of-bounds store .* buffer K"):
        EXECUTOR.run(problem, variant.plan(problem), inputs)


@each_variant
def test_the_pool_that_is_given_is_not_the_one_that_is_written(variant: Variant):
    problem = AppendProblem(lengths=(20,), new_lengths=(3,), kv_heads=1, **NARROW)
    inputs = draw_inputs(problem)
    before = inputs["K"].copy()
    outputs = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs
    assert inputs["K"].tobytes() == before.tobytes() != outputs["K"].tobytes()


def test_run_takes_a_pool_and_writes_it_to_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    problem = AppendProblem(lengths=(20,), new_lengths=(3,), kv_heads=1, **NARROW)
    files = []
    for name, array in draw_inputs(problem).items():
        path = tmp_path / f"{name}.npy"
        np.save(path, array.view(np.uint16) if array.dtype.itemsize == 2 else array)
        files += [f"--{name.lower().replace('_', '-')}", str(path)]
    out, v_out = tmp_path / "K_out.npy", tmp_path / "V_out.npy"
    given = ["run", "append-cupy", "--operation", "kv-append", "--dtype", "bfloat16", "--device", "emulator", *files]
    assert main([*given, "--out", str(out), "--v-out", str(v_out)]) == 0, capsys.readouterr().err
    expected = Question.draw(problem).exact_outputs
    for path, name in ((out, "K"), (v_out, "V")):
        assert np.load(path).tobytes() == expected[name].array.tobytes()
