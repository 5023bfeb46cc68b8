"""What paged kernels have compiled in, as campaigns draw it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.model.cases.axes import Pick
from harness.model.tile_sizes import TileSizes
from harness.operations.attention.cases.build import (
    HeadBuild,
    feature_sets,
    feature_traits,
    head_dim_class,
    keys_at_once,
)
from harness.operations.attention.problem import LAYOUT
from harness.operations.paged_attention.chunks import PLAIN_ROWS, Q_LENGTHS
from harness.operations.paged_attention.eight_bits import E4M3, KV_DTYPE, why_invalid
from harness.operations.paged_attention.pool_layout import DRAWN as LAYOUTS
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.paged_attention.sequences import WINDOW
from harness.support.override import override

PLAIN_LENGTHS = (40, 7)
PLAIN_WINDOW = 8
FEATURES = (WINDOW, *(term.field for term in PagedProblem.TERMS), KV_DTYPE, LAYOUT, Q_LENGTHS)
"""Fields that are compile-time parameters of kernels; also features that a variant may list in `takes`."""


@dataclass(frozen=True)
class PagedBuild(HeadBuild):
    """What paged kernels have compiled in."""

    page_size: int = 16
    tile_keys: int = 64
    """Keys that lengths are drawn around multiples of, besides pages."""
    tile: str | None = None
    features: tuple[str, ...] = ()
    """Of `FEATURES`."""

    @property
    def plain_problem(self) -> PagedProblem:
        """Two sequences of a few pages."""
        fields = {term.field: term.plain for term in PagedProblem.TERMS if term.field in self.features}
        fields |= {WINDOW: PLAIN_WINDOW} if WINDOW in self.features else {}
        fields |= {KV_DTYPE: E4M3} if KV_DTYPE in self.features else {}
        fields |= {Q_LENGTHS: PLAIN_ROWS} if Q_LENGTHS in self.features else {}
        fields |= {LAYOUT: LAYOUTS[0]} if LAYOUT in self.features else {}
        return PagedProblem(
            lengths=PLAIN_LENGTHS, heads=2, kv_heads=1, head_dim=self.head_dim, dtype=self.dtype,
            page_size=self.page_size, **fields,
        )  # fmt: skip

    @override
    def of_problem(self, problem: PagedProblem) -> PagedBuild:
        return dataclasses.replace(
            self,
            dtype=problem.dtype,
            head_dim=problem.head_dim,
            page_size=problem.page_size,
            features=tuple(name for name in FEATURES if name in problem.features),
        )

    @override
    def with_features(self, takes: Sequence[str], place: int) -> PagedBuild:
        sets = feature_sets([name for name in FEATURES if name in takes])
        return self.having(sets[place % len(sets)])

    @override
    def having(self, features: Sequence[str]) -> PagedBuild:
        left_out = {KV_DTYPE} if why_invalid(E4M3, self.dtype, self.head_dim) else set()
        wanted = tuple(name for name in FEATURES if name in features and name not in left_out)
        return dataclasses.replace(self, features=wanted)

    @override
    def places_of_features(self, takes: Sequence[str]) -> int:
        count = len([name for name in FEATURES if name in takes])
        return count + 2 if count else 1

    @property
    @override
    def with_fewer_features(self) -> Sequence[HeadBuild]:
        return self._fewer(self.features)

    def drawn_features(self, pick: Pick) -> dict[str, Any]:
        """The fields of a problem that has its features, with values drawn for them; a window at or beside edges.

        Without `q_lengths`, which follow from the lengths (`drawn_rows`).
        """
        terms = [term for term in PagedProblem.TERMS if term.field in self.features]
        fields = {term.field: pick(term.values) if term.values else term.plain for term in terms}
        size, tile = self.page_size, self.tile_keys
        edges = (0, 1, size // 2, size - 1, size, 2 * size + 1, tile - 1, tile, tile + 1, 2 * tile + 5, 2**20)
        fields |= {WINDOW: pick(edges)} if WINDOW in self.features else {}
        fields |= {LAYOUT: pick(LAYOUTS)} if LAYOUT in self.features else {}
        return fields | ({KV_DTYPE: E4M3} if KV_DTYPE in self.features else {})

    def drawn_rows(self, pick: Pick, lengths: Sequence[int], q_len: int, most_pairs: int) -> dict[str, Any]:
        """The field `q_lengths` if the build has that feature: chunks, tokens and empty ones, mixed.

        At most `q_len` rows each where that is 1. A sequence has up to `most_pairs` pairs of rows and keys.
        """
        if Q_LENGTHS not in self.features:
            return {}
        rows = []
        for length in lengths:
            # A chunk that is the whole prompt, its last part, one beside the edges of tiles of rows, or a few rows.
            chunks = (0, 1, 1) if q_len == 1 else (0, 1, 1, 2, q_len, length, length, length // 2, 15, 16, 17, 33)
            rows.append(min(pick(chunks), max(1, most_pairs // max(1, length))))
        if not any(rows):
            rows[-1] = 1
        return {Q_LENGTHS: tuple(rows), "q_len": 1}

    @property
    @override
    def traits(self) -> tuple[str, ...]:
        sizes = head_dim_class(self.head_dim), page_size_class(self.page_size)
        return self.dtype, *sizes, *feature_traits(self.features)

    @override
    def with_tile(self, tile: TileSizes, text: str | None) -> PagedBuild:
        return dataclasses.replace(self, tile_keys=keys_at_once(tile, self.tile_keys), tile=text)

    def tiles(self, problem: PagedProblem) -> tuple[int, int]:
        """How many sequences, and how many times `tile_keys` the longest one has."""
        return problem.sequences, -(-max(problem.lengths) // self.tile_keys)


def page_size_class(page_size: int) -> str:
    """The class of a page size: the smallest, up to 64, or longer than the shortest splits."""
    if page_size > 64:
        return "pages of more than 64"
    return "pages of 16" if page_size == 16 else "pages of 17 to 64"


FIRST = (PagedBuild("float32", 16, 16), PagedBuild("float16", 24, 32))
"""float32 first: small mistakes cannot hide behind rounding there. Pages are small, so that a pool may have many."""
OTHERS = (
    PagedBuild("bfloat16", 33, 256),
    PagedBuild("float32", 64, 48),
    PagedBuild("bfloat16", 64, 48),
    PagedBuild("float16", 128, 16),
    PagedBuild("float32", 7, 64),
    PagedBuild("float16", 64, 64),
    PagedBuild("float32", 128, 80),
    PagedBuild("bfloat16", 80, 16),
)
SMALL_PAGES, LARGE_PAGES = (16, 32, 48, 64), (80, 128, 256)


def builds_of(seed: int) -> tuple[PagedBuild, ...]:
    """Those of a campaign, the plainest first; with another seed other rows and pages come early.

    Rows of whole sectors, of half and odd ones, longer than a warp, what models have; pages of several tiles and of
    one, of a number that no split is a multiple of, and longer than the shortest splits, which are the third build's.
    """
    if seed == 0:
        return FIRST + OTHERS
    rng = random.Random(seed)
    third, *others = OTHERS
    rest = rng.sample(others, len(others))
    return (
        *FIRST,
        dataclasses.replace(third, page_size=rng.choice(LARGE_PAGES)),
        *(dataclasses.replace(each, page_size=rng.choice(SMALL_PAGES)) for each in rest),
    )


BUILDS = builds_of(0)
"""The builds of a campaign with seed 0, and of tests that draw cases."""
