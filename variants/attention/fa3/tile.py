"""Which tile a problem is computed with unless another one is asked for."""

from __future__ import annotations

from typing import NamedTuple

from harness import Problem
from variants._hopper import MULTIPROCESSORS, WarpgroupTile, masked, packed_heads, windowed
from variants._tiles import blocks


class HeadTile(NamedTuple):
    """A tile as one head of a pack sees it."""

    Br: int
    """Query rows of the head."""
    Bc: int
    """Keys."""


def head_tile(problem: Problem, tile: WarpgroupTile) -> HeadTile:
    """The tile as one head of the problem's packs sees it."""
    return HeadTile(tile.Br // packed_heads(problem), tile.Bc)


SHORT = 1024
"""Keys of which a tile of rows visits few tiles: what it costs to begin and end one counts."""
ROUNDS_OF_SHORT, ROUNDS_OF_LONG = 7, 2
"""Masked work is of all lengths, the longest first. So many rounds of it even out; fewer end earlier in narrow tiles.
Causal, of 16 heads x 8 with 1,024 keys (5.8 rounds of 192) by 2 %. Of 16 x 4 with 2,048, wide ones do, by 7 %."""


def default_tile(problem: Problem) -> WarpgroupTile:
    """The fastest on an H200, bfloat16, at head_dim 40, 64, 72, 80, 96, 104, 120, 128, 160, 192 and 256.

    As many keys as registers have room for beside O. Up to head_dim 96 a third consumer has room, too, but that leaves
    many multiprocessors without work at the end where there are few tiles of rows. Under a mask its warpgroups visit
    different numbers of tiles, for which a third stage makes them wait less. Beyond 128 the first key of a
    window, which masked tiles have to know, leaves room for fewer, and so do slopes beyond 192, beside a
    mask or a cap. Up to 192, fewer keys leave room for O apart from Q, by which short rows gain 2 to 9 %
    under a causal mask. At 128, more keys make slopes cheaper, by 1 to 9 %, where rows are long enough to fill them.
    Blocks of a mask that is no run are mostly whole numbers of 64 or 128 keys: other tiles would be mixed.
    """
    head_dim, window = problem.head_dim, windowed(problem)
    narrow = WarpgroupTile(Br=128, Bc=128, stages=2, turns=1)
    if not problem.mask.is_run:
        return WarpgroupTile(Br=128, Bc=128 if head_dim <= 128 else 64, stages=2, turns=1)
    if head_dim <= (64 if window else 96):
        Bc = 128 if head_dim <= 72 else 112
        wide = WarpgroupTile(Br=192, Bc=Bc, stages=3 if masked(problem) else 2, turns=1)
        return narrow if _is_better_narrow(problem, narrow, wide) else wide
    if head_dim <= 96:
        return narrow
    is_short = problem.kv_len <= SHORT
    with_slopes = 160 if problem.alibi and not (is_short or window or problem.softcap) else 128
    with_O_apart = 80 if is_short and masked(problem) and not window else 112
    most_keys = ((120, 128 if window else 160), (128, with_slopes), (160, 112 if window else 128), (192, with_O_apart))
    widest = 64 if window or (problem.alibi and (masked(problem) or problem.softcap)) else 80
    return WarpgroupTile(Br=128, Bc=next((Bc for most, Bc in most_keys if head_dim <= most), widest), stages=2, turns=1)


def _is_better_narrow(problem: Problem, narrow: WarpgroupTile, wide: WarpgroupTile) -> bool:
    """Whether two consumers are faster than three, or three lack registers. From head_dim 72 to 80 they never are."""
    if 64 < problem.head_dim <= 80:
        return False
    is_short = windowed(problem) or problem.kv_len <= SHORT
    if problem.head_dim > 80 and (is_short or problem.softcap):
        return True
    if masked(problem):
        rounds = ROUNDS_OF_SHORT if is_short else ROUNDS_OF_LONG
        return tiles_of_rows(problem, wide) < rounds * MULTIPROCESSORS
    return _ends_earlier(problem, narrow, wide)


def _ends_earlier(problem: Problem, narrow: WarpgroupTile, wide: WarpgroupTile) -> bool:
    """Whether narrower tiles, slower for each row, fill the last round of all multiprocessors so much better.

    (16 heads x 4 of 512 rows: 1.5 rounds of 192 rows take as long as 2, 1.9 of 128 rows as 2 shorter ones.)
    """
    slower = 1 / 0.85

    def rounds(tile: WarpgroupTile) -> int:
        return int(blocks(tiles_of_rows(problem, tile), MULTIPROCESSORS))

    return rounds(wide) > 1 and slower * rounds(narrow) * narrow.Br < rounds(wide) * wide.Br


def tiles_of_rows(problem: Problem, tile: WarpgroupTile) -> int:
    """Over all packs."""
    packed = packed_heads(problem)
    lengths = [problem.q_len] * problem.batch if problem.sequences is None else problem.sequences.q_lengths
    return int(problem.heads // packed * sum(blocks(length, tile.Br // packed) for length in lengths))
