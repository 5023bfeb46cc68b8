"""What attention kernels have compiled in, as campaigns draw it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.model.build import Build
from harness.model.tile_sizes import TileSizes
from harness.operations.attention.problem import COMPILED_FEATURES, DROPOUT, SCORE_FEATURES, Problem

ROWS, KEYS, SPLIT = "Br", "Bc", "split"
"""What variants call the sizes of their tiles. Where keys are split over thread blocks, a split is the tile whose edges
lengths are drawn around: several of them, and all that is in one, are then met in one campaign."""
PLAIN_LENGTH = 128
PLAIN_SOFTCAP = 1.0
PLAIN_DROPOUT = 0.5
WARP_LANES = 32
LARGEST_FIRST = (512, 384, 320, 288, 256, 224, 192, 176, 160, 144, 128, 112, 104, 96, 80, 72)
"""Where a variant's reach may end: it says how far, and is held to that."""


@dataclass(frozen=True)
class AttentionBuild(Build):
    """What kernels have compiled in, which makes each a compilation of its own: there are few to draw from."""

    dtype: str
    head_dim: int
    tile_rows: int = 64
    """Query rows per tile: lengths are drawn around its multiples."""
    tile_keys: int = 32
    """Keys per tile."""
    tile: str | None = None
    """See `Build.tile`."""
    head_dims: tuple[int, ...] = ()
    """Other lengths of rows, which are tried first; see `rather`."""
    features: tuple[str, ...] = ()
    """What scores and weights become, of `COMPILED_FEATURES`."""
    rather_features: tuple[tuple[str, ...], ...] = ()
    """Sets of features that are tried first, one after the other."""

    @property
    def rather(self) -> tuple[AttentionBuild, ...]:
        """See `Build.rather`."""
        plain = dataclasses.replace(self, head_dims=(), rather_features=())
        sizes = [dataclasses.replace(plain, head_dim=head_dim) for head_dim in self.head_dims]
        with_features = [
            dataclasses.replace(each, features=features)
            for features in self.rather_features
            for each in (*sizes, plain)
        ]
        return (*with_features, *sizes)

    @property
    def less(self) -> Sequence[AttentionBuild]:
        """See `Build.less`: fewer of its features, the most of them first."""
        fewer = (itertools.combinations(self.features, n) for n in range(len(self.features) - 1, -1, -1))
        return [dataclasses.replace(self, features=chosen) for some in fewer for chosen in some]

    @property
    def is_wide(self) -> bool:
        """See `Build.is_wide`."""
        return WARP_LANES < self.head_dim <= 2 * WARP_LANES

    @property
    def plain_problem(self) -> Problem:
        """One head of `PLAIN_LENGTH` rows and keys."""
        return Problem(
            heads=1, q_len=PLAIN_LENGTH, kv_len=PLAIN_LENGTH, head_dim=self.head_dim, dtype=self.dtype,
            **self.fields_of_features(PLAIN_SOFTCAP, (PLAIN_DROPOUT, 0)),
        )  # fmt: skip

    def fields_of_features(self, softcap: float, dropout: tuple[float, int]) -> dict[str, Any]:
        """The fields of a problem that has its features, with that cap, and that share and seed of dropout."""
        on: dict[str, Any] = dict.fromkeys(self.features, True)
        if "softcap" in on:
            on["softcap"] = softcap
        if DROPOUT in on:
            on |= dict(zip((DROPOUT, "dropout_seed"), dropout))
        return on

    def sized(self, tile: TileSizes, text: str | None) -> AttentionBuild:
        """See `Build.sized`."""
        keys = tile.get(SPLIT, tile.get(KEYS, self.tile_keys))
        return dataclasses.replace(self, tile_rows=tile.get(ROWS, self.tile_rows), tile_keys=keys, tile=text)

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """How many tiles of rows and of keys the problem has, per head."""
        return -(-problem.q_len // self.tile_rows), -(-problem.kv_len // self.tile_keys)


BUILDS = (
    # float32 first: small mistakes cannot hide behind rounding there.
    AttentionBuild("float32", 16),
    AttentionBuild("float16", 24, head_dims=(20,)),
    AttentionBuild("bfloat16", 33, rather_features=(COMPILED_FEATURES, SCORE_FEATURES, (DROPOUT,))),
    AttentionBuild("float32", 64, 16, 16, head_dims=LARGEST_FIRST, rather_features=(COMPILED_FEATURES,)),
    AttentionBuild("bfloat16", 64, 16, 16, head_dims=LARGEST_FIRST, rather_features=(("sinks", DROPOUT),)),
    AttentionBuild("float16", 128, 32, 32, rather_features=(("softcap",),)),
    AttentionBuild("float32", 18, rather_features=(("alibi",),)),
    AttentionBuild("bfloat16", 72),
    AttentionBuild("float32", 72, 32, 32),
    AttentionBuild("float32", 1),
    AttentionBuild("float16", 7),
    AttentionBuild("float32", 64),
    AttentionBuild("float32", 128, 32, 32),
    AttentionBuild("float16", 64),
    AttentionBuild("bfloat16", 128, 32, 32),
    AttentionBuild("float32", 160, 16, 16),
)
"""Rows of whole sectors, of half and odd ones, fewer elements than a warp has lanes, one more than that, the most that
the variant takes, a single one, and what models have; without what scores and weights may become, and with it, together
and one by one, so that what is compiled for some alone is met. A usual campaign comes as far as the fourth that the
variant takes, and meets two other tiles."""
