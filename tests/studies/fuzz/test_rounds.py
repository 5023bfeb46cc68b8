from __future__ import annotations

from itertools import islice

import pytest

from harness.model.discovery import discover
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
    assert ("float32", 256) in {(build.dtype, build.head_dim) for build in met}
    assert len({build.tile for build in met}) == 3


@pytest.mark.parametrize("name", ["fa2-mma-cupy", "fa2-mma-numba"])
def test_a_usual_campaign_meets_more_stages_than_two_and_the_sanitizer_looks_at_them(name: str):
    staged = [build for build in met_by(name) if "stages=3" in (build.tile or "")]
    assert len(staged) == 1
    assert sanitized_builds(builds_for(discover().registry.get(name), BUILDS))[1:] == tuple(staged)
    assert max(build.head_dim for build in met_by(name)) == 256
