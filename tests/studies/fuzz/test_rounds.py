from __future__ import annotations

from itertools import islice

import pytest

from harness.model.discovery import discover
from harness.model.operation import operation_named, operation_names
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.build import BUILDS, AttentionBuild
from harness.studies.fuzz.builds import builds_for, sanitized_builds
from harness.studies.fuzz.rounds import rounds

pytestmark = pytest.mark.compiles(False)


@pytest.mark.parametrize("examples", [1, 2, 7, 50, 199, 200, 201, 1000, 20_000])
def test_rounds_end_at_the_number_of_examples(examples: int):
    ends = [part.until for part in rounds(BUILDS, examples)]
    assert ends[-1] == examples
    assert ends == sorted(ends)
    assert all(part.builds for part in rounds(BUILDS, examples))


def test_each_build_has_a_round_and_then_they_take_turns():
    own = [part.builds for part in islice(rounds(BUILDS, None), len(BUILDS) + 3)]
    assert own[: len(BUILDS)] == [(build,) for build in BUILDS]
    assert own[len(BUILDS) :] == [BUILDS] * 3


def test_the_first_build_has_the_largest_share_of_a_usual_campaign():
    assert [part.until for part in rounds(BUILDS, 200)] == [60, 100, 130, 150, 180, 200]
    assert [part.until for part in rounds(BUILDS, 50)] == [15, 25, 33, 38, 46, 50]


def test_hypothesis_has_a_share_where_it_can_steer_by_something():
    searched = [part.until - part.chosen_until for part in rounds(BUILDS, 200)]
    assert searched == [15, 10, 0, 0, 0, 0]


def met_by(name: str) -> list[AttentionBuild]:
    own = builds_for(discover().registry.get(name), BUILDS)
    return [build for part in rounds(own, 200) for build in part.builds]


@pytest.mark.parametrize("name", ["fa1-cupy", "fa2-numba", "three-pass-cupy", "two-pass-numba"])
def test_a_usual_campaign_meets_every_dtype_the_longest_rows_and_other_tiles(name: str):
    met = met_by(name)
    assert {build.dtype for build in met} == {"float32", "float16", "bfloat16"}
    assert max(build.head_dim for build in met if build.dtype == "float32") >= 256
    assert len({build.tile for build in met}) == 3


@pytest.mark.parametrize("name", ["fa2-mma-cupy", "fa2-mma-numba"])
def test_a_usual_campaign_meets_more_stages_than_two_and_the_sanitizer_looks_at_them(name: str):
    staged = [build for build in met_by(name) if "stages=3" in (build.tile or "")]
    assert len(staged) == 1
    plainest, wide, *most_staged = sanitized_builds(builds_for(discover().registry.get(name), BUILDS))
    assert not plainest.is_wide and wide.is_wide and most_staged == staged
    assert max(build.head_dim for build in met_by(name)) == 256


@pytest.mark.parametrize(
    ("takes", "longest"), [(lambda d: d <= 160, 160), (lambda d: d <= 512, 512), (lambda d: d in (16, 64), 64)]
)
def test_a_usual_campaign_compiles_for_the_longest_rows_that_the_variant_says_it_takes(takes, longest: int):
    variant = Variant(
        name="some", plan=lambda p: Plan(()), supports=lambda p: None if takes(p.head_dim) else "too long"
    )
    met = [build for part in rounds(builds_for(variant, BUILDS), 200) for build in part.builds]
    for dtype in ("float32", "bfloat16"):
        assert max(build.head_dim for build in met if build.dtype == dtype) == longest


@pytest.mark.parametrize(("multiple", "head_dim"), [(4, 20), (8, 24)])
def test_rows_that_are_less_well_aligned_come_first_where_they_are_taken(multiple: int, head_dim: int):
    variant = Variant(name="some", plan=lambda p: Plan(()), supports=lambda p: "no" if p.head_dim % multiple else None)
    met = [build for part in rounds(builds_for(variant, BUILDS), 200) for build in part.builds]
    assert min(build.head_dim for build in met if build.dtype == "float16") == head_dim


@pytest.mark.parametrize("operation", operation_names())
def test_what_an_operations_kernels_may_have_compiled_in_makes_a_problem_of_it(operation: str):
    builds = operation_named(operation).builds
    for build in builds:
        for each in (*build.rather, build):
            assert each.plain_problem.operation == operation
