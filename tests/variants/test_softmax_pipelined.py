"""softmax-pipelined: how rows are divided among threads, stages that are filled again, and registers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from emulators import emulator
from hypothesis import given
from hypothesis import strategies as st
from kernel_resources import H200
from right_answers import require_right

from harness.compilers.ptxas import find_ptxas, resources
from harness.emulator.memory.residency import residency
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import FAIL
from harness.execution.planning.variant_calls import compiled_launches
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.operations.softmax.problem import SoftmaxProblem
from variants.softmax import pipelined
from variants.softmax.pipelined import (
    ELEMENTS,
    MOST_BLOCKS,
    MOST_COLUMNS,
    MOST_ELEMENTS,
    MOST_THREADS,
    PIECE_BYTES,
    RESIDENT_THREADS,
    WARP,
    division_of,
    is_pipelined,
)

VARIANTS = [v for v in discover().registry.select(None, "softmax") if v.algorithm == "softmax-pipelined"]
EXECUTOR = emulator()

each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


@given(pieces=st.integers(1, MOST_COLUMNS // 4), dtype=st.sampled_from(("float32", "float16", "bfloat16")))
def test_blocks_have_registers_and_shared_memory_for_their_share_of_a_row(pieces: int, dtype: str):
    vector = 4 if dtype == "float32" else 8
    problem = SoftmaxProblem(rows=3, columns=min(pieces * vector, MOST_COLUMNS), dtype=dtype)
    division = division_of(problem)
    sizes = division.sizes
    elements = MOST_ELEMENTS if sizes.pieces * vector > ELEMENTS else ELEMENTS
    assert sizes.pieces * vector <= elements and sizes.threads <= MOST_THREADS and sizes.cluster <= MOST_BLOCKS
    assert sizes.threads * division.blocks_per_sm <= RESIDENT_THREADS[elements]
    threads = sizes.threads // division.rows
    assert threads * sizes.pieces >= division.share and threads % WARP == 0
    # Every block of a cluster has some of the row, and all of them have all.
    row_pieces = problem.columns // vector
    assert (sizes.cluster - 1) * division.share < row_pieces <= sizes.cluster * division.share
    assert sizes.is_shared is (threads > WARP or sizes.cluster > 1) and (division.rows == 1 or not sizes.is_shared)
    dynamic_bytes = sizes.stages * division.stage_bytes
    memory = residency(H200.multiprocessor, sizes.threads, 32, dynamic_bytes + pipelined.BLOCK_BYTES)
    assert memory.blocks >= division.blocks_per_sm


@pytest.mark.parametrize(
    ("columns", "dtype", "is_copied"),
    [(1024, "float32", True), (1026, "float32", False), (1028, "bfloat16", False), (1032, "bfloat16", True),
     (MOST_COLUMNS, "float16", True), (MOST_COLUMNS + 8, "float16", False)],
)  # fmt: skip
def test_rows_of_whole_pieces_that_fit_are_copied_and_others_are_left_to_on_chip(
    columns: int, dtype: str, is_copied: bool
):
    problem = SoftmaxProblem(rows=5, columns=columns, dtype=dtype)
    assert is_pipelined(problem) is is_copied
    for variant in VARIANTS:
        (launch,) = variant.plan(problem).launches
        assert launch.kernel_name == ("pipelined_softmax" if is_copied else "on_chip_softmax")


ANSWERS = [
    (9, 512, "float16"),  # a warp per row, and one row in the last tile
    (3, 1032, "bfloat16"),
    (3, 4100, "float32"),
    (2, 16_392, "bfloat16"),
    (2, 65_540, "float32"),
    (2, MOST_COLUMNS, "float32"),
]


@each_variant
@pytest.mark.parametrize(("rows", "columns", "dtype"), ANSWERS)
@pytest.mark.parametrize("regime", ["normal", "rising"])
def test_answers_and_bytes_at_each_division(variant: Variant, rows: int, columns: int, dtype: str, regime: str):
    problem = SoftmaxProblem(rows=rows, columns=columns, dtype=dtype)
    require_right(attempt(variant, problem, EXECUTOR, question=Question.draw(problem, regime, 2)))


@each_variant
@pytest.mark.parametrize(("columns", "dtype"), [(8200, "float16"), (65_544, "bfloat16")])
def test_stages_are_filled_again_once_all_threads_have_read_them(
    variant: Variant, columns: int, dtype: str, monkeypatch: pytest.MonkeyPatch
):
    # One block, or one cluster, takes all tiles: more than it has stages.
    monkeypatch.setattr(pipelined, "CLUSTERS", dict.fromkeys(pipelined.CLUSTERS, 0))
    sizes = division_of(SoftmaxProblem(rows=1, columns=columns, dtype=dtype)).sizes
    problem = SoftmaxProblem(rows=2 * sizes.stages + 1, columns=columns, dtype=dtype)
    assert sizes.is_persistent and variant.plan(problem).launches[0].grid == (sizes.cluster,)
    require_right(attempt(variant, problem, EXECUTOR, question=Question.draw(problem, "normal", 2)))
    inputs = draw_inputs(problem, "normal", 1)
    findings = EmulatorSanitizer(shuffled_runs=1).check(variant, problem, variant.plan(problem), inputs)
    assert findings == (), [finding.message for finding in findings]


@each_variant
def test_all_tiles_are_taken_once_and_the_counter_is_0_again(variant: Variant, monkeypatch: pytest.MonkeyPatch):
    problem = SoftmaxProblem(rows=23, columns=8200, dtype="float16")
    inputs = draw_inputs(problem, "normal", 3)
    alone = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["Y"]
    monkeypatch.setattr(pipelined, "CLUSTERS", dict.fromkeys(pipelined.CLUSTERS, 1))
    plan = variant.plan(problem)
    assert 1 < plan.launches[0].grid[0] < problem.rows / 2
    twice = dataclasses.replace(plan, launches=2 * plan.launches)
    executed = EXECUTOR.run(problem, twice, inputs)
    assert np.array_equal(executed.outputs["Y"], alone)
    first, second = executed.launches
    assert first.traffic == second.traffic


@each_variant
@pytest.mark.parametrize("columns", [40, 2000, 65_536])
def test_a_row_without_a_finite_element_has_no_answer_and_leaves_others_alone(variant: Variant, columns: int):
    problem = SoftmaxProblem(rows=3, columns=columns)
    X = draw_inputs(problem, "normal", 0)["X"]
    X[0], X[1, columns - 1] = -np.inf, np.inf
    X[2, : columns // 2] = -np.inf
    Y = EXECUTOR.run(problem, variant.plan(problem), {"X": X}).outputs["Y"]
    assert np.isnan(Y[:2]).all()
    assert not Y[2, : columns // 2].any() and Y[2].sum(dtype=np.float64) == pytest.approx(1, rel=1e-5)


@each_variant
def test_a_plan_with_too_few_threads_fails(variant: Variant):
    problem = SoftmaxProblem(rows=2, columns=2048)
    (launch,) = variant.plan(problem).launches
    fewer = dataclasses.replace(launch, block=(launch.block[0] - WARP,))
    wrong = dataclasses.replace(
        variant, name="wrong", claim=None, plan=lambda p: dataclasses.replace(variant.plan(p), launches=(fewer,))
    )
    assert attempt(wrong, problem, EXECUTOR, question=Question.draw(problem, "normal")).verdict == FAIL


@each_variant
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [512, 4096, 65_536, MOST_COLUMNS])
def test_nothing_spills_and_as_many_blocks_run_at_once_as_a_plan_has(variant: Variant, columns: int, dtype: str):
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    problem = SoftmaxProblem(rows=8, columns=columns, dtype=dtype)
    ((launch, kernel),) = compiled_launches(variant.plan(problem), problem, "sm_90")
    found = resources(kernel.ptx, kernel.arch, kernel.entry, kernel.max_registers)
    assert found is not None and ".local" not in kernel.ptx
    assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes) == (0, 0, 0)
    threads, shared_bytes = launch.block[0], found.shared_bytes + launch.shared_bytes
    resident = residency(H200.multiprocessor, threads, found.registers, shared_bytes)
    assert resident.blocks >= division_of(problem).blocks_per_sm
    assert PIECE_BYTES == 16 and "cp.async.bulk.shared::cluster.global" in kernel.ptx
