"""What attention kernels have compiled in, as campaigns draw it."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.model.cases.axes import Pick
from harness.model.cases.build import Build
from harness.model.tile_sizes import TileSizes
from harness.operations.attention.bias import BIAS
from harness.operations.attention.layout import BSHD, DENSE, QKV, Layout
from harness.operations.attention.layout import DRAWN as LAYOUTS
from harness.operations.attention.masks.mask import Mask
from harness.operations.attention.masks.varlen import Varlen
from harness.operations.attention.problem import COMPILED_FEATURES, DROPOUT, LAYOUT, V_HEAD_DIM, Problem
from harness.operations.attention.score_terms import TERMS
from harness.support.gpu_data_sheets import WARP_LANES
from harness.support.override import override

ROWS, KEYS, SPLIT = "Br", "Bc", "split"
"""What variants call the sizes of their tiles. Where keys are split over thread blocks, a split is the tile whose edges
lengths are drawn around: several of them, and all that is in one, are then met in one campaign."""
TILE_NAMES = {"row": ROWS, "key": KEYS}
"""What variants call the rows and the keys of a tile."""
PLAIN_LENGTH = 128
PLAIN_DROPOUT = 0.5
DROPOUTS = ((0.5, 0), (0.1, 2**32 + 7), (0.75, 1), (0.5, 2**63))
"""Shares and seeds. 1 / (1 - P) is a power of two for most, so that some answers are exact."""
USUAL_HEAD_DIMS = (64, 80, 128)
WIDTHS = 2
"""Builds in succession in which V has a length of its own, first more elements per row than K, then fewer."""
LARGEST_FIRST = (512, 384, 320, 288, 256, 224, 192, 176, 160, 144, 128, 112, 104, 96, 80, 72)
"""Where a variant's reach may end: it says how far, and is held to that."""


def fitted(**fields: Any) -> Problem:
    """Return the problem with these fields. A packed layout makes it square, with as many heads of K and V as of Q.

    If rows of V are not as long as those of K, there is no packed layout, and it becomes another one. With dropout or a
    bias, there are no unpadded sequences.
    """
    fields["mask"] = mask_beside(fields["mask"], fields.get(DROPOUT), fields.get(BIAS))
    if fields.get(LAYOUT, DENSE).order == QKV and V_HEAD_DIM in fields:
        fields[LAYOUT] = Layout(BSHD, fields[LAYOUT].gap)
    elif fields.get(LAYOUT, DENSE).order == QKV:
        length = min(fields["q_len"], fields["kv_len"])
        mask = fields["mask"].clipped_to(fields["batch"], length, length)
        fields |= {"kv_heads": fields["heads"], "q_len": length, "kv_len": length, "mask": mask}
    return Problem(**fields)


def mask_beside(mask: Mask, dropout: float | None, bias: Any) -> Mask:
    """Return the mask, without unpadded sequences if there is dropout or a bias, which exclude them."""
    return mask.without(Varlen.kind) if dropout or bias is not None else mask


def other_width(head_dim: int, is_wider: bool) -> int:
    """Return elements per row of V for a build with `head_dim`: twice as many, or half as many.

    It is a multiple of 8 if `head_dim` is, so that rows are as aligned, and never `head_dim` itself.
    """
    unit = 8 if head_dim % 8 == 0 else 1
    narrower = head_dim // 2 // unit * unit
    return narrower if narrower and not is_wider else 2 * head_dim


def keys_at_once(tile: TileSizes, default: int) -> int:
    """The keys that a block takes where keys are split, otherwise those of a tile."""
    return tile.get(SPLIT, tile.get(KEYS, default))


@dataclass(frozen=True)
class HeadBuild(Build):
    """A build of kernels whose rows are those of a head; few are drawn, since each is compiled separately."""

    dtype: str
    head_dim: int

    def having(self, features: Sequence[str]) -> HeadBuild:
        """Return the build with exactly these features."""
        raise NotImplementedError

    def _fewer(self, features: Sequence[str]) -> Sequence[HeadBuild]:
        """Builds with fewer than these features: all but one, and so on down to none."""
        fewer = (itertools.combinations(features, n) for n in range(len(features) - 1, -1, -1))
        return [self.having(chosen) for some in fewer for chosen in some]

    @property
    @override
    def is_usual(self) -> bool:
        return self.head_dim in USUAL_HEAD_DIMS

    @property
    @override
    def is_wide(self) -> bool:
        return WARP_LANES < self.head_dim <= 3 * WARP_LANES


@dataclass(frozen=True)
class AttentionBuild(HeadBuild):
    """What attention kernels have compiled in."""

    tile_rows: int = 64
    """Query rows per tile: lengths are drawn around its multiples."""
    tile_keys: int = 32
    """Keys per tile."""
    declares_tile: bool = False
    """Whether the variant declares these sizes; otherwise they are assumed."""
    tile: str | None = None
    tried_first: tuple[tuple[str, int], ...] = ()
    """(dtype, head_dim) of builds that are tried before this one; see `preferred`."""
    tried_last: tuple[tuple[str, int], ...] = ()
    """(dtype, head_dim) of builds that are tried after this one; see `fallbacks`."""
    features: tuple[str, ...] = ()
    """What scores and weights become, of `COMPILED_FEATURES`, whether rows have another layout, `LAYOUT`, and whether
    those of V have another length, `V_HEAD_DIM`."""
    v_head_dim: int | None = None
    """Elements per row of V and O; None without the feature `V_HEAD_DIM`."""
    feature_order: tuple[str, ...] = COMPILED_FEATURES
    """Which of the features is the first that a build has alone; a campaign's seed decides."""

    @property
    @override
    def preferred(self) -> tuple[AttentionBuild, ...]:
        return self._others(self.tried_first)

    @property
    @override
    def fallbacks(self) -> tuple[AttentionBuild, ...]:
        return self._others(self.tried_last)

    def _others(self, others: Sequence[tuple[str, int]]) -> tuple[AttentionBuild, ...]:
        plain = dataclasses.replace(self, tried_first=(), tried_last=())
        return tuple(dataclasses.replace(plain, dtype=dtype, head_dim=head_dim) for dtype, head_dim in others)

    @override
    def with_features(self, takes: Sequence[str], place: int) -> AttentionBuild:
        wanted = [name for name in self.feature_order if name in takes]
        sets = feature_sets(wanted)
        features = sets[place % len(sets)]
        # The place after those of each feature alone.
        further = place - len(wanted) - 2
        is_wider = further % 3 == 0
        has_width = V_HEAD_DIM in takes and further >= 0 and further % 3 < WIDTHS
        if has_width and further == 0:
            return self.having((V_HEAD_DIM,), is_wider)
        # With all others at once, and in every second build after those that have one of them alone.
        has_layout = LAYOUT in takes and (
            place == 1 or (further >= 0 and place % 2 == 0) or (has_width and not is_wider)
        )
        of_rows = (*((LAYOUT,) if has_layout else ()), *((V_HEAD_DIM,) if has_width else ()))
        return self.having((*(n for n in COMPILED_FEATURES if n in features), *of_rows), is_wider)

    def having(self, features: Sequence[str], is_wider: bool = True) -> AttentionBuild:
        """Return the build with exactly these features. Rows of V that have a length of their own keep it.

        `is_wider`: whether they become longer than those of K if they do not have one.
        """
        has_width = V_HEAD_DIM in features
        width = (self.v_head_dim or other_width(self.head_dim, is_wider)) if has_width else None
        return dataclasses.replace(self, features=tuple(features), v_head_dim=width)

    @override
    def places_of_features(self, takes: Sequence[str]) -> int:
        of_widths = WIDTHS if V_HEAD_DIM in takes else 0
        return 2 + len([name for name in self.feature_order if name in takes]) + of_widths

    @property
    @override
    def with_fewer_features(self) -> Sequence[HeadBuild]:
        return self._fewer(self.features)

    @override
    def of_problem(self, problem: Problem) -> AttentionBuild:
        return dataclasses.replace(
            self,
            dtype=problem.dtype,
            head_dim=problem.head_dim,
            features=problem.compiled_features,
            v_head_dim=problem.v_head_dim,
        )

    @property
    @override
    def traits(self) -> tuple[str, ...]:
        return self.dtype, head_dim_class(self.head_dim), *feature_traits(self.features)

    @property
    def plain_problem(self) -> Problem:
        """One head of `PLAIN_LENGTH` rows and keys."""
        return Problem(
            heads=1, q_len=PLAIN_LENGTH, kv_len=PLAIN_LENGTH, head_dim=self.head_dim, dtype=self.dtype,
            **self._fields_of_features({}, (PLAIN_DROPOUT, 0)),
        )  # fmt: skip

    def drawn_features(self, pick: Pick) -> dict[str, Any]:
        """The fields of a problem that has its features, with values drawn for them.

        Not every layout takes all sizes (`fitted`).
        """
        if not self.features:
            return {}
        always = {term.field: pick(term.values) for term in TERMS if term.is_drawn_always}
        dropout = pick(DROPOUTS)
        # Drawn only if they are there, so that other cases do not depend on them.
        others = [term for term in TERMS if term.values and not term.is_drawn_always and term.field in self.features]
        values = always | {term.field: pick(term.values) for term in others}
        layout = {LAYOUT: pick(LAYOUTS)} if LAYOUT in self.features else {}
        return self._fields_of_features(values, dropout) | layout

    def _fields_of_features(self, values: Mapping[str, Any], dropout: tuple[float, int]) -> dict[str, Any]:
        on = {term.field: values.get(term.field, term.plain) for term in TERMS if term.field in self.features}
        on |= dict(zip((DROPOUT, "dropout_seed"), dropout)) if DROPOUT in self.features else {}
        on |= {LAYOUT: LAYOUTS[0]} if LAYOUT in self.features else {}
        return on | ({V_HEAD_DIM: self.v_head_dim} if V_HEAD_DIM in self.features else {})

    @property
    def depends_on_distance(self) -> bool:
        """Whether scores depend on distances."""
        return any(term.depends_on_distance and term.field in self.features for term in TERMS)

    @override
    def with_tile(self, tile: TileSizes, text: str | None) -> AttentionBuild:
        rows, keys = tile.get(ROWS, self.tile_rows), keys_at_once(tile, self.tile_keys)
        return dataclasses.replace(self, tile_rows=rows, tile_keys=keys, tile=text, declares_tile=True)

    @property
    @override
    def assumed_tile(self) -> tuple[int, ...]:
        return () if self.declares_tile else (self.tile_rows, self.tile_keys)

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """How many tiles of rows and of keys the problem has, per head."""
        return -(-problem.q_len // self.tile_rows), -(-problem.kv_len // self.tile_keys)


def feature_sets(features: Sequence[str]) -> Sequence[tuple[str, ...]]:
    """None of them, all, each alone, then all other sets, the small ones first.

    So many builds as there are features, and two more, hold every two of them together, apart, and either without the
    other: a covering array of strength two.
    """
    sizes = (0, len(features), 1, *range(2, len(features)))
    return list(dict.fromkeys(chosen for size in sizes for chosen in itertools.combinations(features, size)))


def feature_traits(features: Sequence[str]) -> list[str]:
    """Each feature, and whether it is alone."""
    return [f"{name} {'alone' if len(features) == 1 else 'with others'}" for name in features]


def head_dim_class(head_dim: int) -> str:
    """Rows of a few elements, of no whole number of 16-byte units of 16-bit elements, as models have them, longer."""
    if head_dim % 8:
        return "head_dim not a multiple of 8"
    return "head_dim over 128" if head_dim > 128 else "head_dim 64 to 128" if head_dim >= 64 else "head_dim below 64"


def _longest(dtype: str) -> AttentionBuild:
    return AttentionBuild(dtype, 64, 16, 16, tried_first=tuple((dtype, head_dim) for head_dim in LARGEST_FIRST))


FIRST = AttentionBuild("float32", 16, tried_last=(("float16", 20), ("float16", 24)))
"""float32 where that is taken: small mistakes cannot hide behind rounding there."""
NARROW = (AttentionBuild("float16", 24, tried_first=(("float16", 20),)), AttentionBuild("bfloat16", 33))
"""Half and odd sectors, and one element more than a warp has lanes."""
LONGEST = (_longest("float32"), _longest("bfloat16"))
OF_MODELS = (
    AttentionBuild("float16", 80),
    AttentionBuild("bfloat16", 128, 32, 32),
    AttentionBuild("float32", 80),
    AttentionBuild("float16", 64),
    AttentionBuild("float32", 64),
    AttentionBuild("float16", 128, 32, 32),
    AttentionBuild("bfloat16", 64),
    AttentionBuild("float32", 128, 32, 32),
)
OTHERS = (
    AttentionBuild("float32", 18),
    AttentionBuild("bfloat16", 72),
    AttentionBuild("float32", 72, 32, 32),
    AttentionBuild("float32", 1),
    AttentionBuild("float16", 7),
    AttentionBuild("float16", 256, 16, 16),
    AttentionBuild("float32", 160, 16, 16),
)


def builds_of(seed: int) -> tuple[AttentionBuild, ...]:
    """Those of a campaign, the plainest first: with another seed other ones come early, and features in another order.

    Rows of whole sectors, of half and odd ones, the most that the variant takes, and what models have, then the others;
    with two seeds in three, one of what models have before one of the odd ones.
    A usual campaign comes as far as the fourth that the variant takes, and meets two other tiles.
    """
    if seed == 0:
        return (FIRST, *NARROW, *LONGEST, *OF_MODELS, *OTHERS)
    rng = random.Random(seed)
    of_models = rng.sample(OF_MODELS, len(OF_MODELS))
    early = [*NARROW, *LONGEST]
    if narrow := seed % 3:
        dtype = early[narrow - 1].dtype
        early[narrow - 1] = next(build for build in of_models if build.dtype == dtype)
    rest = [build for build in (*LONGEST, *NARROW, *of_models) if build not in early]
    order = tuple(rng.sample(COMPILED_FEATURES, len(COMPILED_FEATURES)))
    all_of_them = (FIRST, *early, *rest, *rng.sample(OTHERS, len(OTHERS)))
    return tuple(dataclasses.replace(build, feature_order=order) for build in all_of_them)


BUILDS = builds_of(0)
"""The builds of a campaign with seed 0, and of tests that draw cases."""
