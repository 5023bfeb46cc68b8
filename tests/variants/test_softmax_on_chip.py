"""softmax-on-chip: how rows are divided among threads, clusters, rows that come in parts, and registers."""

from __future__ import annotations

import dataclasses
import re

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
from variants.softmax.on_chip import (
    ELEMENTS,
    MOST_BLOCKS,
    MOST_COLUMNS,
    MOST_THREADS,
    THREADS,
    WARP,
    WARPS,
    Division,
    Sizes,
    division_of,
)

VARIANTS = [v for v in discover().registry.select(None, "softmax") if v.algorithm == "softmax-on-chip"]
EXECUTOR = emulator()
ON_CHIP = MOST_BLOCKS * MOST_THREADS * ELEMENTS
"""Columns of the longest row that is read once."""

each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


@given(
    columns=st.one_of(st.integers(1, 2 * ON_CHIP), st.integers(1, MOST_COLUMNS)),
    dtype=st.sampled_from(("float32", "float16", "bfloat16")),
)
def test_threads_hold_a_row_and_pieces_are_aligned(columns: int, dtype: str):
    problem = SoftmaxProblem(rows=3, columns=columns, dtype=dtype)
    division = division_of(problem)
    sizes = division.sizes
    assert columns % sizes.vector == 0 and sizes.vector * problem.itemsize_bytes <= 16
    assert columns % (2 * sizes.vector) or 2 * sizes.vector * problem.itemsize_bytes > 16  # no wider piece would do
    assert sizes.vector * sizes.pieces <= ELEMENTS
    assert division.threads % WARP == 0 and division.threads * division.rows <= sizes.threads <= MOST_THREADS
    assert (division.elements >= columns) is not sizes.has_parts
    assert sizes.has_parts is (columns > ON_CHIP)
    if columns > WARP * ELEMENTS and not sizes.has_parts:  # a warp less would not do
        assert division.elements - sizes.cluster * ELEMENTS * WARP < columns
    if sizes.cluster > 1:  # nor would a smaller cluster
        assert sizes.cluster // 2 * THREADS * ELEMENTS < columns


DIVISIONS = {
    (512, "float32"): Division(Sizes(4, 4, WARP * WARPS, is_shared=False), WARP, WARPS),
    (100, "float32"): Division(Sizes(4, 1, WARP * WARPS, is_shared=False), WARP, WARPS),
    (33, "bfloat16"): Division(Sizes(1, 2, WARP * WARPS, is_shared=False), WARP, WARPS),
    (1024, "float32"): Division(Sizes(4, 4, THREADS), 64),
    (1026, "float16"): Division(Sizes(2, 8, THREADS), 96),
    (8192, "bfloat16"): Division(Sizes(8, 2, THREADS), 512),
    (8193, "bfloat16"): Division(Sizes(1, 16, THREADS, 2), 288),
    (65536, "float32"): Division(Sizes(4, 4, THREADS, 8), 512),
    (65544, "float16"): Division(Sizes(8, 2, MOST_THREADS, 8), 544),
    (131072, "float32"): Division(Sizes(4, 4, MOST_THREADS, 8), 1024),
    (131076, "float32"): Division(Sizes(4, 4, MOST_THREADS, 8, has_parts=True), 1024),
}


@pytest.mark.parametrize(("columns", "dtype"), DIVISIONS)
def test_a_row_belongs_to_a_warp_a_block_or_a_cluster(columns: int, dtype: str):
    assert division_of(SoftmaxProblem(rows=1, columns=columns, dtype=dtype)) == DIVISIONS[columns, dtype]


@each_variant
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [
        (9, 510, "float16"),  # a warp per row, and one row in the last block
        (3, 1022, "bfloat16"),
        (3, 4097, "float16"),
        (2, 8196, "float32"),  # clusters of 2, 4 and 8
        (2, 16_392, "bfloat16"),
        (2, 33_001, "float32"),
        (2, 66_000, "float16"),  # of blocks of more than 512 threads
        (2, ON_CHIP, "float32"),
        (2, ON_CHIP + 4, "float32"),  # in two parts, and in three
        (1, 2 * ON_CHIP + 1, "bfloat16"),
    ],
)
@pytest.mark.parametrize("regime", ["normal", "rising"])
def test_answers_and_bytes_at_each_division(variant: Variant, rows: int, columns: int, dtype: str, regime: str):
    problem = SoftmaxProblem(rows=rows, columns=columns, dtype=dtype)
    require_right(attempt(variant, problem, EXECUTOR, question=Question.draw(problem, regime, 2)))


@each_variant
def test_rows_are_read_once_up_to_what_a_cluster_holds(variant: Variant):
    assert variant.claim is not None
    for columns, again in ((ON_CHIP, 0), (ON_CHIP + 1024, 1024), (3 * ON_CHIP, 2 * ON_CHIP)):
        claim = variant.claim(SoftmaxProblem(rows=5, columns=columns))
        assert (claim.read_bytes, claim.write_bytes) == (5 * (columns + again) * 4, 5 * columns * 4)


@each_variant
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(5, 64, "float32"), (2, 1025, "float16"), (2, 8200, "float32"), (1, 20_001, "bfloat16")],
)
def test_no_races_in_a_warp_a_block_or_a_cluster(variant: Variant, rows: int, columns: int, dtype: str):
    problem = SoftmaxProblem(rows=rows, columns=columns, dtype=dtype)
    sanitizer = EmulatorSanitizer(shuffled_runs=1)
    findings = sanitizer.check(variant, problem, variant.plan(problem), draw_inputs(problem, "normal", 1))
    assert findings == (), [finding.message for finding in findings]


@each_variant
@pytest.mark.parametrize("columns", [40, 2000, 20_000, ON_CHIP + 4])
def test_a_row_without_a_finite_element_has_no_answer_and_leaves_others_alone(variant: Variant, columns: int):
    problem = SoftmaxProblem(rows=3, columns=columns)
    X = draw_inputs(problem, "normal", 0)["X"]
    X[0], X[1, columns - 1] = -np.inf, np.inf
    X[2, : columns // 2] = -np.inf
    Y = EXECUTOR.run(problem, variant.plan(problem), {"X": X}).outputs["Y"]
    assert np.isnan(Y[:2]).all()
    assert not Y[2, : columns // 2].any() and Y[2].sum(dtype=np.float64) == pytest.approx(1, rel=1e-5)


@each_variant
def test_a_part_that_comes_later_may_raise_the_maximum(variant: Variant):
    # 200 in the last part, and in the first: in float32, sums that are not brought to one maximum overflow or vanish.
    problem = SoftmaxProblem(rows=2, columns=ON_CHIP + 64)
    X = np.zeros(problem.shape, np.float32)
    X[0, -1], X[1, 0] = 200, 200
    Y = EXECUTOR.run(problem, variant.plan(problem), {"X": X}).outputs["Y"]
    assert Y[0, -1] == Y[1, 0] == 1 and Y[0, :-1].max() == Y[1, 1:].max() == 0


@each_variant
def test_a_plan_with_too_few_threads_fails(variant: Variant):
    problem = SoftmaxProblem(rows=2, columns=20_000)
    (launch,) = variant.plan(problem).launches
    assert launch.cluster == (4,)
    fewer = dataclasses.replace(launch, block=(launch.block[0] - WARP, 1))
    wrong = dataclasses.replace(
        variant, name="wrong", claim=None, plan=lambda p: dataclasses.replace(variant.plan(p), launches=(fewer,))
    )
    assert attempt(wrong, problem, EXECUTOR, question=Question.draw(problem, "normal")).verdict == FAIL


@each_variant
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [512, 4096, 4097, 65_536, 65_537, ON_CHIP + 1])
def test_nothing_spills_and_multiprocessors_hold_enough_threads(variant: Variant, columns: int, dtype: str):
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    problem = SoftmaxProblem(rows=8, columns=columns, dtype=dtype)
    ((launch, kernel),) = compiled_launches(variant.plan(problem), problem, "sm_90")
    found = resources(kernel.ptx, kernel.arch, kernel.entry, kernel.max_registers)
    assert found is not None and ".local" not in kernel.ptx
    assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes) == (0, 0, 0)
    threads = launch.block[0] * launch.block[1]
    resident = residency(H200.multiprocessor, threads, found.registers, found.shared_bytes).blocks * threads
    most = 1536 if variant.backend == "cupy" and threads <= THREADS else 1024
    assert resident > most - threads


@each_variant
@pytest.mark.parametrize(("columns", "bits"), [(2048, 128), (2052, 64), (2050, 32), (2049, 16)])
def test_loads_are_as_wide_as_rows_are_aligned(variant: Variant, columns: int, bits: int):
    problem = SoftmaxProblem(rows=2, columns=columns, dtype="bfloat16")
    ((_, kernel),) = compiled_launches(variant.plan(problem), problem, "sm_90")
    moves = re.findall(r"\b(?:ld|st)\.global(?:\.nc)?\.(?:v(\d)\.)?[bufs](\d+)\b", kernel.ptx)
    assert {int(count or 1) * int(width) for count, width in moves} == {bits}
