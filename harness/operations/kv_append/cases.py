"""The cases of appending that campaigns meet: builds, axes, and how a failing case is made smaller.

Keys before the append and new tokens come in classes around the edges of pages, and mixed in a batch.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.model.cases.axes import CHECK, EDITS, NO_CHECK, NONE, REGIME, SOME, Choice, NamedAxes, Pick, ProbedAxis
from harness.model.cases.build import Builds
from harness.model.cases.case import Case, Edit
from harness.model.cases.property import SANITIZER, VECTOR_BYTES
from harness.model.problem import ELEMENT_BYTES
from harness.model.spread import FAR, in_powers, nearer_than
from harness.operations.kv_append.inputs import BITS, REGIMES
from harness.operations.kv_append.problem import AppendProblem, new_in_words
from harness.operations.paged_attention.axes import BATCHES, CROWD, POOLS, TABLES
from harness.operations.paged_attention.build import PagedBuild
from harness.operations.paged_attention.build import builds_of as paged_builds_of
from harness.operations.paged_attention.sequences import lengths_in_words
from harness.operations.paged_attention.simplification import changed
from harness.support.override import override

OLD, NEW, BATCH, HEADS, POOL, PREFIX, TABLE = "old keys", "new tokens", "batch", "heads", "pool", "prefix", "table"
MIXED, BESIDE, ALL_EMPTY, MANY = "mixed", "beside pages", "none at all", "several pages"
HEAD_COUNTS: Mapping[str, tuple[int, ...]] = {"1": (1,), "2 to 5": (2, 3, 5), "8 or more": (8, 12)}
SPECIAL_VALUES = (0.0, -0.0, 1.0, 1e-40, float("nan"), float("inf"), float("-inf"))
MOST_ELEMENTS = 2**17
"""Elements of K_new: a fraction of a second on the emulator."""
BRIEF_ELEMENTS = 2**15
"""`MOST_ELEMENTS` of a brief case."""
MOST_POOL_ELEMENTS = 2**20
"""Elements of K. The whole pool is compared."""
WEIGHTS = {
    NEW: {ALL_EMPTY: 0.1, MANY: 0.5},
    BATCH: {CROWD: 0.4},
    EDITS: {SOME: 0.2},
    REGIME: {BITS: 0.5},
}
"""What hides mistakes, or takes long, comes up less readily."""
APART = {
    (NEW, ALL_EMPTY): {EDITS: {SOME}},
    (NEW, MANY): {BATCH: {CROWD}},
    (OLD, "0"): {PREFIX: {SOME}},
    (BATCH, "1"): {PREFIX: {SOME}},
    (CHECK, SANITIZER): {BATCH: {CROWD}},
}
"""What does not go with what: it contradicts itself, or takes long."""
PLAIN: Choice = {EDITS: NONE, CHECK: NO_CHECK}
COMMON: tuple[Choice, ...] = (
    {**PLAIN, OLD: BESIDE, NEW: "1", BATCH: "4 to 9"},
    {**PLAIN, OLD: "0", NEW: MANY, BATCH: "2 or 3"},
    {**PLAIN, OLD: MIXED, NEW: MIXED, BATCH: "4 to 9"},
    {**PLAIN, OLD: MIXED, NEW: "1", BATCH: CROWD},
)
"""Decoding, prompts, both in one batch, and a large batch."""


@dataclass(frozen=True)
class AppendBuild(PagedBuild):
    """What kernels have compiled in."""

    @property
    @override
    def plain_problem(self) -> AppendProblem:  # type: ignore[override]
        return AppendProblem(
            lengths=(40, 7), new_lengths=(10, 1), kv_heads=2, head_dim=self.head_dim, dtype=self.dtype,
            page_size=self.page_size,
        )  # fmt: skip

    @override
    def of_problem(self, problem: Any) -> AppendBuild:
        return dataclasses.replace(self, dtype=problem.dtype, head_dim=problem.head_dim, page_size=problem.page_size)

    def tiles(self, problem: Any) -> tuple[int, int]:
        """How many sequences, and how many pages of new tokens one has at most."""
        return problem.sequences, -(-max(problem.new_lengths) // self.page_size)


def builds_of(seed: int) -> tuple[AppendBuild, ...]:
    """Return the builds of a campaign, paged attention's: rows and pages of all kinds, the plainest first."""
    return tuple(AppendBuild(each.dtype, each.head_dim, each.page_size) for each in paged_builds_of(seed))


def beside(size: int) -> tuple[int, ...]:
    """Return counts at and beside the edges of one and two pages."""
    return tuple(pages * size + step for pages in (1, 2) for step in (-1, 0, 1))


OLD_CLASSES: Mapping[str, Callable[[int], Sequence[int]]] = {
    MIXED: lambda size: (0, 1, size - 1, size, size // 2, 3 * size + 1),
    "0": lambda size: (0,),
    "in a page": lambda size: tuple(range(1, size)),
    BESIDE: beside,
    "over 1,024": lambda size: (1025, 1087, 1280, 2049),
}
"""Rows of a page -> keys of a sequence before the append, by class; each sequence has its own."""
NEW_CLASSES: Mapping[str, Callable[[int], Sequence[int]]] = {
    MIXED: lambda size: (0, 0, 1, 2, size - 1, size, size + 1, 2 * size + 3),
    "1": lambda size: (1,),
    "0 or 1": lambda size: (0, 1),
    "in a page": lambda size: tuple(range(2, size)),
    BESIDE: beside,
    MANY: lambda size: (3 * size, 5 * size + 1, 8 * size - 1),
    ALL_EMPTY: lambda size: (0,),
}
"""Rows of a page -> new tokens of a sequence, by class; each sequence has its own."""


def one_edit(pick: Pick, problem: AppendProblem) -> Edit:
    """One element of the new tokens or of the pool with a special value."""
    array = pick(("K_new", "V_new", "K", "V") if problem.tokens else ("K", "V"))
    index = tuple(pick(range(extent)) for extent in problem.tensor(array).shape)
    return Edit(array, index, pick(SPECIAL_VALUES))


def posed(
    build: AppendBuild,
    old: Sequence[int],
    new: Sequence[int],
    pool: Callable[[int], int | None] = POOLS["holes"],
    table: Callable[[int], int | None] = TABLES["fitting"],
    **fields: Any,
) -> AppendProblem:
    """Return the problem of a build with these keys and new tokens; `pool` and `table` are of `POOLS` and `TABLES`."""
    plain = AppendProblem(
        lengths=tuple(map(sum, zip(old, new))), new_lengths=tuple(new), head_dim=build.head_dim, dtype=build.dtype,
        page_size=build.page_size, **fields,
    )  # fmt: skip
    return dataclasses.replace(plain, pages=pool(plain.pages_in_use), table_len=table(plain.table_shape[1]))


class AppendAxes(NamedAxes):
    """Keys, new tokens, batches, heads, pools, prefixes, tables, edits, regimes and properties."""

    def __init__(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str] = ()) -> None:
        """`most_tiles`: the most sequences. There are no features to take."""
        most = max(1, most_tiles or 2**10)
        names: dict[str, Iterable[str]] = {
            OLD: OLD_CLASSES,
            NEW: NEW_CLASSES,
            BATCH: [name for name, counts in BATCHES.items() if counts[0] <= most],
            HEADS: HEAD_COUNTS,
            POOL: POOLS,
            PREFIX: (NONE, SOME),
            TABLE: TABLES,
        }
        super().__init__(names, REGIMES, checks, WEIGHTS, APART, COMMON)

    @override
    def case(self, build: AppendBuild, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        size, heads = build.page_size, rng.choice(HEAD_COUNTS[choice[HEADS]])
        most = (BRIEF_ELEMENTS if brief else MOST_ELEMENTS) // (build.head_dim * heads)
        batch = rng.choice(BATCHES[choice[BATCH]])
        old = [rng.choice(OLD_CLASSES[choice[OLD]](size)) for _ in range(batch)]
        new: list[int] = []
        for _ in range(batch):
            count = rng.choice(NEW_CLASSES[choice[NEW]](size))
            new.append(count if not new or sum(new) + count <= most else min(count, 1))
        prefix = rng.choice((size, 2 * size + 3, max(old))) if choice[PREFIX] == SOME else 0
        problem = posed(build, old, new, POOLS[choice[POOL]], TABLES[choice[TABLE]], kv_heads=heads, prefix=prefix)
        most_pages = MOST_POOL_ELEMENTS // (size * build.head_dim)
        if problem.kv_heads * problem.pool_pages > most_pages:
            problem = dataclasses.replace(problem, pages=None, kv_heads=max(1, most_pages // problem.pages_in_use))
        edits = self.edits(choice, rng, lambda: one_edit(rng.choice, problem))
        return Case(problem, choice[REGIME], rng.randrange(2**16), edits, build.tile, self.check(choice))

    @override
    def far_cases(self, builds: Sequence[AppendBuild], seed: int) -> Sequence[Case]:
        # The plainest build, and the one whose rows divide into the shortest vectors: kernels may count these.
        narrow = min(builds, key=lambda build: math.gcd(build.head_dim * ELEMENT_BYTES[build.dtype], VECTOR_BYTES))
        return [
            Case(posed(each, (each.page_size - 1, 2), (each.page_size + 2, 3), kv_heads=2, far=FAR), "normal", seed)
            for each in dict.fromkeys((builds[0], narrow))
        ]


def size(case: Case, builds: Builds) -> tuple[object, ...]:
    """How large a case is: tokens first, then sequences, keys and heads, the build, and how plain the inputs are."""
    p: AppendProblem = case.problem
    return (
        p.far.bit_length(),
        p.sequences,
        sum(-(-new // p.page_size) for new in p.new_lengths),
        sum(p.sequence_pages),
        p.kv_heads,
        p.prefix != 0,
        (p.pages is not None) + (p.table_len is not None),
        *builds.input_size(case),
        p.tokens,
        sum(p.lengths),
        case.seed,
    )


MOST_TAKEN_ONE_BY_ONE = 8
"""Sequences of which each is left out, or made shorter, on its own."""


def simpler(case: Case, builds: Builds) -> Iterator[Case]:
    """Cases that are smaller in one respect, the most worthwhile first; a few of them are not smaller at all."""
    p: AppendProblem = case.problem
    for nearer in nearer_than(p.far):
        yield changed(case, far=nearer)
    pairs = list(zip(p.old_lengths, p.new_lengths))
    few = min(len(pairs), MOST_TAKEN_ONE_BY_ONE)
    if len(pairs) > 1:
        yield from (_of_sequences(case, [pair]) for pair in dict.fromkeys(pairs[:few]))
        yield from (_of_sequences(case, pairs[at : at + 2]) for at in range(few - 1) if len(pairs) > 2)
        yield _of_sequences(case, pairs[: len(pairs) // 2])
        yield _of_sequences(case, pairs[len(pairs) // 2 :])
        yield from (_of_sequences(case, pairs[:at] + pairs[at + 1 :]) for at in range(few))
    for at, (old, new) in enumerate(pairs[:few]):
        for fewer in dict.fromkeys((0, 1, old % p.page_size, old - p.page_size, old - 1)):
            if 0 <= fewer < old:
                yield _of_sequences(case, [*pairs[:at], (fewer, new), *pairs[at + 1 :]])
        for fewer in dict.fromkeys((0, 1, 2, new // 2, new - p.page_size, new - 1)):
            if 0 <= fewer < new:
                yield _of_sequences(case, [*pairs[:at], (old, fewer), *pairs[at + 1 :]])
    for heads in (1, 2):
        if heads < p.kv_heads:
            yield changed(case, kv_heads=heads)
    for field, plain in (("prefix", 0), ("pages", None), ("table_len", None)):
        yield changed(case, **{field: plain})
    yield from case.with_fewer_edits()
    for build in builds.simplified(builds.of(case)):
        yield _rebuilt(case, build)
    yield from case.with_plainer_regime()
    yield from case.with_small_seed()


def enlarged(case: Case, builds: Builds) -> Case:
    """A larger case with the same inputs: three sequences at least, with new tokens in two pages and a bit."""
    p: AppendProblem = case.problem
    pairs = [(old, max(new, 2 * p.page_size + 3)) for old, new in zip(p.old_lengths, p.new_lengths)]
    larger = _of_sequences(case, pairs + [pairs[-1]] * (3 - len(pairs)))
    return changed(larger, kv_heads=max(2, p.kv_heads))


def probed_axes(case: Case, builds: Builds) -> list[ProbedAxis]:
    """New tokens of every sequence, then keys that are there before."""
    p: AppendProblem = case.problem
    return [
        ProbedAxis(
            "new tokens per sequence", max(1, *p.new_lengths), p.page_size,
            lambda n: _of_sequences(case, [(old, n) for old in p.old_lengths]),
        ),
        ProbedAxis(
            "keys before the append", max(1, *p.old_lengths), p.page_size,
            lambda n: _of_sequences(case, [(n, new) for new in p.new_lengths]),
        ),
    ]  # fmt: skip


def peculiarities(case: Case, tiles: Sequence[int], assumed_tile: Sequence[int] = ()) -> list[str]:
    """What a case has beyond the plainest, in words."""
    p: AppendProblem = case.problem
    takes = [lengths_in_words(p.lengths), new_in_words(p.new_lengths)]
    takes += [f"{p.kv_heads} heads"] if p.kv_heads > 1 else []
    takes += [f"a prefix of {p.prefix} keys"] if any(p.shared_pages) else []
    takes.append(f"pages of {p.page_size}")
    takes += [] if p.table_len is None else [f"a table of {p.table_len} places"]
    takes.append(p.dtype)
    takes += [f"offsets beyond {in_powers(p.far)} elements"] if p.far else []
    return takes


def _of_sequences(case: Case, pairs: Sequence[tuple[int, int]]) -> Case:
    """With sequences of these keys before the append and new tokens."""
    lengths, new_lengths = zip(*((old + new, new) for old, new in pairs))
    return changed(case, lengths=lengths, new_lengths=new_lengths)


def _rebuilt(case: Case, build: AppendBuild) -> Case:
    """As many pages, filled alike, with another build."""
    p: AppendProblem = case.problem

    def rows(count: int) -> int:
        pages, rest = divmod(count, p.page_size)
        return pages * build.page_size + min(rest, build.page_size - 1)

    rebuilt = _of_sequences(case, [(rows(old), rows(new)) for old, new in zip(p.old_lengths, p.new_lengths)])
    fields = {"dtype": build.dtype, "head_dim": build.head_dim, "page_size": build.page_size}
    return dataclasses.replace(changed(rebuilt, **fields), tile=build.tile)
