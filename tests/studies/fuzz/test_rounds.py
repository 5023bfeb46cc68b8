from __future__ import annotations

from itertools import islice

import pytest

from harness.model.discovery import discover
from harness.operations.attention.build import BUILDS
from harness.studies.fuzz.builds import builds_for
from harness.studies.fuzz.rounds import rounds

pytestmark = pytest.mark.compiles(False)


@pytest.mark.parametrize("examples", [1, 2, 7, 50, 199, 200, 201, 1000, 20_000])
def test_rounds_end_at_the_number_of_examples(examples: int):
    ends = [part.until for part in rounds(BUILDS, examples)]
    assert ends[-1] == examples
    assert ends == sorted(ends)
    assert all(part.builds for part in rounds(BUILDS, examples))


def test_each_round_knows_one_more_build_until_all_are_known():
    known = [part.builds for part in islice(rounds(BUILDS, None), 15)]
    assert [len(set(builds)) for builds in known] == [min(n, len(BUILDS)) for n in range(1, 16)]
    assert known[-1] == BUILDS
    for builds in known:
        # What is drawn by its place is the same build in every round that knows it.
        assert len(builds) == len(BUILDS)
        assert builds[: len(set(builds))] == BUILDS[: len(set(builds))]


def test_the_first_build_has_the_largest_share_of_a_usual_campaign():
    assert [part.until for part in rounds(BUILDS, 200)] == [60, 90, 120, 140, 160, 180, 200]
    assert [part.until for part in rounds(BUILDS, 50)] == [15, 23, 31, 36, 41, 46, 50]


@pytest.mark.parametrize("name", ["fa1-cupy", "fa2-numba", "three-pass-cupy", "two-pass-numba"])
def test_a_usual_campaign_meets_every_dtype_long_rows_and_other_tiles(name: str):
    own = builds_for(discover().registry.get(name), BUILDS)
    met = [part.builds for part in rounds(own, 200)][-1]
    assert {build.dtype for build in met} == {"float32", "float16", "bfloat16"}
    assert max(build.head_dim for build in met) > 64
    assert len({build.tile for build in met}) == 3


@pytest.mark.parametrize("name", ["fa2-mma-cupy", "fa2-mma-numba"])
def test_a_usual_campaign_meets_more_stages_than_two(name: str):
    own = builds_for(discover().registry.get(name), BUILDS)
    met = [part.builds for part in rounds(own, 200)][-1]
    assert any("stages=3" in (build.tile or "") for build in met)
