"""What campaigns of paged attention draw, and how a case is made smaller."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.operations.paged_attention.axes import BRIEF_WORK, LENGTHS, MOST_WORK, PagedAxes
from harness.operations.paged_attention.build import BUILDS, PagedBuild
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.paged_attention.simplification import enlarged, peculiarities
from harness.operations.paged_attention.strategies import cases
from harness.studies.fuzz.drawing.covering import Covering
from harness.studies.fuzz.shrinking.simplification import simplify

PLAIN, WIDE = PagedBuild("float32", 16, 16, 64), PagedBuild("float16", 24, 48, 512, "Br=16,split=512")
CHECKS = ("page-order", SANITIZER)


def drawn(build: PagedBuild, brief: bool = False, most_tiles: int | None = None) -> list[tuple[dict[str, str], Case]]:
    axes = PagedAxes(most_tiles, CHECKS, ("causal",))
    covering, rng = Covering(axes, (build,), (build,), (), seed=5), random.Random(5)
    rows = [dict(covering.row(build)) for _ in range(300)]
    return [(row, axes.case(build, row, rng, brief)) for row in rows]


@pytest.mark.parametrize("build", [PLAIN, WIDE], ids=lambda build: build.name)
@pytest.mark.parametrize("brief", [False, True])
def test_cases_are_of_their_classes_and_cost_little(build: PagedBuild, brief: bool):
    size, most = build.page_size, (BRIEF_WORK if brief else MOST_WORK)
    holds: dict[str, Callable[[tuple[int, ...]], bool]] = {
        "1 key": lambda lengths: set(lengths) == {1},
        "in a page": lambda lengths: all(1 < length < size for length in lengths),
        "whole pages": lambda lengths: any(length % size == 0 for length in lengths),
        "over 1,024": lambda lengths: max(lengths) > 1024,
        "some empty": lambda lengths: 0 in lengths,
        "all empty": lambda lengths: set(lengths) == {0},
    }
    for row, case in drawn(build, brief):
        p: PagedProblem = case.problem
        assert holds.get(row[LENGTHS], lambda lengths: min(lengths) > 0)(p.lengths), (row, p.lengths)
        assert (p.prefix > 0) == (row["prefix"] == "some") and (p.q_len > 1) == (row["q_len"] != "1")
        if row[LENGTHS] != "over 1,024":
            # The first sequence has its length whatever it costs, others have at least part of a page.
            least = max(p.lengths) + p.sequences * size
            rows = p.kv_heads * max(16, p.q_len * p.group)
            assert rows * (sum(p.lengths) - least) * p.head_dim <= most


def test_what_mistakes_hide_behind_is_met_often():
    met = Counter()
    for _, case in drawn(PLAIN):
        p: PagedProblem = case.problem
        met["sequences of many lengths"] += len(set(p.lengths)) > 2
        met["more than 32 sequences"] += p.sequences > 32
        met["an empty one before others"] += 0 in p.lengths[:-1]
        met["shared pages"] += sum(p.shared_pages) > max(p.shared_pages)
        met["a full last page"] += any(length and length % p.page_size == 0 for length in p.lengths)
        met["several splits and one"] += max(p.lengths) > 64 >= min(p.lengths)
        met["rows of two heads in a tile"] += p.q_len > 1 and p.group > 1
        met["a full pool"] += p.pool_pages == p.pages_in_use
        met["a wider table"] += p.table_shape[1] > max(p.sequence_pages)
    assert min(met.values()) >= 15 and len(met) == 9, met


def test_cases_respect_supported_rows_and_most_tiles():
    assert [value.name for value in PagedAxes(None, (), ()).values["q_len"]] == ["1"]
    for _, case in drawn(PLAIN, most_tiles=2):
        assert case.problem.sequences <= 3 and max(case.problem.lengths) <= 4 * 64


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_drawn_cases_are_cases(data: st.DataObject):
    case = data.draw(cases((PLAIN, WIDE), most_tiles=4, checks=("page-order",)))
    assert Case.from_json(case.to_json()) == case
    assert sum(case.problem.lengths) <= 4 * 512 + 6 * 48
    assert not any(math.isnan(edit.value) for edit in case.edits)


LARGE = Case(
    PagedProblem(
        lengths=(0, 700, 30, 130, 48), heads=6, kv_heads=2, q_len=3, head_dim=24, dtype="float16", page_size=48,
        pages=24, table_len=20, prefix=50, scale=-0.25,
    ),
    regime="hot", seed=77, tile="Br=16,split=512", check="page-order",
)  # fmt: skip
ONE_KEY = PagedProblem(lengths=(1,), heads=1, kv_heads=1, head_dim=16, dtype="float32")


def with_fields(problem: PagedProblem, **fields: object) -> PagedProblem:
    return PagedProblem(**{**problem.to_short_fields(), **fields})


PACKED_ROWS = "q_lengths"
MIXED = Case(
    PagedProblem(lengths=(0, 70, 30), q_lengths=(0, 17, 30), heads=2, kv_heads=2, head_dim=16, dtype="float32"), "hot"
)


@pytest.mark.parametrize(
    ("fails", "rows", "lengths"),
    [
        (lambda p: p.q_lengths is None and max(p.lengths), None, (1,)),
        (lambda p: p.q_lengths and 0 in p.rows and max(p.rows) > 5, (0, 6), (0, 0)),
        (lambda p: p.q_lengths and any(0 < r == n for r, n in zip(p.rows, p.lengths)), (1,), (1,)),
    ],
)
def test_a_failing_case_with_packed_rows_becomes_the_smallest(
    fails: Callable[[PagedProblem], bool], rows: tuple[int, ...] | None, lengths: tuple[int, ...]
):
    problem: PagedProblem = simplify(MIXED, lambda case: bool(fails(case.problem)), Builds((PLAIN,))).problem
    assert fails(problem) and (problem.q_lengths, tuple(sorted(problem.lengths))) == (rows, lengths)


def test_packed_rows_are_drawn_with_empty_chunks_tokens_and_whole_prompts_beside_each_other():
    build = PLAIN.having((PACKED_ROWS,))
    rng = random.Random(1)
    lengths = (40, 300, 7, 0)
    drawn = [build.drawn_rows(rng.choice, lengths, 5, 2**20)[PACKED_ROWS] for _ in range(100)]
    for n, length in enumerate(lengths):
        assert {0, 1, 5, length, 17} <= {rows[n] for rows in drawn}
    assert any({0, 1} < set(rows) and (rows[0] == 40 or rows[1] == 300) for rows in drawn)
    assert all(sum(rows) > 0 for rows in drawn)
    tokens = [build.drawn_rows(rng.choice, lengths, 1, 2**20)[PACKED_ROWS] for _ in range(20)]
    assert {count for rows in tokens for count in rows} == {0, 1}
    assert max(build.drawn_rows(rng.choice, (300,), 40, 3000)[PACKED_ROWS]) <= 10


@pytest.mark.parametrize(
    ("fails", "smallest"),
    [
        (lambda p: max(p.lengths) > 0, ONE_KEY),
        (lambda p: sum(p.sequence_pages) > 2, with_fields(ONE_KEY, lengths=(33,))),
        (lambda p: p.sequences > 1 and max(p.lengths) > 0, with_fields(ONE_KEY, lengths=(0, 1))),
        (lambda p: p.group > 1 and max(p.lengths) > 0, with_fields(ONE_KEY, heads=2)),
        (lambda p: p.q_len > 1 and max(p.lengths) > 0, with_fields(ONE_KEY, q_len=2)),
        (lambda p: p.page_size == 48 and max(p.lengths) > 48, None),
    ],
)
def test_a_failing_case_becomes_the_smallest(fails: Callable[[PagedProblem], bool], smallest: PagedProblem | None):
    found = simplify(LARGE, lambda case: fails(case.problem), Builds((PLAIN, WIDE)))
    problem: PagedProblem = found.problem
    assert fails(problem)
    assert (found.regime, found.seed, found.check) == ("normal", 0, None)
    if smallest is not None:
        assert problem == smallest
    else:
        assert (problem.lengths, problem.heads, problem.prefix, problem.pages) == ((49,), 1, 0, None)


def test_an_enlarged_case_has_room():
    problem: PagedProblem = enlarged(Case(ONE_KEY), Builds((PLAIN,))).problem
    assert problem.sequences == 3 and min(problem.lengths) > 2 * 64 and problem.heads == 2


def test_what_a_case_has_is_said():
    said = peculiarities(LARGE, (5, 2))
    assert said[0] == "5 sequences of 0+700+30+130+48 keys"
    assert {"6 heads over 2 of K and V", "3 rows", "a prefix of 50 keys", "pages of 48", "scale -0.25"} <= set(said)


def test_there_are_builds_of_every_kind():
    assert {build.dtype for build in BUILDS} == {"float32", "float16", "bfloat16"}
    assert any(build.page_size > build.tile_keys for build in BUILDS)
    assert any(build.tile_keys % build.page_size for build in BUILDS)
