"""Sizes of tiles of a block that owns keys, and what they take of a multiprocessor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from harness import PlanError, Problem
from variants._features import has_spans
from variants._mma import (
    FRAGMENT,
    LINE_BYTES,
    LINE_ELEMENTS,
    RESERVED_BYTES,
    SHARED_BYTES_PER_SM,
    WARPS_PER_SM,
)
from variants._tiles import Tile, blocks
from variants._tiles.schedule import FLOAT32_BYTES, INT32_BYTES
from variants._tiles.visits import noted_bytes

KEEPING_WARPS = 4
"""Maximum warps of a block that keep P and dS of their own keys. In larger blocks half sum dV and half dK."""
WARP_ROWS = 32
"""Rows of dQ_i that a warp multiplies at once."""
PRODUCT_REGISTERS = 64
"""Registers of a thread for S and dP; they bound the rows computed at once."""
STATIC_BYTES = 128
"""Shared memory of a block besides its tiles: a few limits, in whole lines."""
LARGEST_PART = 192
"""Elements of dK, dV, S and dP together that a thread may hold, so that nothing spills."""
CHOICES = ((32, 64, 128), (64, 128), (4, 8))
"""Rows, keys and warps."""


@dataclass(frozen=True)
class BackwardMmaTile(Tile):
    """Sizes of tiles of a block that owns keys. Raises `PlanError` where no kernel here can have them."""

    warps: int
    """Warps per block. Up to `KEEPING_WARPS` have 16 keys or more each. In larger blocks, half sum dV and half dK, each
    for some keys and some whole lines of columns; P and dS reach them through shared memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.Br % WARP_ROWS:
            raise PlanError(f"{self}: Br has to be a multiple of {WARP_ROWS}, the rows of dQ that a warp has")
        if self.Bc % FRAGMENT:
            raise PlanError(f"{self}: Bc has to be a multiple of {FRAGMENT}, the keys that one product has")
        fragments, scored = self.Bc // FRAGMENT, self.Br // FRAGMENT * (self.Bc // FRAGMENT)
        shared = self.hands_weights or (self.warps > 0 and fragments % self.warps == 0)
        if self.warps < 1 or not shared or scored % self.warps or self.warps % (self.Br // WARP_ROWS):
            raise PlanError(f"{self}: {self.warps} warps cannot share that many rows and keys evenly")

    @property
    def hands_weights(self) -> bool:
        """Whether P and dS go from warp to warp, through shared memory."""
        return self.warps > KEEPING_WARPS

    @property
    def stages(self) -> int:
        """Tiles of rows on chip at once: one on its way, one that is scored, one that is summed one step later."""
        return 3 if self.hands_weights else 2

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that share a multiprocessor at least."""
        return max(1, WARPS_PER_SM // self.warps)

    def column_groups(self, head_dim: int) -> int:
        """Warps that sum the same keys, with lines of columns for each. Three lines take four warps."""
        lines = blocks(head_dim, LINE_ELEMENTS)
        return {3: 4}.get(lines, lines) if self.hands_weights else 1

    def suits(self, head_dim: int) -> bool:
        """Whether the warps that sum dV, or dK, can share keys and columns evenly."""
        if not self.hands_weights:
            return True
        groups = self.column_groups(head_dim)
        return (self.warps // 2) % groups == 0 and self.Bc % (FRAGMENT * (self.warps // 2 // groups)) == 0

    def shared_bytes(self, head_dim: int, adds_dQ: bool = True) -> int:
        """K_j and V_j, Q_i and dO_i with what rows have besides, and two steps' dS^T and P^T that are handed on."""
        rows = 2 * self.Bc + 2 * self.stages * self.Br
        handed_tiles = 2 if self.hands_weights else int(adds_dQ)
        handed_bytes = 2 * handed_tiles * self.Bc * LINE_BYTES * blocks(2 * self.Br, LINE_BYTES)
        return int(rows * row_bytes(head_dim) + handed_bytes + self.stages * 2 * FLOAT32_BYTES * self.Br)

    def part(self, head_dim: int) -> int:
        """Elements of dK, dV, S and dP that a thread holds."""
        if self.hands_weights:
            columns = LINE_ELEMENTS if head_dim > LINE_ELEMENTS else FRAGMENT * blocks(head_dim, FRAGMENT)
            keys = self.Bc * self.column_groups(head_dim) // (self.warps // 2)
            return int(keys * columns // 32 + min(PRODUCT_REGISTERS, 2 * self.Br * self.Bc // (32 * self.warps)))
        keys, columns = self.Bc // self.warps, FRAGMENT * blocks(head_dim, FRAGMENT)
        return int(2 * keys * (columns + min(self.Br, PRODUCT_REGISTERS * FRAGMENT // keys)) // 32)


def default_owning_keys(head_dim: int) -> BackwardMmaTile:
    """What was fastest on an H200, of what registers and shared memory have room for: docs/backward.md.

    A warp with 32 keys multiplies each fragment of Q and dO that it loads twice. Beyond 64 elements per row dK and dV
    of them do not fit beside S and dP: warps then sum 64 keys and 64 columns of one of the two.
    """
    if head_dim <= 64:
        return BackwardMmaTile(Br=64, Bc=128, warps=4)
    if head_dim <= 128:
        return BackwardMmaTile(Br=64, Bc=128, warps=8)
    return BackwardMmaTile(Br=32, Bc=64, warps=8)


def tile_of(problem: Problem) -> BackwardMmaTile:
    """The tile of a problem unless another one is given: `default_owning_keys`, with fewer rows where it does not fit.

    It does not beyond 64 elements where both runs of rows and bits of a tile are in shared memory: documents under a
    mask of blocks, or under FlashMask.
    """
    default = default_owning_keys(problem.head_dim)
    return default if fits_on_chip(problem, default) else replace(default, Br=WARP_ROWS)


def numba_tile_of(problem: Problem) -> BackwardMmaTile:
    """`tile_of` in Numba: 32 rows where a row sees no run of keys; with 64, registers spill."""
    tile = tile_of(problem)
    return tile if problem.mask.is_run else replace(tile, Br=WARP_ROWS)


def tiles_owning_keys(
    problem: Problem, tile_of: Callable[[Problem], BackwardMmaTile] = tile_of
) -> list[dict[str, int]]:
    """`tile_of(problem)` first, then every other tile whose registers and shared memory suffice for `blocks_per_sm`.

    Where a row sees no run of keys, none has more rows than the first one.
    """
    d, default = problem.head_dim, tile_of(problem)

    def fits(tile: BackwardMmaTile) -> bool:
        few_rows = problem.mask.is_run or tile.Br <= default.Br
        return few_rows and tile.suits(d) and tile.part(d) <= LARGEST_PART and fits_on_chip(problem, tile)

    sizes = (BackwardMmaTile(Br, Bc, warps) for Br in CHOICES[0] for Bc in CHOICES[1] for warps in CHOICES[2])
    return [asdict(tile) for tile in (default, *(tile for tile in sizes if tile != default and fits(tile)))]


def fits_on_chip(problem: Problem, tile: BackwardMmaTile) -> bool:
    """Whether shared memory suffices for `blocks_per_sm`, with which rows see each key and the bits of a mixed tile."""
    runs_bytes = 2 * INT32_BYTES * tile.Bc if has_spans(problem) else 0
    kept_bytes = runs_bytes + noted_bytes(problem, tile) + STATIC_BYTES + RESERVED_BYTES
    return bool(tile.blocks_per_sm * (tile.shared_bytes(problem.head_dim) + kept_bytes) <= SHARED_BYTES_PER_SM)


def row_bytes(head_dim: int) -> int:
    """Bytes of a row in shared memory: whole lines."""
    return int(LINE_BYTES * blocks(head_dim, LINE_ELEMENTS))
