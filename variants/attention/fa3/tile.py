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


ROUNDS_OF_MASKED = 7
"""Masked work is of all lengths, the longest first. So many rounds of it even out; fewer end earlier in narrow tiles:
of 16 heads x 2 with 2,048 rows (2.7 rounds of 192) by 4 %."""


def default_tile(problem: Problem) -> WarpgroupTile:
    """The fastest on an H200, bfloat16, at head_dim 40, 64, 72, 80, 96, 104, 120, 128, 160, 192 and 256.

    As many keys as registers have room for beside O. Up to head_dim 80 a third consumer has room, too, but that leaves
    many multiprocessors without work at the end where there are few tiles of rows. Beyond 128 the first key of a
    window, which masked tiles have to know, leaves room for fewer, and so do slopes beyond 192, beside a
    mask or a cap. Blocks of a mask that is no run are mostly whole
    numbers of 64 or 128 keys: other tiles would be mixed.
    """
    head_dim, window = problem.head_dim, windowed(problem)
    if not problem.mask.is_run:
        return WarpgroupTile(Br=128, Bc=128 if head_dim <= 128 else 64, stages=2, turns=1)
    if head_dim <= 64:
        wide, narrow = (WarpgroupTile(Br, Bc=128, stages=2, turns=1) for Br in (192, 128))
        if masked(problem):
            is_soon_over = tiles_of_rows(problem, wide) < ROUNDS_OF_MASKED * MULTIPROCESSORS
            return narrow if is_soon_over else wide
        return narrow if _ends_earlier(problem, narrow, wide) else wide
    if head_dim <= 80 and not window:
        return WarpgroupTile(Br=192, Bc=128 if head_dim <= 72 else 112, stages=2, turns=1)
    most_keys = ((96, 128), (120, 128 if window else 160), (128, 128), (160, 112 if window else 128), (192, 112))
    widest = 64 if window or (problem.alibi and (masked(problem) or problem.softcap)) else 80
    return WarpgroupTile(Br=128, Bc=next((Bc for most, Bc in most_keys if head_dim <= most), widest), stages=2, turns=1)


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
