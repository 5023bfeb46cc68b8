from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from itertools import islice

import pytest

from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.discovery import discover
from harness.model.operation import operation_named, operation_names
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.cases import build as build_module
from harness.operations.attention.cases.build import BUILDS, AttentionBuild, builds_of
from harness.operations.attention.problem import COMPILED_FEATURES
from harness.studies.fuzz.drawing.builds import builds_for, builds_with, sanitized_builds
from harness.studies.fuzz.drawing.examples_per_build import rounds

pytestmark = pytest.mark.compiles(False)


@pytest.mark.parametrize("examples", [1, 2, 7, 50, 199, 200, 201, 1000, 20_000])
def test_rounds_end_at_the_number_of_examples(examples: int):
    ends = [part.until for part in rounds(BUILDS, examples)]
    assert ends[-1] == examples
    assert ends == sorted(ends)
    assert all(part.builds for part in rounds(BUILDS, examples))


def test_the_rounds_of_builds():
    own = [part.builds for part in islice(rounds(BUILDS, None), len(BUILDS) + 10)]
    assert own[:14] == [(build,) for build in (*BUILDS[:7], *BUILDS[:7])]
    assert own[14:-3] == [(build,) for build in BUILDS[7:]]
    assert own[-3:] == [BUILDS] * 3


def test_the_first_build_has_the_largest_share_of_a_usual_campaign():
    ends = [0, *(part.until for part in rounds(BUILDS, 200))]
    sizes = [end - began for began, end in itertools.pairwise(ends)]
    assert sizes == [12, 12, 8, 8, 10, 10, 10, 48, 26, 20, 12, 14, 10]
    assert sum(sizes[:4]) <= 40, "features are compiled into the first four builds"
    assert [one + other for one, other in zip(sizes[:6], sizes[7:])] == [60, 38, 28, 20, 24, 20]
    assert [part.until for part in rounds(BUILDS, 50)] == [3, 6, 8, 10, 12, 15, 18, 30, 36, 41, 44, 48, 50]


def test_hypothesis_has_a_share_where_it_can_steer_by_something():
    searched = [part.until - part.chosen_until for part in rounds(BUILDS, 200)]
    assert searched == [*[0] * 7, 15, 0, 0, 0, 0, 0]
    assert [part.until - part.chosen_until for part in islice(rounds(BUILDS, None), 14, 16)] == [62, 62]


@pytest.mark.parametrize("features", range(12))
@pytest.mark.parametrize("examples", [200, 50, 1000])
def test_each_feature_has_a_round_of_its_own_among_the_first(features: int, examples: int):
    first = min(examples, 200)
    parts = list(rounds(BUILDS, examples, features + 2))
    looks = max(7, features + 2)
    ends = [0, *(part.until for part in parts)]
    assert [part.builds for part in parts[: looks + 7]] == [(build,) for build in (*BUILDS[:looks], *BUILDS[:7])][
        : len(parts)
    ]
    sizes = [end - began for began, end in itertools.pairwise(ends)]
    assert all(size >= 0.03 * first for size in sizes[:looks]) and max(sizes[: 2 * looks]) == sizes[looks]
    assert ends[-1] == examples and ends == sorted(ends)
    if features <= 5:
        assert parts == list(rounds(BUILDS, examples))


def test_a_feature_more_is_met_alone_in_a_usual_campaign(monkeypatch: pytest.MonkeyPatch):
    features = (*COMPILED_FEATURES, "toy")
    monkeypatch.setattr(build_module, "COMPILED_FEATURES", features)
    builds = [dataclasses.replace(build, feature_order=features) for build in BUILDS]
    own = builds_for(some_variant(features), builds)
    examples: Counter[tuple[str, ...]] = Counter()
    for began, part in itertools.pairwise((None, *rounds(own, 200, own[0].places_of_features(features)))):
        assert len(part.builds) == 1
        examples[part.builds[0].features] += part.until - (began.until if began else 0)
    assert all(examples[(name,)] >= 10 for name in features)
    assert set(examples) == {(), features, *((name,) for name in features)}


def some_variant(takes: tuple[str, ...]) -> Variant:
    return Variant(name="some", plan=lambda p: Plan(()), takes=takes, supports=lambda p: None)


FEATURES = [c for n in range(5) for c in itertools.combinations(COMPILED_FEATURES, n)]


@pytest.mark.parametrize("takes", FEATURES, ids="+".join)
@pytest.mark.parametrize("seed", [0, 1, 5])
def test_each_feature_is_met_with_all_others_at_once_and_alone_soon_after(takes: tuple[str, ...], seed: int):
    sets = [build.features for build in builds_for(some_variant(takes), builds_of(seed))]
    assert sets[:2] == [(), takes]
    assert {(name,) for name in takes} <= set(sets[: 2 + len(takes)])
    # Every two of them together, apart, and either without the other.
    for one, other in itertools.combinations(takes, 2):
        assert len({(one in features, other in features) for features in sets[: 2 + len(takes)]}) == 4


def test_other_seeds_meet_other_builds():
    met = {
        seed: [build.name for build in builds_for(some_variant(COMPILED_FEATURES), builds_of(seed))[:6]]
        for seed in range(4)
    }
    assert all(set(met[one]) != set(met[other]) for one, other in itertools.combinations(met, 2))
    assert len({name for names in met.values() for name in names}) >= 12
    assert {names[0] for names in met.values()} == {"float32, 16"}
    for seed in range(4):
        traits = {trait for build in BUILDS for trait in build.traits}
        early = {trait for build in builds_for(some_variant(()), builds_of(seed))[:4] for trait in build.traits}
        assert traits - early <= {"head_dim 64 to 128"}


def test_a_build_of_another_seed_is_known_from_its_case():
    builds = Builds(builds_for(some_variant(COMPILED_FEATURES), BUILDS)[:3])
    own = Case(AttentionBuild("float32", 16).plain_problem)
    assert builds_with(builds, own) is builds
    other = Case(AttentionBuild("float16", 96, features=("sinks",)).plain_problem, tile="Br=16,Bc=8")
    more = builds_with(builds, other)
    assert more is not None and more.of(other).key == (other.problem.build_key, other.tile)
    assert more.rank(other) == 3 and more.of(other).tiles(other.problem) == (8, 16)


def met_by(name: str) -> list[AttentionBuild]:
    own = builds_for(discover().registry.get(name), BUILDS)
    return [build for part in rounds(own, 200) for build in part.builds]


@pytest.mark.parametrize("name", ["fa1-cupy", "fa2-numba", "three-pass-cupy", "two-pass-numba"])
def test_a_usual_campaign_has_all_dtypes_longest_rows_and_other_tiles(name: str):
    met = met_by(name)
    assert {build.dtype for build in met} == {"float32", "float16", "bfloat16"}
    assert max(build.head_dim for build in met if build.dtype == "float32") >= 256
    assert len({build.tile for build in met}) == 3


@pytest.mark.parametrize("name", ["fa2-mma-cupy", "fa2-mma-numba"])
def test_a_usual_campaign_has_and_sanitizes_more_than_two_stages(name: str):
    staged = list(dict.fromkeys(build for build in met_by(name) if "stages=3" in (build.tile or "")))
    assert len(staged) == 1
    plainest, wide, *most_staged = sanitized_builds(builds_for(discover().registry.get(name), BUILDS))
    assert not plainest.is_wide and wide.is_wide and most_staged == staged
    assert max(build.head_dim for build in met_by(name)) == 256


@pytest.mark.parametrize(
    ("takes", "longest"), [(lambda d: d <= 160, 160), (lambda d: d <= 512, 512), (lambda d: d in (16, 64), 64)]
)
def test_a_usual_campaign_compiles_for_the_longest_supported_rows(takes, longest: int):
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
def test_compile_time_features_make_a_valid_problem(operation: str):
    builds = operation_named(operation).builds
    for build in builds:
        for each in (*build.preferred, build):
            assert each.plain_problem.operation == operation
