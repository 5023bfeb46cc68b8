"""Tensor cores: what algorithms here that run on mma.sync have in common, and which sizes their tiles may have.

tiles.cuh brings tiles on chip, in 16 bits, and mma.cuh multiplies fragments of them; `MmaTile` says how many rows and
keys a tile has, how many warps share the rows, and how many tiles of keys are on chip at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from harness import PlanError, Problem
from variants._tiles import Tile, blocks, unsupported
from variants._tiles.tile_copies import TileCopy

FRAGMENT = 16
"""Rows of A, and what one mma.m16n8k16 sums over."""
LINE_ELEMENTS = 64
LINE_BYTES = 128
"""All banks of shared memory side by side. Rows of tiles are whole lines, within which their chunks are swizzled."""
SHARED_BYTES_PER_SM = 228 * 1024
RESERVED_BYTES = 1024
"""Shared memory of a multiprocessor of compute capability 9.0, and what CUDA takes of it for each block (CUDA C++
Programming Guide, technical specifications per compute capability)."""
WARPS_PER_SM = 8
"""Share a multiprocessor at least: each thread may then have the 255 registers that accumulators call for."""
LARGEST_PART = 168
"""Elements of S and O together that a thread may hold, so that nothing spills whatever the head_dim: the rest of its
registers are indices, fragments on their way and, where there is room, Q."""
SHARES = ((64, 2), (64, 4), (128, 4), (128, 8))
"""Rows of a tile, and warps that share them."""
BC_CHOICES = (32, 48, 64, 96)
LOG2_E = 1.4426950408889634
SMALLEST_NORMAL, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""The smallest normal and the largest float32."""


@dataclass(frozen=True)
class MmaTile(Tile):
    """Sizes of tiles on tensor cores. Raises `PlanError` where no kernel here can have them."""

    warps: int
    """Warps per thread block; each owns Br / warps query rows."""
    stages: int
    """Tiles of keys on chip at once: one is read while the others are on their way."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warps < 1 or self.Br not in (FRAGMENT * self.warps, 2 * FRAGMENT * self.warps):
            raise PlanError(f"{self}: Br has to be {FRAGMENT} or {2 * FRAGMENT} times the number of warps")
        if self.Bc % FRAGMENT:
            raise PlanError(f"{self}: Bc has to be a multiple of {FRAGMENT}, the keys that one product sums over")
        if self.stages < 2:
            raise PlanError(f"{self}: stages has to be at least 2: one tile of keys is read while the next arrives")

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that share a multiprocessor at least."""
        return max(1, WARPS_PER_SM // self.warps)

    def shared_bytes(self, head_dim: int, v_width: int | None = None) -> int:
        """Q_i and later O_i, and `stages` times K_j and V_j.

        Rows of V and O have `v_width` elements, or `head_dim` if it is None.
        """
        row_bytes = LINE_BYTES * blocks(head_dim, LINE_ELEMENTS)
        v_row_bytes = LINE_BYTES * blocks(v_width or head_dim, LINE_ELEMENTS)
        return int(self.Br * max(row_bytes, v_row_bytes) + self.stages * self.Bc * (row_bytes + v_row_bytes))

    @property
    def limits_bytes(self) -> int:
        """What each row sees, where that is kept on chip: its first key and the end."""
        return 2 * 4 * self.Br

    def part(self, v_width: int) -> int:
        """Elements of S and O, padded to whole fragments, that a thread holds. Rows of O have `v_width` elements."""
        padded = FRAGMENT * blocks(v_width, FRAGMENT)
        return int(self.Br * (self.Bc + padded) // (32 * self.warps))


def mma_tile_space(
    head_dim: int,
    default: MmaTile,
    spans: bool = False,
    noted_bytes: Callable[[MmaTile], int] = lambda tile: 0,
    v_width: int | None = None,
) -> list[dict[str, int]]:
    """The default first, then every other tile whose registers and shared memory suffice for `blocks_per_sm`.

    Rows of V and O have `v_width` elements, or `head_dim` if it is None. With `spans`, what rows see is kept on chip
    besides, and `noted_bytes` of a mask that is no run.
    A third stage, which costs shared memory alone, is a choice for the default's sizes.
    """

    of_O = v_width or head_dim
    largest_part = max(LARGEST_PART, default.part(of_O))

    def fits(tile: MmaTile) -> bool:
        kept = noted_bytes(tile) + (tile.limits_bytes if spans else 0)
        shared_bytes = tile.blocks_per_sm * (tile.shared_bytes(head_dim, v_width) + kept + RESERVED_BYTES)
        return tile.part(of_O) <= largest_part and shared_bytes <= SHARED_BYTES_PER_SM

    sizes = [MmaTile(Br, Bc, warps, stages=2) for Br, warps in SHARES for Bc in BC_CHOICES]
    others = (tile for tile in (replace(default, stages=3), *sizes) if tile != default and fits(tile))
    return [asdict(tile) for tile in (default, *others)]


def elements_per_copy(head_dim: int) -> int:
    """Elements of 16 bits that a lane copies at once: 16 bytes, or as many as rows of `head_dim` keep aligned."""
    return next(step for step in (8, 4, 2, 1) if head_dim % step == 0)


def tile_copy(head_dim: int, aligned: int | None = None) -> TileCopy:
    """How tiles of 16-bit elements are brought on chip: rows are whole lines there, whose pieces are swizzled.

    `aligned`: the elements at whose multiples rows begin, if they may be fewer than a lane copies at once.
    """
    pitch_bytes = LINE_BYTES * blocks(head_dim, LINE_ELEMENTS)
    at_once = elements_per_copy(head_dim)
    return TileCopy(head_dim, 2, at_once if aligned is None else min(at_once, aligned), pitch_bytes, swizzled=True)


def unsupported_on_tensor_cores(problem: Problem) -> str | None:
    """Why no variant here can take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    scale = abs(problem.tau) * LOG2_E
    if scale != 0 and not SMALLEST_NORMAL <= scale <= LARGEST:
        return f"scale is {problem.tau:g}; times log2(e) it is no normal float32, in which scores are computed"
    return unsupported(problem)
