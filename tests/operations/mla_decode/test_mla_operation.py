"""Latent attention: the answer held against loops, inputs, budgets that reject wrong kernels, problems, cases."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from harness.model.array_types import Arrays
from harness.model.cases.build import Builds
from harness.model.cases.case import Case, Edit
from harness.model.numerics import Numerics
from harness.model.operation import Part, draw_inputs, operation_named
from harness.operations.mla_decode.cases import MlaCases, builds_of
from harness.operations.mla_decode.problem import MlaProblem
from harness.support.errors import ProblemError, UsageError

OPERATION = operation_named("mla-decode")
PROBLEM = MlaProblem(
    lengths=(0, 5, 48, 100, 48), heads=3, q_len=2, latent_dim=8, rope_dim=4, page_size=16, prefix=40, dtype="float32"
)


def by_loops(problem: MlaProblem, inputs: Arrays, values: slice | None = None) -> Arrays:
    """Attention row by row; `values`: which columns are values."""
    O, lse = np.zeros(problem.o_shape), np.full(problem.lse_shape, -np.inf)
    for sequence, head, row in np.ndindex(problem.lse_shape):
        seen = range(max(0, problem.lengths[sequence] + row + 1 - problem.q_len))
        if seen:
            entries = [(inputs["table"][sequence, key // problem.page_size], key % problem.page_size) for key in seen]
            C = np.array([inputs["C"][entry] for entry in entries], np.float64)
            scores = C @ inputs["Q"][sequence, head, row].astype(np.float64) * problem.tau
            weights = np.exp(scores - scores.max())
            O[sequence, head, row] = weights @ C[:, values or slice(problem.latent_dim)] / weights.sum()
            lse[sequence, head, row] = scores.max() + np.log(weights.sum())
    return {"O": O, "lse": lse}


@pytest.mark.parametrize("regime", ["normal", "rising", "exact", "offset"])
def test_the_answer_is_that_of_loops(regime: str):
    inputs = draw_inputs(PROBLEM, regime, 3)
    expected, found = by_loops(PROBLEM, inputs), OPERATION.answer(PROBLEM, inputs)
    for name in ("O", "lse"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12, atol=1e-14)
    part = Part((slice(2, 4), slice(1, 2), slice(1, 2)))
    np.testing.assert_allclose(OPERATION.answer(PROBLEM, inputs, part)["O"], found["O"][part.where], rtol=1e-12)


def test_budgets_reject_values_from_the_other_end_of_the_row():
    inputs = draw_inputs(PROBLEM, "normal", 3)
    right = OPERATION.answer(PROBLEM, inputs)
    numerics = Numerics(scores="float32", weights="float32", functions="__expf", sums="nearest")
    tolerance = OPERATION.tolerance(PROBLEM, inputs, right, numerics)["O"]
    error = np.abs(by_loops(PROBLEM, inputs)["O"] - right["O"])
    assert (error <= tolerance.allowed).all()
    wrong = by_loops(PROBLEM, inputs, slice(PROBLEM.rope_dim, None))["O"]
    assert (np.abs(wrong - right["O"]) > tolerance.allowed)[1:].mean() > 0.9


def test_mistakes_have_names_and_other_answers():
    inputs = draw_inputs(PROBLEM, "normal", 3)
    right = OPERATION.answer(PROBLEM, inputs)["O"]
    found = {name: outputs["O"] for name, outputs in OPERATION.known_mistakes(PROBLEM, inputs, 16)}
    for part in ("rope", "latent"):
        assert not np.allclose(found[f"the answer without the {part} part of the scores"], right)
    assert "the answer with the pages of the next sequence" in found


@pytest.mark.parametrize("regime", list(OPERATION.regimes))
def test_values_are_columns_of_keys_and_unused_rows_are_poison(regime: str):
    inputs = draw_inputs(PROBLEM, regime, 1)
    used = np.zeros(inputs["C"].shape[:2], bool)
    for sequence, length in enumerate(PROBLEM.lengths):
        for key in range(length):
            used[inputs["table"][sequence, key // 16], key % 16] = True
    rows = inputs["C"].astype(np.float32)
    assert np.isnan(rows[~used]).all()
    assert np.isfinite(rows[used]).all() == (regime != "non-finite")


def test_a_row_counts_once():
    # A key's row is read once, for its score and for its value: 12 elements, not 12 + 8.
    entries = sum(PROBLEM.sequence_pages) + PROBLEM.sequences
    keys = 32 + (48 - 32) + (100 - 32) + (48 - 32) + 5  # two pages of the prefix are shared
    assert PROBLEM.compulsory_read_bytes == (5 * 3 * 2 * 12 + keys * 12) * 4 + entries * 4
    pairs = 3 * sum(2 * length - 1 for length in PROBLEM.lengths if length)
    assert PROBLEM.flops == 2 * (12 + 8) * pairs


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_dim": 0}, "rope_dim is 0"),
        ({"latent_dim": -8}, "latent_dim is -8"),
        ({"page_size": 40}, "page_size is 40"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"lengths": (300,), "page_size": 16, "pages": 3}, "pages is 3; the sequences are in 19"),
    ],
)
def test_invalid_problems_say_why(fields: dict[str, Any], message: str):
    with pytest.raises(ProblemError, match=message):
        MlaProblem(**fields)


def test_problems_survive_json_and_arrays():
    assert MlaProblem.from_fields(PROBLEM.to_fields()) == PROBLEM
    assert MlaProblem.from_fields(PROBLEM.to_short_fields()) == PROBLEM
    inputs = draw_inputs(PROBLEM)
    assert OPERATION.problem_of_arrays is not None
    found = OPERATION.problem_of_arrays(inputs, "float32", {"rope_dim": 4})
    assert (found.latent_dim, found.rope_dim, found.lengths) == (8, 4, PROBLEM.lengths)
    assert found.keys_in_use == PROBLEM.keys_in_use
    with pytest.raises(UsageError, match="--rope-dim 12 leaves none"):
        OPERATION.problem_of_arrays(inputs, "float32", {"rope_dim": 12})


def drawn_cases(seed: int) -> list[Case]:
    axes, rng = OPERATION.axes(None, ["page-order"], ["causal"]), random.Random(seed)
    assert axes is not None
    return [
        axes.case(build, {axis: rng.choice(values).name for axis, values in axes.values.items()}, rng)
        for build in builds_of(seed)
        for _ in range(2)
    ]


@pytest.mark.parametrize("seed", [0, 4])
def test_cases_are_of_their_builds_and_become_smaller(seed: int):
    builds, edited = Builds(builds_of(seed)), 0
    for case in drawn_cases(seed):
        assert builds.find(case) is not None
        assert Case.from_json(case.to_json()) == case
        assert all(edit.array in ("Q", "C") for edit in case.edits)
        edited += any(edit.array == "C" for edit in case.edits)
        smaller = list(OPERATION.simpler(case, builds))
        assert all(builds.find(each) is not None for each in smaller)
        assert OPERATION.peculiarities(case, builds.of(case).tiles(case.problem), ())
        assert MlaCases().wrapped(MlaCases().unwrapped(case), case).problem == case.problem
    assert edited


def test_edits_of_values_are_edits_of_their_columns():
    case = drawn_cases(0)[0]
    paged = MlaCases().unwrapped(case)
    column = case.problem.head_dim - 1
    of_V = Edit("V", (0, 0, 1, column), 3.0)
    (edit,) = MlaCases().wrapped(Case(paged.problem, edits=(of_V,)), case).edits
    assert edit == Edit("C", (0, 1, column % case.problem.latent_dim), 3.0)
