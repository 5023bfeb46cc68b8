"""What campaigns of attention meet on purpose: lengths, heads, batches, masks, scales, inputs and properties.

Lengths come in classes around the tiles of a build; as models have them, from 128 to 4,096; and beyond 1,024 and 2,048,
whatever the tiles: rings of many stages, many splits and buffers of scores for so many keys show nowhere else. Sizes
that would take long together are cut to what a case may cost (`MOST_WORK`), never below their class.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from harness.model.cases.axes import CHECK, EDITS, NO_CHECK, NONE, REGIME, SOME, Choice, Item, NamedAxes
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.operations.attention.cases.build import AttentionBuild, fitted
from harness.operations.attention.cases.case_values import (
    BESIDE_EDGES,
    CAUSAL,
    PRODUCT_ROWS,
    SCALES,
    about_square,
    depends_on_distances,
    differs_by_tiles,
    ends_lie_apart,
    fewer_keys_beside_edges,
    fewer_rows_beside_edges,
    masks_by_kind,
    one_edit,
    term_edits,
    tile_edges,
    window_beside_edges,
)
from harness.operations.attention.cases.far_cases import cases_of_campaign
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.layout import BSHD, QKV, Layout
from harness.operations.attention.masks import NO_MASK, Mask, mask_kinds
from harness.operations.attention.masks.flashmask import FlashMask
from harness.operations.attention.masks.varlen import Varlen
from harness.operations.attention.masks.window import Window
from harness.operations.attention.problem import LAYOUT, V_HEAD_DIM
from harness.support.override import override

MOST_WORK = 2**20
"""Rows times keys times elements of a row, over all heads: a fraction of a second on the emulator."""
MOST_EVER = 2**25
"""What even the least of its classes may come to. Tiles of 512 keys, a crowd and long rows go beyond together."""
USUAL_WORK = 2**21
"""`MOST_WORK` of a case with lengths as models have them: what users run most may take longer."""
BRIEF_WORK = 2**18
"""`MOST_WORK` of a brief case."""
MORE_APART = 3
"""Factor on the work of a case with a narrow window, for which kernels skip most tiles of keys."""
MOST_DRAWN_APART = 200
"""Maximum number of random lengths and windows to try until the two ends of a window lie apart."""
RUNS_OF_CHECK = 4
"""How many times a property runs the kernel, at most, the first time among them."""
LEAST_ROWS, LEAST_KEYS = 16, 16
"""What a kernel works for at least, however few there are."""

Q_LEN, KV_LEN, HEADS, BATCH, MASK, SCALE = "q_len", "kv_len", "heads", "batch", "mask", "scale"
ONE, PART, WHOLE, FEW, MANY = "1", "part of a tile", "whole tiles", "2 to 4 tiles", "5 to 17 tiles"
LONG, LONGEST = "over 1,024", "over 2,048"
USUAL = "128 to 4,096"
SQUARE = "equal to q_len"
CROWD = "17 or more"

USUAL_LENGTHS = (128, 192, 256, 384, 512, 1024, 2048, 4096)
"""As models have them: powers of two, and half as much again."""
LONG_ROWS = (1025, 1088, 2047, 2048, 2049, 4100, 8200)
LONG_KEYS = (1025, 1087, 1280, 2047, 2048)
LONGEST_KEYS = (2049, 2500, 2561, 3000, 3073)
LONGEST_ALONE = 65_600
"""Keys of a lone row instead, or rows of a lone key, where there is little else to do: more than 16 bits count, or
shared memory holds."""
LONE_HEAD_DIM = 24
"""Rows are no longer than that then."""
FEW_TILES = 4
MANY_TILES = (5, 6, 7, 8, 9, 12, 16, 17)

HEAD_COUNTS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "1": ((1, 1),),
    "several": ((2, 2), (3, 3), (5, 5)),
    "a group of 2 to 4": ((2, 1), (3, 1), (4, 1)),
    "groups of 2 to 4": ((4, 2), (6, 2), (6, 3), (12, 3)),
    "groups of 5 to 7": ((5, 1), (6, 1), (7, 1), (10, 2), (15, 3)),
    "groups of 8": ((8, 1), (16, 2), (24, 3)),
    CROWD: ((23, 1), (23, 23), (33, 33), (82, 2)),
}
"""(heads, kv_heads) of each class, the fewest first."""
BATCHES: Mapping[str, tuple[int, ...]] = {"1": (1,), "2 or 3": (2, 3), CROWD: (17, 23, 33)}
CROWDS = ((33, 33), (34, 2), (40, 8)), (33,)
"""Where both are a crowd: more blocks than 8 for each of 132 multiprocessors, as a grid with an end to it may have."""
APART, BESIDE = "apart", "beside edges"
WINDOW_ENDS = (None, APART, APART, BESIDE)
"""Where the two ends of a window lie; None: as drawn. Kernels skip tiles of keys and do not mask those seen in full."""
APART_SHARE = 0.75
"""Share of a batch's masks that differ by sequence, if they can: little else shows one taken for another."""
# What hides mistakes, or takes long, comes up less readily; what is asked for most, more so, and columns of FlashMask,
# which may go wrong in the most ways.
WEIGHTS = {
    Q_LEN: {ONE: 0.6, MANY: 0.6, LONG: 0.2, USUAL: 0.5},
    KV_LEN: {ONE: 0.2, MANY: 0.6, LONG: 0.3, LONGEST: 0.2, PART: 0.6, USUAL: 0.5},
    HEADS: {CROWD: 0.2},
    BATCH: {CROWD: 0.2},
    MASK: {CAUSAL: 1.5, NONE: 1.5, FlashMask.kind: 1.5},
    SCALE: {"other": 0.3, "negative": 0.2, "0": 0.1},
    EDITS: {SOME: 0.2},
    REGIME: {"constant": 0.5, "exact": 0.5},
}

CONTRADICT = {
    # With one row, or part of a tile of them, a square is a class of its own: it would keep all others from being met.
    (KV_LEN, SQUARE): {Q_LEN: {ONE, PART, MANY, LONG}},
    (KV_LEN, MANY): {Q_LEN: {MANY, LONG, USUAL}},
    (KV_LEN, LONG): {Q_LEN: {MANY, LONG, USUAL}},
    (KV_LEN, LONGEST): {Q_LEN: {WHOLE, FEW, MANY, LONG, USUAL}},
    (KV_LEN, USUAL): {Q_LEN: {MANY, LONG}},
    (HEADS, CROWD): {Q_LEN: {MANY, LONG, USUAL}, KV_LEN: {MANY, LONG, LONGEST, USUAL}},
    (MASK, Varlen.kind): {BATCH: {"2 or 3", CROWD}},  # its sequences are the batch
    (BATCH, "2 or 3"): {Q_LEN: {LONG}, KV_LEN: {LONG, LONGEST}},
    (BATCH, CROWD): {Q_LEN: {WHOLE, FEW, MANY, LONG, USUAL}, KV_LEN: {MANY, LONG, LONGEST, SQUARE, USUAL}},
    (CHECK, SANITIZER): {Q_LEN: {MANY, LONG, USUAL}, KV_LEN: {LONG, LONGEST, USUAL}, HEADS: {CROWD}, BATCH: {CROWD}},
}
"""What does not go with what: it contradicts itself, or takes long."""

PLAIN: Choice = {SCALE: "default", EDITS: NONE, CHECK: NO_CHECK}
COMMON: tuple[Choice, ...] = (
    {**PLAIN, Q_LEN: USUAL, KV_LEN: SQUARE, MASK: CAUSAL, HEADS: "1", BATCH: "1", REGIME: "normal"},
    {**PLAIN, Q_LEN: ONE, KV_LEN: USUAL, MASK: NONE, HEADS: "groups of 8", BATCH: "2 or 3"},
    {**PLAIN, Q_LEN: USUAL, KV_LEN: SQUARE, MASK: CAUSAL, HEADS: "groups of 2 to 4", BATCH: "1"},
    {**PLAIN, Q_LEN: USUAL, KV_LEN: SQUARE, MASK: CAUSAL, HEADS: "several", BATCH: "2 or 3"},
    {**PLAIN, Q_LEN: USUAL, KV_LEN: SQUARE, MASK: NONE, HEADS: "several", BATCH: "1"},
    {**PLAIN, Q_LEN: USUAL, KV_LEN: USUAL, MASK: CAUSAL, HEADS: "1", BATCH: "1"},
    {**PLAIN, Q_LEN: PART, KV_LEN: USUAL, MASK: CAUSAL, HEADS: "groups of 2 to 4", BATCH: "1"},
    {**PLAIN, Q_LEN: ONE, KV_LEN: USUAL, MASK: CAUSAL, HEADS: "1", BATCH: "1"},
    {**PLAIN, Q_LEN: USUAL, KV_LEN: USUAL, MASK: NONE, HEADS: "a group of 2 to 4", BATCH: "1"},
)
"""What training, prefill, a chunk of it, and decoding ask for, the most frequent first."""
LONE_ROW: Choice = {**PLAIN, Q_LEN: ONE, KV_LEN: LONGEST, MASK: NONE, HEADS: "1", BATCH: "1", REGIME: "rising"}
"""A row of very many keys, the last of which matter most: more splits than a kernel that combines them has room for."""
EVEN_ROW: Choice = {**LONE_ROW, REGIME: "normal"}
"""The same with keys that matter about equally, so that it shows if the first ones are left out."""
LONE_KEY: Choice = {**PLAIN, Q_LEN: LONG, KV_LEN: ONE, MASK: NONE, HEADS: "1", BATCH: "1", REGIME: "normal"}
"""Very many rows, of one key."""


class AttentionAxes(NamedAxes):
    """Lengths, heads, batches, masks, scales, edits, regimes and properties of attention."""

    def __init__(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> None:
        """`most_tiles`: problems of at most so many tiles per head; then none is long or has a crowd of heads."""
        self._most_tiles = most_tiles
        self._takes = frozenset(takes) & frozenset(mask_kinds())
        self._lengths = functools.cache(self._found_lengths)
        large = {MANY, LONG, LONGEST, USUAL, CROWD} if most_tiles is not None else set()

        def few_enough(*names: str) -> list[str]:
            return [name for name in names if name not in large]

        names: dict[str, Iterable[str]] = {
            Q_LEN: few_enough(ONE, PART, WHOLE, FEW, MANY, USUAL, LONG),
            KV_LEN: few_enough(ONE, PART, WHOLE, FEW, MANY, USUAL, LONG, LONGEST, SQUARE),
            MASK: (NONE, *masks_by_kind(1, self._takes)),
            HEADS: few_enough(*HEAD_COUNTS),
            BATCH: few_enough(*BATCHES),
            SCALE: SCALES,
        }
        super().__init__(names, REGIMES, checks, WEIGHTS, CONTRADICT, COMMON, (LONE_ROW, LONE_KEY, EVEN_ROW))

    @override
    def takes_too_long(self, build: AttentionBuild, choice: Choice) -> bool:
        rows, keys = self._lengths(build.tile_rows, build.tile_keys, choice[Q_LEN], choice[KV_LEN])
        head_counts, batches = _crowds(choice)
        # A thousand blocks are worth seconds once, but not once for each run of a property.
        is_repeated = choice[HEADS] == choice[BATCH] == CROWD and choice[CHECK] != NO_CHECK
        least = _least(rows, keys) * head_counts[0][0] * batches[0] * (RUNS_OF_CHECK if is_repeated else 1)
        return least * build.head_dim > MOST_EVER

    @override
    def case(self, build: AttentionBuild, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        rows, keys = self._lengths(build.tile_rows, build.tile_keys, choice[Q_LEN], choice[KV_LEN])
        head_counts, batches = _crowds(choice)
        # One after the other, each as large as the least of what is still to come lets it be.
        check = self.check(choice)
        is_usual = USUAL in (choice[Q_LEN], choice[KV_LEN])
        work = BRIEF_WORK if brief else USUAL_WORK if is_usual else MOST_WORK
        most = work // build.head_dim // (1 if check is None else RUNS_OF_CHECK)
        least = _least(rows, keys)
        heads, kv_heads = rng.choice(_within(head_counts, lambda h: h[0] * batches[0] * least <= most))
        batch = rng.choice(_within(batches, lambda n: n * heads * least <= most))
        most //= batch * heads
        if keys:
            q_len = rng.choice(_within(rows, lambda n: n * max(keys[0], LEAST_KEYS) <= most))
            kv_len = rng.choice(_within(keys, lambda n: max(q_len, LEAST_ROWS) * n <= most))
            # The lengths of the other classes are what they are for a reason.
            if choice[KV_LEN] in (FEW, MANY):
                kv_len = fewer_keys_beside_edges(rng.choice, build, kv_len, q_len)
            elif choice[Q_LEN] in (FEW, MANY):
                q_len = fewer_rows_beside_edges(rng.choice, build, q_len, kv_len)
        else:
            length = rng.choice(_within(rows, lambda n: n * n <= most))
            # Models have squares, and nothing beside them.
            is_exact = choice[Q_LEN] == USUAL
            q_len, kv_len = (length, length) if is_exact else about_square(rng.choice, build, length)
        if check is None and batch * heads == 1 and build.head_dim <= LONE_HEAD_DIM:
            if (choice[Q_LEN], choice[KV_LEN]) == (ONE, LONGEST):
                kv_len = LONGEST_ALONE
            elif (choice[Q_LEN], choice[KV_LEN]) == (LONG, ONE):
                q_len = LONGEST_ALONE
        kind = choice[MASK]
        masks = (NO_MASK,) if kind == NONE else masks_by_kind(build.tile_keys, self._takes)[kind]
        mask = _fitted(rng, masks, batch, q_len, kv_len, build.tile_keys)
        # A random stream of its own, so that other values do not depend on what is moved to an edge.
        own = random.Random(f"{batch} {heads} {q_len} {kv_len} {mask.text}")
        ends = own.choice(WINDOW_ENDS) if Window.kind in kind and mask.is_band else None
        ever = MOST_EVER // (batch * heads * build.head_dim)
        most_apart = min(MORE_APART * max(most, rows[0] * (keys or rows)[0]), ever)
        if ends == APART and (found := _apart(own, build, rows, keys, masks, most_apart)) is not None:
            q_len, kv_len, mask = found
        else:
            q_len, kv_len = _at_edges(own, build, choice, q_len, kv_len, mask)
            mask = mask.clipped_to(batch, q_len, kv_len)
        if ends == BESIDE:
            mask = window_beside_edges(mask, q_len, kv_len)
        scale, features = rng.choice(SCALES[choice[SCALE]]), build.drawn_features(rng.choice)
        if LAYOUT in features:
            # Q, K and V are packed if they are as large as each other anyway: others would be of other classes then.
            is_packed, drawn = not keys and heads == kv_heads and V_HEAD_DIM not in features, features[LAYOUT]
            order = QKV if is_packed else BSHD if drawn.order == QKV else drawn.order
            features[LAYOUT] = Layout(order, drawn.gap)
            kv_len = q_len if is_packed else kv_len
            mask = mask.clipped_to(batch, q_len, kv_len)
        problem = fitted(
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            q_len=q_len,
            kv_len=kv_len,
            head_dim=build.head_dim,
            dtype=build.dtype,
            mask=mask,
            scale=scale,
            **features,
        )
        edits = self.edits(choice, rng, lambda: one_edit(rng.choice, problem))
        edits = (*term_edits(rng.choice, problem), *edits)
        return Case(problem, choice[REGIME], rng.randrange(2**16), edits, build.tile, check)

    @override
    def far_cases(self, builds: Sequence[AttentionBuild], seed: int) -> Sequence[Case]:
        return cases_of_campaign(builds, seed) if self._most_tiles is None else ()

    def _found_lengths(
        self, tile_rows: int, tile_keys: int, q_len: str, kv_len: str
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Rows and keys to choose from, the fewest first; no keys where there are to be as many as rows."""
        rows = _lengths_of(q_len, tile_rows, LONG_ROWS)
        if kv_len == SQUARE:
            return self._few_enough(rows, lambda n: (-(-n // tile_rows), -(-n // tile_keys))), ()
        keys = _lengths_of(kv_len, tile_keys, LONGEST_KEYS if kv_len == LONGEST else LONG_KEYS)
        key_tiles = -(-keys[0] // tile_keys)
        rows = self._few_enough(rows, lambda n: (-(-n // tile_rows), key_tiles))
        row_tiles = -(-rows[-1] // tile_rows)
        return rows, self._few_enough(keys, lambda n: (row_tiles, -(-n // tile_keys)))

    def _few_enough(self, lengths: Sequence[int], tiles: Callable[[int], tuple[int, int]]) -> Sequence[int]:
        """Those of no more tiles than were asked for; 1 where there are none."""
        most = self._most_tiles
        return lengths if most is None else [n for n in lengths if math.prod(tiles(n)) <= most] or (1,)


@functools.cache
def _lengths_of(name: str, tile: int, long: tuple[int, ...]) -> Sequence[int]:
    """The lengths of a class, the shortest first."""
    return tuple(sorted(_unordered_lengths(name, tile, long)))


def _unordered_lengths(name: str, tile: int, long: tuple[int, ...]) -> Sequence[int]:
    """Those at and beside the edges of tiles about as often as all others together."""
    edges = tile_edges(tile)
    if name == ONE:
        return (1,)
    if name == PART:
        inside = [n for n in edges if 1 < n < tile]
        return (*inside * (tile // max(1, 2 * len(inside))), *range(2, tile)) or (1,)
    if name == WHOLE:
        return tuple(tiles * tile for tiles in range(1, FEW_TILES + 1))
    if name == FEW:
        fills = [n for n in edges if n < tile] or [1]
        fills = [*fills * (1 + tile // (2 * len(fills))), *range(1, tile)]
        return tuple((tiles - 1) * tile + fill for tiles in range(2, FEW_TILES + 1) for fill in fills)
    if name == MANY:
        return tuple((tiles - 1) * tile + fill for tiles in MANY_TILES for fill in edges)
    if name == USUAL:
        return USUAL_LENGTHS
    assert name in (LONG, LONGEST)
    return long


def _crowds(choice: Choice) -> tuple[Sequence[tuple[int, int]], Sequence[int]]:
    """(heads, kv_heads), and batches, to choose from."""
    if choice[HEADS] == choice[BATCH] == CROWD:
        return CROWDS
    return HEAD_COUNTS[choice[HEADS]], BATCHES[choice[BATCH]]


def _apart(
    rng: random.Random,
    build: AttentionBuild,
    rows: Sequence[int],
    keys: Sequence[int],
    masks: Sequence[Mask],
    most: int,
) -> tuple[int, int, Mask] | None:
    """Random q_len, kv_len and mask for which `ends_lie_apart`, at most `most` rows times keys; None if not found."""
    if rows[-1] <= PRODUCT_ROWS or (keys or rows)[-1] <= build.tile_keys:
        return None
    for _ in range(MOST_DRAWN_APART):
        q_len = rng.choice(rows)
        kv_len, mask = rng.choice(keys or (q_len,)), rng.choice(masks)
        if q_len * kv_len <= most and ends_lie_apart(mask, build, q_len, kv_len):
            return q_len, kv_len, mask
    return None


def _at_edges(
    rng: random.Random, build: AttentionBuild, choice: Choice, q_len: int, kv_len: int, mask: Mask
) -> tuple[int, int]:
    """Return q_len and kv_len, mostly with one of them changed within its class.

    The key at a row's own place then lies next to an edge of a matrix product.
    """
    is_done = build.depends_on_distance and not {FEW, MANY}.isdisjoint((choice[Q_LEN], choice[KV_LEN]))
    # Without such a term half as often, since lengths at the edges of tiles are needed, too.
    beside = rng.choice(BESIDE_EDGES if build.depends_on_distance else (*BESIDE_EDGES, *(None,) * len(BESIDE_EDGES)))
    if is_done or beside is None or choice[KV_LEN] == SQUARE or not depends_on_distances(build, mask):
        return q_len, kv_len
    keys = range(0) if choice[KV_LEN] == LONG else _near(choice[KV_LEN], kv_len, build.tile_keys)
    if at_edges := [n for n in keys if (n - q_len - beside) % PRODUCT_ROWS == 0]:
        return q_len, min(at_edges, key=lambda n: abs(n - kv_len))
    rows = _near(choice[Q_LEN], q_len, build.tile_rows)
    at_edges = [n for n in rows if (kv_len - n - beside) % PRODUCT_ROWS == 0]
    # Preferably at least the rows of one product.
    least = 0 if CROWD in (choice[HEADS], choice[BATCH]) else PRODUCT_ROWS
    return min(at_edges, key=lambda n: (n < least, abs(n - q_len)), default=q_len), kv_len


def _near(name: str, length: int, tile: int) -> range:
    """Lengths of the same class near this one; none if the class has exact lengths."""
    if name == PART:
        return range(2, tile)
    if name in (FEW, MANY):
        first = (length - 1) // tile * tile + 1
        return range(first, first + tile - 1)
    return range(length, length + PRODUCT_ROWS) if name == LONG else range(0)


def _fitted(rng: random.Random, masks: Sequence[Mask], batch: int, q_len: int, kv_len: int, tile_keys: int) -> Mask:
    """One of the masks, clipped to these sizes; in a batch mostly one that differs by sequence, if there is one.

    Preferably, the sequences see different tiles of keys.
    """
    apart = [mask for mask in masks if mask.sequences > 1] if batch > 1 and rng.random() < APART_SHARE else []
    clipped = [mask.clipped_to(batch, q_len, kv_len) for mask in rng.sample(apart, len(apart))]
    by_sequence = [mask for mask in clipped if mask.sequences > 1]
    for mask in by_sequence:
        if differs_by_tiles(mask, q_len, kv_len, tile_keys):
            return mask
    return by_sequence[0] if by_sequence else rng.choice(masks).clipped_to(batch, q_len, kv_len)


def _least(rows: Sequence[int], keys: Sequence[int]) -> int:
    """Rows times keys of the shortest lengths."""
    return max(rows[0], LEAST_ROWS) * max(keys[0] if keys else rows[0], LEAST_KEYS)


def _within(among: Sequence[Item], is_little: Callable[[Item], bool]) -> Sequence[Item]:
    """Those that are little enough; where none is, the first, which is the least."""
    return [each for each in among if is_little(each)] or among[:1]
