"""Tiles of e4m3: which sizes they may have, and the tensor maps that bring them on chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from harness import PlanError, Problem, TensorMap
from variants._hopper import ALIGNMENT_BYTES, WarpgroupTile, padded
from variants._tiles import blocks

DEPTH = 32
"""Elements, or keys, that one product sums over."""
BC_CHOICES = (64, 96, 128, 160, 192)


@dataclass(frozen=True)
class ByteTile(WarpgroupTile):
    """Sizes of tiles on warpgroups whose factors are e4m3. Raises `PlanError` where no kernel here can have them."""

    largest_part: ClassVar[Mapping[int, int]] = {2: 176, 3: 100}
    """So that none of them spills whatever the mask."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.Bc % DEPTH:
            raise PlanError(f"{self}: Bc has to be a multiple of {DEPTH}, the keys that one product sums over")

    def shared_bytes(self, head_dim: int) -> int:
        """O_i in 16 bits, Q_i and `stages` times K_j and V_j in 8, and what aligns them."""
        rows = 3 * self.Br + 2 * self.stages * self.Bc
        return rows * padded(head_dim) + ALIGNMENT_BYTES

    def part(self, head_dim: int) -> int:
        """Registers of S, P and O in a thread; P, in 8 bits, takes half as many as in 16."""
        return self.Bc // 2 + self.Bc // 8 + padded(head_dim) // 2


def byte_tile_space(head_dim: int, default: ByteTile) -> list[dict[str, int]]:
    """The default first, then what else fits: its other order of turns, other numbers of stages and of keys."""
    sizes = [ByteTile(Br, Bc, 2, turns) for Br, turns in ((128, 0), (128, 1), (192, 0)) for Bc in BC_CHOICES]
    staged = [replace(default, stages=stages) for stages in (2, 3, 4)]
    others = (tile for tile in dict.fromkeys((*staged, *sizes)) if tile != default and tile.fits(head_dim))
    return [asdict(tile) for tile in (default, *others)]


def key_places(problem: Problem) -> int:
    """Keys of a row of V transposed, padded to whole sectors."""
    return int(DEPTH * blocks(problem.kv_len, DEPTH))


def bytes_map(buffer: str, row_bytes: int, length: int, heads: int, tile_bytes: int, rows: int) -> TensorMap:
    """`length` rows of `row_bytes` of each head, of whose tiles, `tile_bytes` wide, one box has `rows` rows."""
    width = next(width for width in (128, 64, 32) if tile_bytes % width == 0)  # BOX of e4m3_tiles.cuh
    return TensorMap(
        buffer,
        extents=(row_bytes, length, heads),
        strides=(row_bytes, length * row_bytes),
        box=(width, rows, 1),
        dtype="uint8",
        swizzle=width,
    )
