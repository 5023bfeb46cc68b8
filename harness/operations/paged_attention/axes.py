"""What campaigns of paged attention meet on purpose: lengths, batches, rows, heads, pools, tables, inputs, properties.

Lengths come in classes around pages and around what a kernel takes at once, and mixed: very different ones side by side
are what a batch is made of, and what splits and tables are mistaken in. Sizes that would take long together are cut to
what a case may cost (`MOST_WORK`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from harness.model.cases.axes import CHECK, EDITS, NO_CHECK, NONE, REGIME, SOME, Choice, NamedAxes, Pick
from harness.model.cases.case import Case, Edit
from harness.model.cases.property import SANITIZER
from harness.model.problem import ELEMENT_BYTES
from harness.model.spread import FAR, reached_by_all
from harness.operations.attention.cases.case_values import LARGE_VALUES, SCALES, SPECIAL_VALUES, term_edits
from harness.operations.attention.problem import LAYOUT
from harness.operations.paged_attention import eight_bits
from harness.operations.paged_attention.build import PagedBuild
from harness.operations.paged_attention.inputs import NOT_FINITE, REGIMES
from harness.operations.paged_attention.pool_layout import FAR as FAR_LAYOUTS
from harness.operations.paged_attention.problem import PagedProblem
from harness.support.override import override

MOST_WORK = 2**20
"""Rows times keys times elements of a row, over all heads and sequences: a fraction of a second on the emulator."""
BRIEF_WORK = 2**18
"""`MOST_WORK` of a brief case."""
RUNS_OF_CHECK = 3
LEAST_ROWS = 16
"""What a kernel works for at least, however few there are."""

LENGTHS, BATCH, Q_LEN, HEADS = "lengths", "batch", "q_len", "heads"
POOL, PREFIX, TABLE, SCALE = "pool", "prefix", "table", "scale"
MIXED, ONE, IN_A_PAGE, PAGES, BESIDE = "mixed", "1 key", "in a page", "whole pages", "beside pages"
TILES, USUAL, LONG = "beside tiles", "128 to 4,096", "over 1,024"
EMPTY, ALL_EMPTY = "some empty", "all empty"
CROWD, ROWS_OF_TILES = "33 or more", "9 to 40"

BATCHES: Mapping[str, tuple[int, ...]] = {"2 or 3": (2, 3), "1": (1,), "4 to 9": (4, 5, 8, 9), CROWD: (33, 40, 65)}
"""Beyond 32, where a warp that looks through the lengths has to look once more."""
ROW_COUNTS: Mapping[str, tuple[int, ...]] = {"1": (1,), "2 to 8": (2, 3, 4, 5, 8), ROWS_OF_TILES: (9, 16, 17, 33, 40)}
HEAD_COUNTS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "1": ((1, 1),),
    "several": ((2, 2), (3, 3), (5, 5)),
    "a group": ((2, 1), (3, 1), (4, 1), (8, 1)),
    "groups": ((4, 2), (6, 3), (10, 2), (12, 3)),
    "groups of more than 16": ((17, 1), (40, 2)),
}
"""(heads, kv_heads) of each class, the fewest first."""
POOLS: Mapping[str, Callable[[int], int | None]] = {
    "holes": lambda used: None,
    "full": lambda used: max(1, used),
    "mostly holes": lambda used: 3 * used + 5,
}
"""Pages that are in use -> pages that there are."""
TABLES: Mapping[str, Callable[[int], int | None]] = {"fitting": lambda used: None, "longer": lambda used: used + 3}
"""Entries that a row of the table needs -> entries that it has."""
WEIGHTS = {
    LENGTHS: {ONE: 0.3, ALL_EMPTY: 0.1, LONG: 0.4, USUAL: 0.5},
    BATCH: {CROWD: 0.3},
    Q_LEN: {ROWS_OF_TILES: 0.5},
    SCALE: {"other": 0.3, "negative": 0.2, "0": 0.1},
    EDITS: {SOME: 0.2},
    REGIME: {"constant": 0.5, "exact": 0.5, NOT_FINITE: 0.7},
}
"""What hides mistakes, or takes long, comes up less readily."""
APART = {
    (LENGTHS, LONG): {BATCH: {CROWD}, Q_LEN: {ROWS_OF_TILES}, HEADS: {"groups of more than 16"}},
    (LENGTHS, USUAL): {BATCH: {CROWD}, Q_LEN: {ROWS_OF_TILES}, HEADS: {"groups of more than 16"}},
    (LENGTHS, TILES): {BATCH: {CROWD}},
    (LENGTHS, ALL_EMPTY): {PREFIX: {SOME}, EDITS: {SOME}},
    (LENGTHS, ONE): {PREFIX: {SOME}},
    (LENGTHS, IN_A_PAGE): {PREFIX: {SOME}},
    (BATCH, "1"): {PREFIX: {SOME}},
    (BATCH, CROWD): {Q_LEN: {ROWS_OF_TILES}, HEADS: {"groups", "groups of more than 16"}},
    (CHECK, SANITIZER): {LENGTHS: {LONG, USUAL}, BATCH: {CROWD}, Q_LEN: {ROWS_OF_TILES}},
}
"""What does not go with what: it contradicts itself, or takes long."""
PLAIN: Choice = {SCALE: "default", EDITS: NONE, CHECK: NO_CHECK}
COMMON: tuple[Choice, ...] = (
    {**PLAIN, LENGTHS: USUAL, BATCH: "2 or 3", Q_LEN: "1", HEADS: "groups"},
    {**PLAIN, LENGTHS: USUAL, BATCH: "4 to 9", Q_LEN: "1", HEADS: "several"},
    {**PLAIN, LENGTHS: USUAL, BATCH: "1", Q_LEN: "1", HEADS: "a group"},
    {**PLAIN, LENGTHS: MIXED, BATCH: "4 to 9", Q_LEN: "1", HEADS: "groups"},
    {**PLAIN, LENGTHS: USUAL, BATCH: "2 or 3", Q_LEN: "2 to 8", HEADS: "groups"},
)
"""What decoding asks for, and a few rows that were guessed ahead, the most frequent first."""
LONE_SEQUENCE: Choice = {
    **PLAIN, LENGTHS: LONG, BATCH: "1", Q_LEN: "1", HEADS: "1", PREFIX: NONE, POOL: "mostly holes", REGIME: "rising",
}  # fmt: skip
"""One row and very many keys, the last of which matter most, in a large pool."""
LONE_LENGTH = 16_500
"""Its keys: more than 32 splits of 512."""
LARGE_POOL = 70_000
"""Pages that there are then: more than 16 bits count."""
LARGEST_POOL_BYTES = 2**27
"""Bytes of K in a large pool; where the pages of a build come to more, the pool is as small as any."""
USUAL_LENGTHS = (128, 256, 384, 512, 777, 1000, 1024, 1500, 2048, 3000, 4096)
LONG_LENGTHS = (1025, 1087, 1280, 1536, 2048, 2049)
FEW_PAGES = 5


def one_edit(pick: Pick, problem: PagedProblem) -> Edit:
    """One element of Q, K, V or an input of a score term or sinks with a special value; of any page, in use or not."""
    array = pick(("V", "K", "Q", *(name for term in problem.terms for name in term.input_names)))
    index = tuple(pick(range(extent)) for extent in problem.tensor(array).shape)
    if array in eight_bits.SCALES and problem.kv_dtype is not None:
        return Edit(array, index, pick(eight_bits.SPECIAL_VALUES))
    return Edit(array, index, pick(SPECIAL_VALUES + (LARGE_VALUES if array == "V" else ())))


class PagedAxes(NamedAxes):
    """Lengths, batches, rows, heads, pools, tables, scales, edits, regimes and properties of paged attention."""

    def __init__(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> None:
        """`most_tiles`: at most so many times `tile_keys` in a sequence, and so many sequences."""
        self._most_tiles = most_tiles
        few = most_tiles is not None
        names: dict[str, Iterable[str]] = {
            LENGTHS: [name for name in CLASSES if not (few and name in (USUAL, LONG))],
            BATCH: [name for name, counts in BATCHES.items() if not few or counts[0] <= max(1, most_tiles or 0)],
            Q_LEN: ROW_COUNTS if "causal" in takes else ("1",),
            HEADS: HEAD_COUNTS,
            POOL: POOLS,
            PREFIX: (NONE, SOME),
            TABLE: TABLES,
            SCALE: SCALES,
        }
        super().__init__(names, REGIMES, checks, WEIGHTS, APART, COMMON, (LONE_SEQUENCE,))

    @override
    def case(self, build: PagedBuild, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        check = self.check(choice)
        work = (BRIEF_WORK if brief else MOST_WORK) // build.head_dim // (1 if check is None else RUNS_OF_CHECK)
        q_len = rng.choice(ROW_COUNTS[choice[Q_LEN]])
        heads, kv_heads = rng.choice(HEAD_COUNTS[choice[HEADS]])
        keys = work // (kv_heads * max(LEAST_ROWS, q_len * heads // kv_heads))
        most = keys if self._most_tiles is None else min(keys, self._most_tiles * build.tile_keys)
        lengths = self._lengths(build, choice[LENGTHS], rng.choice(BATCHES[choice[BATCH]]), most, rng)
        is_lone = all(choice.get(axis) == name for axis, name in LONE_SEQUENCE.items() if axis != REGIME)
        if is_lone:
            lengths = (LONE_LENGTH,)
        size = build.page_size
        ahead = size * (build.tile_keys // size + 1)
        prefix = 0 if choice[PREFIX] == NONE else rng.choice((size, ahead, 2 * size + 3, 3 * size, max(lengths)))
        fits = self._most_tiles is None and choice[LENGTHS] != LONG and (ahead + size) * len(lengths) <= most
        if prefix == ahead and fits:
            # They share more than a kernel takes at once, and each has less than a page besides.
            lengths = tuple(ahead + length % size if length else 0 for length in lengths)
        fields = {
            "lengths": lengths,
            "heads": heads,
            "kv_heads": kv_heads,
            "q_len": q_len,
            "head_dim": build.head_dim,
            "dtype": build.dtype,
            "page_size": size,
            "prefix": prefix,
            "scale": rng.choice(SCALES[choice[SCALE]]),
            **build.drawn_features(rng.choice),
        }
        most_pairs = work // (heads * len(lengths))
        plain = PagedProblem(**fields | build.drawn_rows(rng.choice, lengths, q_len, most_pairs))
        pool_bytes = LARGE_POOL * size * build.head_dim * ELEMENT_BYTES[build.dtype]
        pool = POOLS[choice[POOL]] if not is_lone or pool_bytes > LARGEST_POOL_BYTES else lambda used: LARGE_POOL
        problem = with_pool(plain, pool, TABLES[choice[TABLE]])
        edits = self.edits(choice, rng, lambda: one_edit(rng.choice, problem))
        edits = (*term_edits(rng.choice, problem), *edits)
        return Case(problem, choice[REGIME], rng.randrange(2**16), edits, build.tile, check)

    @override
    def far_cases(self, builds: Sequence[PagedBuild], seed: int) -> Sequence[Case]:
        if self._most_tiles is not None:
            return ()
        build = builds[0]
        lengths = (build.page_size + build.tile_keys // 2, build.page_size // 2)
        size, dtype, head_dim = build.page_size, build.dtype, build.head_dim
        problem = PagedProblem(
            lengths=lengths, heads=2, kv_heads=2, head_dim=head_dim, dtype=dtype, page_size=size, far=FAR
        )
        cases = [Case(problem, seed=seed, tile=build.tile)]
        strided = next((each for each in builds if LAYOUT in each.features), None)
        if strided is not None:
            own = strided.having((LAYOUT,))
            lengths = (own.page_size + own.tile_keys // 2, own.page_size // 2)
            sizes = {"head_dim": own.head_dim, "dtype": own.dtype, "page_size": own.page_size, "lengths": lengths}
            for layout in FAR_LAYOUTS:
                strided_problem = problem.with_fields(**sizes, layout=layout)
                far = reached_by_all(FAR, (strided_problem.tensor(name).strides[0] for name in "KV"))
                cases.append(Case(strided_problem.with_fields(far=far), seed=seed, tile=own.tile))
        return tuple(cases)

    def _lengths(self, build: PagedBuild, name: str, batch: int, most: int, rng: random.Random) -> tuple[int, ...]:
        """One of each sequence, the first whatever it costs; what would bring all beyond `most` keys is in a page."""
        if self._most_tiles is not None:
            batch = min(batch, max(1, self._most_tiles))
        found: list[int] = []
        for _ in range(batch):
            length = rng.choice(CLASSES[_one_of(name, rng)](build))
            fits = not found or length <= build.page_size or sum(found) + length <= most
            found.append(length if fits else rng.randint(1, build.page_size))
        if name == EMPTY:
            found[rng.randrange(batch)] = 0
        rng.shuffle(found)
        return tuple(found)


def with_pool(
    problem: PagedProblem, pages: Callable[[int], int | None], table_len: Callable[[int], int | None]
) -> PagedProblem:
    """The problem with another pool and another table."""
    fields = {**problem.to_fields(), "pages": pages(problem.pages_in_use)}
    fields["table_len"] = table_len(problem.table_shape[1])
    return PagedProblem.from_fields(fields)


def _one_of(name: str, rng: random.Random) -> str:
    """The class of one sequence's length."""
    return rng.choice((ONE, IN_A_PAGE, PAGES, BESIDE, BESIDE, TILES, TILES)) if name in (MIXED, EMPTY) else name


def _beside(unit: int, counts: Iterable[int]) -> tuple[int, ...]:
    """One less than so many units, as many, one more, and something between."""
    around = itertools.product(counts, (-1, 0, 1, unit // 3))
    return tuple(sorted({max(1, count * unit + step) for count, step in around}))


CLASSES: Mapping[str, Callable[[PagedBuild], Sequence[int]]] = {
    MIXED: lambda build: (),
    ONE: lambda build: (1,),
    IN_A_PAGE: lambda build: tuple(range(2, build.page_size)),
    PAGES: lambda build: tuple(build.page_size * count for count in range(1, FEW_PAGES + 1)),
    BESIDE: lambda build: _beside(build.page_size, range(1, FEW_PAGES)),
    TILES: lambda build: _beside(build.tile_keys, (1, 2, 3)),
    USUAL: lambda build: USUAL_LENGTHS,
    LONG: lambda build: LONG_LENGTHS,
    EMPTY: lambda build: (),
    ALL_EMPTY: lambda build: (0,),
}
"""The lengths of each class; of mixed ones, each sequence has a class of its own."""
