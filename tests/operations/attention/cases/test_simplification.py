from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from harness.model.cases.build import Builds
from harness.model.cases.case import Case, Edit
from harness.model.operation import operation_named
from harness.operations.attention.cases.build import AttentionBuild
from harness.operations.attention.cases.simplification import enlarged
from harness.operations.attention.masks import NO_MASK
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.shrinking.simplification import needed_features, simplify

PLAIN, SMALL_TILES, HALF = (
    AttentionBuild("float32", 16),
    AttentionBuild("float32", 16, 16, 8, "Br=16,Bc=8"),
    AttentionBuild("float16", 24, 32, 16),
)
BUILDS = Builds((PLAIN, SMALL_TILES, HALF))
LARGE = Case(
    Problem(
        batch=3,
        heads=6,
        kv_heads=2,
        q_len=90,
        kv_len=47,
        head_dim=24,
        dtype="float16",
        mask="causal",
        scale=-0.25,
    ),
    regime="hot",
    seed=77,
    edits=(Edit("K", (2, 1, 40, 3), math.nan), Edit("V", (0, 0, 0, 0), 60.0)),
    check="determinism",
)


@pytest.mark.parametrize(
    ("fails", "smallest"),
    [
        (lambda c: True, Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=16))),
        (lambda c: c.problem.kv_len > 32, Case(Problem(heads=1, q_len=1, kv_len=33, head_dim=16))),
        (lambda c: c.problem.group > 1, Case(Problem(heads=2, kv_heads=1, q_len=1, kv_len=1, head_dim=16))),
        (
            lambda c: c.problem.group > 1 and c.problem.kv_heads_count > 1,
            Case(Problem(heads=4, kv_heads=2, q_len=1, kv_len=1, head_dim=16)),
        ),
        (
            lambda c: c.problem.dtype == "float16",
            Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=24, dtype="float16")),
        ),
        (lambda c: c.regime == "hot", Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=16), "hot")),
        (
            lambda c: c.problem.causal and c.problem.q_len > c.problem.kv_len,
            Case(Problem(heads=1, q_len=2, kv_len=1, head_dim=16, mask="causal")),
        ),
        (
            lambda c: any(edit.array == "V" for edit in c.edits),
            Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=16), edits=LARGE.edits[1:]),
        ),
        (
            lambda c: c.check == "determinism",
            Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=16), check="determinism"),
        ),
        (lambda c: c.problem.tau < 0, Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=16, scale=-0.25))),
    ],
)
def test_what_a_mistake_needs_is_what_is_left(fails: Callable[[Case], bool], smallest: Case):
    assert fails(LARGE)
    assert simplify(LARGE, fails, BUILDS) == smallest


def test_fewer_tiles_are_found_under_other_inputs():
    # With one tile of rows only rising scores show it: as few tiles as that weigh more than plain inputs.
    def fails(case: Case) -> bool:
        return case.problem.kv_len > 32 and (case.problem.q_len > 64 or case.regime == "rising")

    start = Case(Problem(heads=1, q_len=65, kv_len=70, head_dim=16))
    assert fails(start)
    small = simplify(start, fails, BUILDS)
    assert (small.regime, PLAIN.tiles(small.problem)) == ("rising", (1, 2))


def test_a_tile_that_only_passes_with_one_key_or_full_is_left_partly_full():
    """As with a kernel that counts the last key again in each empty place of its last tile."""
    start = Case(Problem(heads=1, q_len=1, kv_len=33, head_dim=16))
    small = simplify(start, lambda c: c.problem.kv_len > 1 and c.problem.kv_len % 32 != 0, BUILDS)
    assert small.problem.kv_len == 2


def test_edits_outside_of_a_smaller_problem_are_dropped():
    small = simplify(LARGE, lambda c: not any(e.array == "V" for e in c.edits) or c is LARGE, BUILDS)
    assert small.edits == ()


def test_the_enlarged_problem_has_room_for_a_pattern():
    large = enlarged(Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=16)), BUILDS)
    assert PLAIN.tiles(large.problem) == (2, 3)
    assert large.problem.batch == 2 and large.problem.heads == 2
    assert enlarged(LARGE, BUILDS).problem.group == LARGE.problem.group


def test_a_feature_that_a_case_needs_goes_with_it_to_the_plainest_build():
    plainest, own = AttentionBuild("float32", 16), AttentionBuild("bfloat16", 64, 16, 16, features=("sinks",))
    builds, case = Builds((plainest, own)), Case(own.plain_problem)
    tried = [each for each in operation_named("attention").simpler(case, builds) if each.problem.head_dim == 16]
    assert [each.problem.compiled_features for each in tried[:2]] == [(), ("sinks",)]
    assert builds.rank(tried[1]) == 0 and builds.of(tried[1]).tiles(tried[1].problem) == (8, 8)
    assert operation_named("attention").size(tried[1], builds) < operation_named("attention").size(case, builds)


def poisoned(case: Case) -> bool:
    """Whether K is not finite, with or without a mask: as of a kernel that stores 0 for NaN."""
    return not np.isfinite(case.inputs()["K"]).all()


def test_a_mask_that_only_changes_what_is_drawn_is_not_needed():
    # Without a mask, this regime puts NaN into V alone.
    start = Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=16, mask="causal"), "non-finite")
    assert poisoned(start) and not poisoned(start.with_problem(replace(start.problem, mask=NO_MASK)))
    small = simplify(start, poisoned, BUILDS)
    assert small.problem.mask == NO_MASK and small.regime == "normal"
    assert [edit.array for edit in small.edits] == ["K"]


def test_an_edit_moves_into_a_smaller_problem():
    edit = Edit("K", (0, 0, 40, 7), math.nan)
    small = simplify(Case(Problem(heads=1, q_len=1, kv_len=47, head_dim=16), edits=(edit,)), poisoned, BUILDS)
    assert small.problem.kv_len == 1 and small.edits == (Edit("K", (0, 0, 0, 7), math.nan),)


def test_a_feature_is_needed_only_if_the_same_inputs_pass_without_it():
    # The elements of `hot` depend on the scale: other ones are drawn without it.
    case = Case(Problem(heads=1, q_len=1, kv_len=2, head_dim=16, scale=0.01, mask="causal"), "hot")
    largest = np.abs(case.inputs()["Q"]).max()
    assert np.abs(case.with_problem(replace(case.problem, scale=None)).inputs()["Q"]).max() < largest

    def large(case: Case) -> bool:
        return bool(np.abs(case.inputs()["Q"]).max() >= largest)

    assert needed_features(case, (1, 1), BUILDS, large) == ("2 keys",)
    both = ("2 keys", "a causal mask")
    assert needed_features(case, (1, 1), BUILDS, lambda c: c.problem.causal and large(c)) == both


def test_a_smaller_problem_is_tried_with_another_seed_if_its_inputs_hide_the_failure():
    start = Case(Problem(heads=1, q_len=1, kv_len=20, head_dim=16), seed=6)
    small = simplify(start, lambda c: c.problem.kv_len == 20 or (c.problem.kv_len > 2 and c.seed == 1), BUILDS)
    assert (small.problem.kv_len, small.seed) == (3, 1)
