"""What a usual campaign meets on purpose: every two values of its axes, and what strangers' kernels went wrong at."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
from asked_cases import SEEDS, cases_of, usual_cases, whole_campaign
from no_kernel import NoKernel

from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.model.discovery import discover
from harness.model.operation import Operation, operation_named
from harness.operations.attention.cases.axes import MOST_WORK, AttentionAxes
from harness.operations.attention.cases.build import BUILDS, AttentionBuild, builds_of
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.problem import COMPILED_FEATURES, SCORE_FEATURES, Problem
from harness.studies.fuzz import campaign
from harness.studies.fuzz.drawing import covering as covering_module
from harness.studies.fuzz.drawing.builds import builds_for, sanitized_builds
from harness.studies.fuzz.drawing.covering import BUILD, Covering

pytestmark = pytest.mark.compiles(False)


def sees_nothing(problem: Problem) -> bool:
    first, end = problem.span(np.arange(problem.q_len))
    return bool((end <= first).any())


FEATURES = tuple(name for name in COMPILED_FEATURES if name in discover().registry.get("fa2-cupy").takes)
"""Those that the variant of these campaigns takes."""
CHANGES_OF_SCORES = tuple(name for name in SCORE_FEATURES if name in FEATURES)
AT_LEAST: dict[str, tuple[int, Callable[[Case], bool]]] = {
    "more than 1,024 keys": (8, lambda c: c.problem.kv_len > 1024),
    "more than 1,024 keys in float32": (3, lambda c: c.problem.kv_len > 1024 and c.problem.dtype == "float32"),
    "more than 2,048 keys": (5, lambda c: c.problem.kv_len > 2048),
    "more than 1,024 rows": (8, lambda c: c.problem.q_len > 1024),
    "more than four tiles of keys": (20, lambda c: c.problem.kv_len > 4 * 32),
    "head_dim 256 in float32": (15, lambda c: (c.problem.head_dim, c.problem.dtype) == (256, "float32")),
    "groups of 5 to 7": (15, lambda c: c.problem.group in (5, 6, 7)),
    "groups of 8": (15, lambda c: c.problem.group == 8),
    "a square causal problem above 64 rows": (
        6,
        lambda c: c.problem.causal and c.problem.q_len == c.problem.kv_len > 64,
    ),
    "square problems above 64 rows": (10, lambda c: c.problem.q_len == c.problem.kv_len > 64),
    "a grid of more than 1,056 blocks": (1, lambda c: c.problem.heads * c.problem.batch > 1056),
    "heads that are no power of two": (40, lambda c: c.problem.heads & (c.problem.heads - 1) > 0),
    "sequences with masks of their own": (20, lambda c: c.problem.mask.sequences > 1),
    "sequences with masks of their own, and groups": (
        8,
        lambda c: c.problem.mask.sequences > 1 and c.problem.group > 1,
    ),
    "every change of scores": (15, lambda c: c.problem.score_features == CHANGES_OF_SCORES),
    **{
        f"{feature} alone": (10, lambda c, feature=feature: c.problem.compiled_features == (feature,))
        for feature in FEATURES
    },
    "every change of scores without a mask": (
        2,
        lambda c: c.problem.score_features == CHANGES_OF_SCORES and not c.problem.mask.parts,
    ),
    "one of them in float32": (
        40,
        lambda c: len(c.problem.compiled_features) == 1 and c.problem.dtype == "float32",
    ),
    "dropout of a seed beyond 32 bits": (3, lambda c: c.problem.dropout > 0 and c.problem.dropout_seed >= 2**32),
    "sinks of rows that see no key": (2, lambda c: c.problem.sinks and sees_nothing(c.problem)),
    "looked at by the sanitizer": (14, lambda c: c.check == SANITIZER),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_usual_campaign_meets_what_bugs_hide_behind(seed: int):
    cases, _ = whole_campaign("fa2-cupy", seed)
    assert len(cases) == 200
    met = {name: sum(map(is_one, cases)) for name, (_, is_one) in AT_LEAST.items()}
    assert not {name: count for name, count in met.items() if count < AT_LEAST[name][0]}
    plainest, wide = {(c.problem.build_key, c.tile): None for c in cases if c.check == SANITIZER}
    assert plainest == (("float32", 16), None) and 32 < wide[0][1] <= 96 and wide[0][2:]


PRODUCT = 32
"""Rows and keys of a matrix product of a warp."""


def sees_all_but_the_last_key(problem: Problem) -> bool:
    """Whether `PRODUCT` rows see `PRODUCT` keys, except that the last key is hidden from the first row."""
    first, end = problem.span(np.arange(problem.q_len))
    begins = np.arange(0, problem.q_len, PRODUCT)
    lasts = np.minimum(begins + PRODUCT, problem.q_len) - 1
    edge = end[begins] + 1
    return bool(((edge % PRODUCT == 0) & (edge <= problem.kv_len) & (first[lasts] <= edge - PRODUCT)).any())


def sees_all_but_the_first_key(problem: Problem) -> bool:
    """Whether `PRODUCT` rows see `PRODUCT` keys, except that the first key is hidden from the last row."""
    first, end = problem.span(np.arange(problem.q_len))
    lasts = np.arange(PRODUCT, problem.q_len + 1, PRODUCT) - 1
    edge = first[lasts] - 1
    return bool(((edge % PRODUCT == 0) & (edge >= 0) & (end[lasts + 1 - PRODUCT] >= edge + PRODUCT)).any())


def ends_lie_apart(problem: Problem, tile_rows: int, tile_keys: int) -> bool:
    """Whether a tile of rows sees several tiles of keys, but no `PRODUCT` rows see both the first and the last."""
    first, end = problem.span(np.arange(problem.q_len))

    def tiles(begin: int, rows: int) -> tuple[int, int]:
        last = min(begin + rows, problem.q_len) - 1
        return int(first[begin]) // tile_keys, (int(end[last]) - 1) // tile_keys

    for begin in range(0, problem.q_len, tile_rows):
        of_tile = tiles(begin, tile_rows)
        products = range(begin, min(begin + tile_rows, problem.q_len), PRODUCT)
        if of_tile[0] < of_tile[1] and all(tiles(row, PRODUCT) != of_tile for row in products):
            return True
    return False


def sequences_see_other_tiles(problem: Problem, tile_keys: int) -> bool:
    """Whether the first or last key that a row sees lies in another tile than in sequence 0."""
    rows = np.arange(problem.q_len)
    spans = [problem.span(rows, sequence) for sequence in range(problem.mask.sequences)]
    tiles = [(first // tile_keys, (end - 1) // tile_keys) for first, end in spans]
    return any((one != other).any() for of_one in tiles for one, other in zip(tiles[0], of_one))


@pytest.mark.parametrize("seed", SEEDS)
def test_masks_end_one_key_beside_the_edges_of_products(seed: int, monkeypatch: pytest.MonkeyPatch):
    cases, _ = cases_of("bwd-mma-ordered-cupy", seed, monkeypatch)
    bands = [c.problem for c in cases if c.problem.mask.parts and c.problem.mask.is_band]
    assert sum(map(sees_all_but_the_last_key, bands)) >= 2
    assert sum(map(sees_all_but_the_first_key, bands)) >= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_narrow_windows_end_in_tiles_that_no_product_sees_both(seed: int):
    variant = discover().registry.get("fa2-mma-cupy")
    cases, _ = whole_campaign(variant.name, seed)
    builds = Builds(builds_for(variant, builds_of(seed)))
    bands = [(c.problem, builds.of(c)) for c in cases if "window" in c.problem.features and c.problem.mask.is_band]
    assert sum(ends_lie_apart(p, build.tile_rows, build.tile_keys) for p, build in bands) >= 4
    assert any(ends_lie_apart(p, b.tile_rows, b.tile_keys) for p, b in bands if not {*p.compiled_features} - {"sinks"})


@pytest.mark.parametrize("seed", SEEDS)
def test_sequences_of_a_batch_see_keys_of_other_splits(seed: int, monkeypatch: pytest.MonkeyPatch):
    variant = discover().registry.get("split-kv-cupy")
    cases, _ = cases_of(variant.name, seed, monkeypatch)
    builds = Builds(builds_for(variant, builds_of(seed)))
    apart = [c for c in cases if c.problem.mask.sequences > 1]
    assert sum(sequences_see_other_tiles(c.problem, builds.of(c).tile_keys) for c in apart) >= 3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["fa2-cupy", "fa2-mma-cupy", "paged-split-kv-cupy", "softmax-online-cupy"])
def test_a_usual_campaign_meets_nearly_every_pair_of_values(name: str, seed: int):
    _, result = whole_campaign(name, seed)
    coverage = result.coverage
    assert coverage is not None
    assert set(coverage.not_met) <= {BUILD}
    # Each build that was not met has a pair with each value of the other axes.
    axes = operation_named(discover().registry.get(name).operation).axes(None, campaign_checks(name), takes(name))
    values = sum(len(of_axis) for of_axis in axes.values.values())
    of_builds = values * len(coverage.not_met.get(BUILD, ()))
    # A share of the examples is of what users ask for most, whatever pairs that repeats.
    assert coverage.met >= 0.96 * (coverage.pairs - of_builds)


def square(case: Case, least: int) -> bool:
    return case.problem.q_len == case.problem.kv_len >= least


WHAT_MODELS_RUN: dict[str, Callable[[Case], bool]] = {
    "causal squares of 128 and more": lambda c: c.problem.causal and square(c, 128),
    "causal squares of grouped heads": lambda c: c.problem.causal and square(c, 128) and c.problem.group > 1,
    "causal squares of several sequences": lambda c: c.problem.causal and square(c, 128) and c.problem.batch > 1,
    "squares without a mask": lambda c: not c.problem.mask.parts and square(c, 128),
    "whole tiles of 64 both ways, causal": lambda c: (
        c.problem.causal and c.problem.q_len >= 128 and c.problem.q_len % 64 == c.problem.kv_len % 64 == 0
    ),
    "a token decoded after 128 to 4,096": lambda c: c.problem.q_len == 1 and 128 <= c.problem.kv_len <= 4096,
    "a token decoded by groups of 8": lambda c: (
        c.problem.q_len == 1 and c.problem.kv_len >= 128 and c.problem.group == 8
    ),
    "a chunk of a prefill": lambda c: c.problem.causal and 1 < c.problem.q_len < c.problem.kv_len >= 128,
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["fa2-cupy", "fa2-mma-cupy", "row-wise-cupy", "bwd-fa2-cupy", "split-kv-cupy"])
def test_what_models_run_is_met_early(name: str, seed: int):
    cases = usual_cases(name, seed)
    soon = {what for what, is_one in WHAT_MODELS_RUN.items() if any(map(is_one, cases[:60]))}
    assert soon == WHAT_MODELS_RUN.keys()
    # A square in front of which no mask of another kind stands, and no inputs that hide its diagonal.
    first = next(number for number, c in enumerate(cases, 1) if c.problem.mask.text == "causal" and square(c, 128))
    assert first <= 12


def test_rows_of_models_are_met_in_each_dtype_over_a_few_seeds():
    variant = discover().registry.get("fa2-cupy")
    builds = [build for seed in range(16) for build in builds_for(variant, builds_of(seed))[:6]]
    met = {(build.dtype, build.head_dim) for build in builds}
    dtypes, lengths = ("float32", "float16", "bfloat16"), (64, 128)
    assert {(dtype, length) for dtype in dtypes for length in lengths} - met == set()


def test_a_result_names_what_no_build_had(monkeypatch: pytest.MonkeyPatch):
    from harness.studies.fuzz.report import campaigns_report

    _, short = cases_of("fa2-cupy", 0, monkeypatch, examples=1)
    _, usual = whole_campaign("fa2-cupy", 0)
    assert short.coverage is not None and usual.coverage is not None
    missing = {"float16", "bfloat16", "head_dim 64 to 128"}
    missing |= {f"{feature} {how}" for feature in FEATURES for how in ("alone", "with others")}
    assert missing <= set(short.coverage.not_met_in_builds) and not usual.coverage.not_met_in_builds
    report = campaigns_report([short], "a device")
    (found,) = report.document()["campaigns"]
    assert missing <= set(found["not_met"]) and "batch 17 or more" in found["not_met"]
    (line,) = (note for note in report.notes() if note.startswith("fa2-cupy: not covered: "))
    assert all(name in line for name in missing)
    assert not any("not covered" in note for note in campaigns_report([usual], "a device").notes())


def campaign_checks(name: str) -> tuple[str, ...]:
    return (*operation_named(discover().registry.get(name).operation).properties, SANITIZER)


def takes(name: str) -> tuple[str, ...]:
    return discover().registry.get(name).takes


def test_the_same_seed_chooses_the_same_and_another_something_else(monkeypatch: pytest.MonkeyPatch):
    first, second, other = (cases_of("fa2-cupy", seed, monkeypatch, examples=40)[0] for seed in (3, 3, 4))
    assert first == second
    assert len(set(first) & set(other)) < 5


@pytest.mark.parametrize("name", ["fa2-cupy", "fa2-mma-cupy"])
def test_tensors_are_packed_where_they_are_equally_large(name: str):
    in_layouts = [case.problem for case in usual_cases(name, 0) if not case.problem.layout.is_dense]
    assert {problem.layout.order for problem in in_layouts} == {"bhsd", "bshd", "qkv"}
    assert [problem.layout.order for problem in in_layouts if problem.far] == ["bshd", "bshd"]


def test_gradients_lie_like_their_tensors_and_apart_from_them():
    layouts = {case.problem.layout for case in usual_cases("bwd-fa2-cupy", 0)}
    assert {layout.gradients is None for layout in layouts if not layout.is_dense} == {True, False}
    assert {layout.of_gradients.order for layout in layouts} == {"bhsd", "bshd", "qkv"}


def test_what_is_refused_was_not_met(monkeypatch: pytest.MonkeyPatch):
    def refusals(case: Case) -> str | None:
        return "long rows are out of reach" if case.problem.q_len > 1024 else None

    _, result = cases_of("fa2-cupy", 0, monkeypatch, refusals)
    assert result.coverage is not None
    assert result.coverage.not_met["q_len"] == ("over 1,024",)
    assert result.refused > 0


def test_what_a_variant_does_not_take_is_no_value(monkeypatch: pytest.MonkeyPatch):
    cases, result = cases_of("softmax-native-cupy", 0, monkeypatch)
    fails_in = discover().registry.get("softmax-native-cupy").fails_in
    assert fails_in and not {case.regime for case in cases} & set(fails_in)
    assert result.coverage is not None and not result.coverage.not_met
    axes = AttentionAxes(None, (), ())
    assert [value.name for value in axes.values["mask"]] == ["none"]


def test_what_may_fail_as_declared_is_not_asked(monkeypatch: pytest.MonkeyPatch):
    cases, result = cases_of("native-cupy", 0, monkeypatch)
    fails_in = discover().registry.get("native-cupy").fails_in
    attention = operation_named("attention")
    assert len(cases) == 200 and not any(case.regime in fails_in or attention.leaves_regime(case) for case in cases)
    assert any(case.edits for case in cases)
    others, _ = cases_of("row-wise-cupy", 0, monkeypatch)
    assert any(attention.leaves_regime(case) for case in others)
    assert result.coverage is not None and result.coverage.not_met["property"] == ("score-shift",)


def test_few_tiles_are_kept_to_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch):
    cases, _ = cases_of("fa2-cupy", 0, monkeypatch, most_tiles=2)
    builds = {build.key: build for build in builds_for(discover().registry.get("fa2-cupy"), BUILDS)}
    tilings = {builds[(c.problem.build_key, c.tile)].tiles(c.problem) for c in cases}
    assert tilings == {(1, 1), (1, 2), (2, 1)}


@pytest.mark.parametrize("build", [BUILDS[0], BUILDS[3], AttentionBuild("float16", 24, 128, 96)], ids=lambda b: b.name)
@pytest.mark.parametrize("brief", [False, True])
def test_cases_are_of_their_classes_and_cost_little(build: AttentionBuild, brief: bool):
    axes = AttentionAxes(None, (SANITIZER,), ("causal", "window"))
    covering = Covering(axes, (build,), sanitized_builds((build,)), (), seed=5)
    rng = random.Random(5)
    for _ in range(300):
        row = covering.row(build)
        case = axes.case(build, row, rng, brief)
        p = case.problem
        rows, keys = build.tiles(p)
        holds = {
            "1": lambda n, t, size: n == 1,
            "part of a tile": lambda n, t, size: 1 < n < size,
            "whole tiles": lambda n, t, size: n % size == 0,
            "2 to 4 tiles": lambda n, t, size: 2 <= t <= 4 and n % size,
            "5 to 17 tiles": lambda n, t, size: 5 <= t <= 17,
            "128 to 4,096": lambda n, t, size: 128 <= n <= 4096 and n % 64 == 0,
            "over 1,024": lambda n, t, size: n > 1024,
            "over 2,048": lambda n, t, size: n > 2048,
            "equal to q_len": lambda n, t, size, q_len=p.q_len: n == q_len,
        }
        assert holds[row["q_len"]](p.q_len, rows, build.tile_rows), row
        assert holds[row["kv_len"]](p.kv_len, keys, build.tile_keys), row
        assert (case.regime, bool(case.edits), case.check or "none") == (
            row["regime"], row["edits"] == "some", row["property"],
        )  # fmt: skip
        assert "+".join(sorted(p.features)) == (row["mask"] if row["mask"] != "none" else "")
        # What is least of its classes may be more than a case is to cost, but not by much.
        least = max(p.q_len, 16) * max(p.kv_len, 16) * p.heads * p.batch * p.head_dim
        assert least <= 64 * MOST_WORK, p.headline


def test_rows_that_repeat_are_mostly_brief_and_none_before_them():
    axes, build = AttentionAxes(4, (), ("causal", "window")), BUILDS[0]
    covering = Covering(axes, (build,), (), (), seed=5)
    rows = [(covering.row(build), covering.is_brief) for _ in range(600)]
    assert not any(is_brief for _, is_brief in rows[:200])
    assert 0.65 < sum(is_brief for _, is_brief in rows[200:]) / 400 < 0.85

    def work(brief: bool) -> int:
        problems = [axes.case(build, row, random.Random(number), brief).problem for number, (row, _) in enumerate(rows)]
        return sum(p.batch * p.heads * p.q_len * p.kv_len for p in problems)

    assert work(brief=True) < 0.8 * work(brief=False)


def test_tiles_of_many_keys_make_no_case_that_takes_long(monkeypatch: pytest.MonkeyPatch):
    # What Hypothesis draws has two tiles at most where it has a crowd, and only one crowd.
    monkeypatch.setattr(campaign._Campaign, "_explore", lambda self, *arguments: None)
    cases, result = cases_of("split-kv-cupy", 3000, monkeypatch, examples=250)
    assert len(cases) > 100 and result.coverage is not None and set(result.coverage.not_met) <= {BUILD}
    for case in cases:
        p = case.problem
        assert p.batch * p.heads * max(p.q_len, 16) * max(p.kv_len, 16) * p.head_dim <= 32 * MOST_WORK, p.headline
    assert any(case.problem.batch > 16 and case.problem.kv_len >= 512 for case in cases)


def test_few_tiles_go_with_few_heads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(campaign._Campaign, "_explore", lambda self, *arguments: None)
    cases, result = cases_of("fa2-cupy", 3, monkeypatch, examples=250, most_tiles=4)
    assert result.coverage is not None and set(result.coverage.not_met) <= {BUILD}
    assert max(case.problem.batch for case in cases) == 3 and 12 <= max(case.problem.heads for case in cases) <= 24
    assert all(case.problem.q_len <= 4 * 128 and case.problem.kv_len <= 4 * 64 for case in cases)


def test_a_campaign_asks_for_the_brief_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(campaign._Campaign, "_explore", lambda self, *arguments: None)
    asked = {}
    for share in (1.0, 0.25):
        monkeypatch.setattr(covering_module, "WHOLE_LATER", share)
        asked[share], _ = cases_of("fa2-cupy", 3, monkeypatch, examples=500, most_tiles=4)
    first = covering_module.PAIRING_ROWS // 2
    assert asked[1.0][:first] == asked[0.25][:first] and asked[1.0] != asked[0.25]


def test_two_values_that_do_not_go_together_never_do():
    axes = AttentionAxes(None, (SANITIZER,), ())
    small, other = BUILDS[:2]
    covering = Covering(axes, (small, other), (small,), (), seed=1)
    rows = [covering.row(build) for build in (small, other) for _ in range(150)]
    for row in rows:
        assert all(axes.meet(*pair) for pair in itertools.combinations(list(row.items())[1:], 2))
        assert not (row["property"] == SANITIZER and (row["q_len"] == "over 1,024" or row[BUILD] == other.name))
    assert {row["regime"] for row in rows} == set(REGIMES)


def test_an_operation_without_axes_is_drawn_by_hypothesis_alone():
    fields = {field.name: field for field in dataclasses.fields(Operation)}
    assert fields["axes"].default(None, (), ()) is None


@pytest.mark.parametrize("name", ["fa2-cupy", "softmax-online-cupy"])
def test_what_is_asked_does_not_depend_on_how_early_it_is_drawn(name: str, monkeypatch: pytest.MonkeyPatch):
    def odd_heads(case: Case) -> str | None:
        return "no" if hash(case.problem) % 7 == 0 else None

    early, _ = cases_of(name, 2, monkeypatch, odd_heads, examples=300, most_tiles=4)
    monkeypatch.setattr(NoKernel, "most_ahead", 1)
    monkeypatch.setattr(NoKernel, "ahead_of_search", 0)
    late, _ = cases_of(name, 2, monkeypatch, odd_heads, examples=300, most_tiles=4)
    assert early == late
