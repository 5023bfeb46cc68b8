"""What paged kernels have compiled in, as campaigns draw it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from harness.model.build import Build
from harness.model.tile_sizes import TileSizes
from harness.operations.paged_attention.problem import PagedProblem

SPLIT, KEYS = "split", "Bc"
"""What variants call the keys that they take at once: of a block where sequences are split, of a tile elsewhere."""
PLAIN_LENGTHS = (40, 7)
WARP_LANES = 32


@dataclass(frozen=True)
class PagedBuild(Build):
    """What kernels have compiled in, which makes each a compilation of its own: there are few to draw from."""

    dtype: str
    head_dim: int
    page_size: int = 16
    tile_keys: int = 64
    """Keys that lengths are drawn around multiples of, besides pages."""
    tile: str | None = None
    """See `Build.tile`."""

    @property
    def is_wide(self) -> bool:
        """See `Build.is_wide`."""
        return WARP_LANES < self.head_dim <= 2 * WARP_LANES

    @property
    def plain_problem(self) -> PagedProblem:
        """Two sequences of a few pages."""
        return PagedProblem(
            lengths=PLAIN_LENGTHS, heads=2, kv_heads=1, head_dim=self.head_dim, dtype=self.dtype,
            page_size=self.page_size,
        )  # fmt: skip

    def sized(self, tile: TileSizes, text: str | None) -> PagedBuild:
        """See `Build.sized`."""
        return dataclasses.replace(self, tile_keys=tile.get(SPLIT, tile.get(KEYS, self.tile_keys)), tile=text)

    def tiles(self, problem: PagedProblem) -> tuple[int, int]:
        """How many sequences, and how many times `tile_keys` the longest one has."""
        return problem.sequences, -(-max(problem.lengths) // self.tile_keys)


BUILDS = (
    # float32 first: small mistakes cannot hide behind rounding there.
    PagedBuild("float32", 16, 48),
    PagedBuild("float16", 24, 32),
    PagedBuild("bfloat16", 33, 48),
    PagedBuild("float32", 64, 32),
    PagedBuild("bfloat16", 64),
    PagedBuild("float16", 128, 64),
    PagedBuild("float32", 7, 16),
    PagedBuild("float16", 64, 256),
    PagedBuild("float32", 128, 16),
    PagedBuild("bfloat16", 80, 16),
)
"""Rows of whole sectors, of half and odd ones, longer than a warp, what models have; pages of several tiles and of one,
of a number that no split is a multiple of, and longer than the shortest splits."""
