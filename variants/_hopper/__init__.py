"""Hopper (compute capability 9.0): what algorithms here that run on wgmma and TMA share.

Here are the sizes of tiles, the tensor maps, and how many bytes boxes are. The CUDA files, in the order in which
kernels use them:

- hopper.cuh: Hopper's instructions; products.py: those of products, for a tile's sizes
- softmax.cuh: what comes between two products
- limits.cuh, sequences.cuh, turns.cuh, layout.cuh: types that the plan chooses
- key_tiles.cuh, row_tiles.cuh: which tiles of keys and of rows a block visits, and what rows see of them
- slots.cuh, inspection.cuh, pipeline.cuh: the buffers and barriers between producer and consumers, and the producer
- registers.cuh, output.cuh: registers of a warpgroup; O on its way out
- e4m3.cuh, e4m3_tiles.cuh: numbers of 8 bits, tiles of them and their products
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from harness import PlanError, Problem, TensorMap
from variants import _features as features
from variants._features import Feature, has_spans
from variants._mma import LOG2_E, RESERVED_BYTES, SHARED_BYTES_PER_SM, unsupported_on_tensor_cores
from variants._tiles import blocks
from variants._tiles.sectors import SECTOR_BYTES, Integers

WARPGROUP_ROWS = 64
"""Rows of A that the four warps of a warpgroup multiply."""
DEPTH = 16
"""Elements, or keys, that one product sums over."""
PIECE_ELEMENTS = 8
"""16 bytes: what strides of a tensor map are multiples of."""
ELEMENT_BYTES = 2
PIECE_BYTES = PIECE_ELEMENTS * ELEMENT_BYTES
MULTIPROCESSORS = 132
"""Multiprocessors of an H100 SXM or H200; one block runs on each. A kernel whose blocks take tile after tile is right
with any number of them."""
PASSES = 3
"""How often a block of a kernel with unpadded sequences passes over them: similar lengths together."""
ALIGNMENT_BYTES = 1024
"""Alignment of tiles with swizzled rows of 128 bytes; dynamic shared memory need not start at a multiple of it."""
STATIC_BYTES = 1024
"""What a kernel here has besides its tiles, mbarriers for the most part."""
LARGEST_BLOCK_BYTES = SHARED_BYTES_PER_SM - RESERVED_BYTES
"""Maximum shared memory of a thread block."""
ROWS_PER_REQUEST = 8
"""Rows of lse that a warp stores per request: a quarter of its lanes hold one each."""
BC_CHOICES = (64, 80, 96, 112, 128, 144, 176, 208)


@dataclass(frozen=True)
class WarpgroupTile:
    """Sizes of tiles on warpgroups. Raises `PlanError` where no kernel here can have them."""

    largest_part: ClassVar[Mapping[int, int]] = {2: 190, 3: 132}
    """Registers of S, P and O that a thread may have, by the number of consumer warpgroups: what `setmaxnreg` leaves
    each thread (fa3 takes 232 and 160), less addresses, l, m and the edges of a window."""

    Br: int
    """Query rows: 64 for each consumer warpgroup, of one head or of those that share K and V."""
    Bc: int
    """Keys."""
    stages: int
    """Tiles of K, and of V, on chip at once."""
    turns: int
    """1: consumer warpgroups take turns with the tensor cores, others have their softmax meanwhile. 0: as it comes."""

    def __post_init__(self) -> None:
        if self.Br not in [WARPGROUP_ROWS * consumers for consumers in self.largest_part]:
            raise PlanError(f"{self}: Br has to be 128 or 192, 64 rows for each of two or three warpgroups")
        if self.Bc % DEPTH or not DEPTH <= self.Bc <= 256:
            raise PlanError(f"{self}: Bc has to be a multiple of {DEPTH}, at most 256: the columns of one product")
        if self.stages < 2:
            raise PlanError(f"{self}: stages has to be at least 2: one tile of keys is read while the next arrives")
        if self.turns not in (0, 1):
            raise PlanError(f"{self}: turns has to be 0 or 1, whether warpgroups take turns")

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply; one more brings them tiles."""
        return self.Br // WARPGROUP_ROWS

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 128 * (self.consumers + 1)

    def shared_bytes(self, head_dim: int) -> int:
        """Q_i, `stages` times K_j and V_j, O_i where it is kept apart, and what aligns them."""
        return self._shared_bytes(head_dim, self.keeps_O_apart(head_dim))

    def keeps_O_apart(self, head_dim: int) -> bool:
        """Whether O_i has a place of its own on its way out, and need not take that of Q_i: where there is room."""
        return self._shared_bytes(head_dim, True) + STATIC_BYTES <= LARGEST_BLOCK_BYTES

    def _shared_bytes(self, head_dim: int, O_apart: bool) -> int:
        rows = (2 if O_apart else 1) * self.Br + 2 * self.stages * self.Bc
        return rows * padded(head_dim) * ELEMENT_BYTES + ALIGNMENT_BYTES

    def part(self, head_dim: int) -> int:
        """Registers of S, P and O in a thread."""
        return self.Bc // 2 + self.Bc // 4 + head_dim // 2

    def fits(self, head_dim: int, noted_bytes: int = 0) -> bool:
        """Whether a block's shared memory, of which it notes what rows see in so much, and registers suffice."""
        shared_bytes = self.shared_bytes(head_dim) + STATIC_BYTES + noted_bytes
        return self.part(head_dim) <= self.largest_part[self.consumers] and shared_bytes <= LARGEST_BLOCK_BYTES


def warpgroup_tile_space(
    head_dim: int, default: WarpgroupTile, noted_bytes: Callable[[WarpgroupTile], int] = lambda tile: 0
) -> list[dict[str, int]]:
    """The default first, then what else fits: a third stage, other numbers of rows and of keys, another order of turns.

    A third stage is there for either number of rows, so that a tile of one mask is a tile of others, too.
    `noted_bytes`: see `visits.noted_bytes`.
    """
    staged = [replace(default, Br=Br, stages=3) for Br in (128, 192)]
    sizes = [WarpgroupTile(Br, Bc, 2, turns) for Br, turns in ((128, 1), (128, 0), (192, 1)) for Bc in BC_CHOICES]
    candidates = (tile for tile in (*staged, *sizes) if tile != default)
    others = (tile for tile in candidates if tile.fits(head_dim, noted_bytes(tile)))
    return [asdict(tile) for tile in (default, *others)]


def padded(head_dim: int) -> int:
    """Elements of a row on chip: whole boxes."""
    return int(32 * blocks(head_dim, 32))


def box_columns(head_dim: int) -> int:
    """Elements of a row in one box, a row of 64 or 128 bytes: COLUMNS of hopper.cuh."""
    return 64 if padded(head_dim) % 64 == 0 else 32


def rows_map(buffer: str, problem: Problem, heads: int, length: int, rows: int) -> TensorMap:
    """`length` rows of each of `heads` heads, of which one box has `rows` rows of one head."""
    row_bytes = problem.head_dim * ELEMENT_BYTES
    columns = box_columns(problem.head_dim)
    return TensorMap(
        buffer,
        extents=(problem.head_dim, length, heads),
        strides=(row_bytes, length * row_bytes),
        box=(columns, rows, 1),
        dtype=problem.dtype,
        swizzle=columns * ELEMENT_BYTES,
    )


def packed_heads(problem: Problem) -> int:
    """Query heads of which a warpgroup's 64 rows hold equally many rows each, because they share K and V (PackGQA).

    K and V are then read once for all of them. The largest power of two that divides their number, at most 64; 1 under
    a mask that is no run, which may be another for each head.
    """
    return math.gcd(problem.group, WARPGROUP_ROWS) if problem.mask.is_run else 1


def packed_map(buffer: str, problem: Problem, packed: int) -> TensorMap:
    """Rows of Q or O, of which one box has a warpgroup's: equally many rows of each of `packed` heads, head by head."""
    p = problem
    row_bytes = p.head_dim * ELEMENT_BYTES
    columns = box_columns(p.head_dim)
    return TensorMap(
        buffer,
        extents=(p.head_dim, p.q_len, packed, p.batch * p.heads // packed),
        strides=(row_bytes, p.q_len * row_bytes, packed * p.q_len * row_bytes),
        box=(columns, WARPGROUP_ROWS // packed, packed, 1),
        dtype=p.dtype,
        swizzle=columns * ELEMENT_BYTES,
    )


def layout(problem: Problem) -> Feature:
    """Return where tensor maps have a head; see `tensor_map` and `packed_tensor_map`."""
    chosen = "DenseLayout" if problem.layout.is_dense else "StridedLayout"
    return Feature("Layout", chosen, (), (("_hopper", "layout.cuh"),))


def _byte_strides(problem: Problem, name: str) -> tuple[int, int, int]:
    """Bytes from one sequence, head and row of a tensor to the next."""
    sequence, head, row, _ = (stride * ELEMENT_BYTES for stride in problem.tensor(name).strides)
    return sequence, head, row


def tensor_map(name: str, problem: Problem, rows: int) -> TensorMap:
    """K or V of a problem, of which one box has `rows` rows of one head. With a layout, sequences are an axis."""
    tensor = problem.tensor(name)
    batch, heads, length, head_dim = tensor.shape
    if problem.layout.is_dense:
        return rows_map(name, problem, batch * heads, length, rows)
    sequence, head, row = _byte_strides(problem, name)
    return replace(
        rows_map(name, problem, heads, length, rows),
        extents=(head_dim, length, heads, batch),
        strides=(row, head, sequence),
        box=(box_columns(head_dim), rows, 1, 1),
    )


def packed_tensor_map(name: str, problem: Problem, packed: int) -> TensorMap:
    """Q or O of a problem, with boxes as of `packed_map`. With a layout, sequences are an axis."""
    if problem.layout.is_dense:
        return packed_map(name, problem, packed)
    tensor = problem.tensor(name)
    batch, heads, length, head_dim = tensor.shape
    sequence, head, row = _byte_strides(problem, name)
    return replace(
        packed_map(name, problem, packed),
        extents=(head_dim, length, packed, heads // packed, batch),
        strides=(row, head, packed * head, sequence),
        box=(box_columns(head_dim), WARPGROUP_ROWS // packed, packed, 1, 1),
    )


def boxes_bytes(first_rows: Integers, rows: Integers, head_dim: int) -> Any:
    """Bytes of moving `rows` rows each at the `sectors` level. `first_rows` are counted from the buffer's beginning."""
    row_bytes = head_dim * ELEMENT_BYTES
    return _boxes_bytes(first_rows * row_bytes, row_bytes, rows, head_dim)


def tensor_bytes(problem: Problem, name: str, first_rows: Any, rows: Any) -> Any:
    """(heads of all sequences, ...): bytes of moving `rows` rows of each head of a tensor, from `first_rows` on."""
    tensor = problem.tensor(name)
    batch, heads = tensor.shape[:2]
    sequence, head, row = _byte_strides(problem, name)
    of_heads = sequence * np.arange(batch, dtype=np.int64)[:, None] + head * np.arange(heads, dtype=np.int64)
    begins = tensor.first * ELEMENT_BYTES + of_heads.reshape(-1, 1)
    return _boxes_bytes(begins + first_rows * row, row, rows, problem.head_dim)


def _boxes_bytes(begin: Any, stride: int, rows: Any, head_dim: int) -> Any:
    """Bytes of moving `rows` rows of head_dim elements that begin at byte `begin`, `stride` bytes apart.

    Each row of a box takes whole sectors. Rows begin at multiples of 16 bytes, so that all, every other one, or none
    may begin in the middle of a sector.
    """
    first_elements = np.arange(0, head_dim, box_columns(head_dim))
    lengths = np.minimum(head_dim - first_elements, box_columns(head_dim)) * ELEMENT_BYTES
    half = SECTOR_BYTES // 2
    from_start, from_middle = (int(np.sum(blocks(phase + lengths, SECTOR_BYTES)) * SECTOR_BYTES) for phase in (0, half))
    begins_in_middle = begin // half % 2
    in_middle = (rows + begins_in_middle) // 2 if stride // half % 2 else rows * begins_in_middle
    return (rows - in_middle) * from_start + in_middle * from_middle


def zero_bytes(rows: Any, box_rows: int, head_dim: int) -> Any:
    """Bytes of shared memory that loads of boxes fill with zeros, in whole sectors: the hardware counts them as loaded.

    A box of `box_rows` rows brings `rows` rows of the tensor: behind the end of each of these, and all below them.
    """
    width = padded(head_dim)
    # Rows on chip are whole boxes, which begin at a sector's first byte.
    behind = width * ELEMENT_BYTES - head_dim * ELEMENT_BYTES // SECTOR_BYTES * SECTOR_BYTES
    return rows * behind + (box_rows - rows) * width * ELEMENT_BYTES


def limits(problem: Problem) -> Feature:
    """Return which keys a row sees, with the ends at which kernels compare keys."""
    of_rows = features.limits(problem)
    ends = f"{windowed(problem)}, {masked(problem)}".lower()
    chosen = "WarpgroupSpans" if has_spans(problem) else f"WarpgroupBand<{ends}>"
    return replace(of_rows, cuda_type=chosen, files=(*of_rows.files, ("_hopper", "limits.cuh")))


def sequences(problem: Problem, all_tiles: int = 0) -> Feature:
    """Return where the rows and keys of a sequence begin, and how rows of O go out where the next sequence follows.

    `all_tiles`: tiles of rows of unpadded sequences, of all packs.
    """
    of_rows = features.sequences(problem)
    files = (*of_rows.files, ("_hopper", "sequences.cuh"))
    if problem.sequences is None:
        return replace(of_rows, cuda_type="WarpgroupOneLength", files=files)
    _, head, row, _ = problem.tensor("O").strides
    argument = (*of_rows.argument, "O", np.int64(row), np.int64(head), np.int32(all_tiles))
    return replace(of_rows, cuda_type="WarpgroupVarlen", argument=argument, files=files)


def scores(problem: Problem) -> Feature:
    """Return what happens to a score, as `ScoreTerms`: `Scores` are registers here. They are in powers of two."""
    return replace(features.scores(problem, LOG2_E), name="ScoreTerms")


def turns(tile: WarpgroupTile) -> Feature:
    """Return whether two consumers take turns with the tensor cores."""
    return Feature("Turns", "InTurns" if tile.turns else "NoTurns", (), (("_hopper", "turns.cuh"),))


def masked(problem: Problem) -> bool:
    """Whether rows see other keys than all."""
    return bool(problem.mask.parts)


def windowed(problem: Problem) -> bool:
    """Whether some rows do not see the first keys."""
    return has_spans(problem) or any(
        left is not None for left, _ in (part.limits for part in problem.mask_within.runs.parts)
    )


def unsupported_on_hopper(problem: Problem) -> str | None:
    """Why no variant here can take the problem, or None."""
    reason = unsupported_on_tensor_cores(problem)
    if reason is None and problem.head_dim % PIECE_ELEMENTS:
        row_bytes = problem.head_dim * problem.itemsize_bytes
        return (
            f"head_dim is {problem.head_dim}, which makes rows of {row_bytes} bytes; "
            f"a tensor map wants them in steps of 16: choose a multiple of {PIECE_ELEMENTS}"
        )
    if reason is None and problem.row_alignment_bytes % PIECE_BYTES:
        return (
            f"layout {problem.layout} has rows that begin at multiples of {problem.row_alignment_bytes} bytes; "
            f"a tensor map wants multiples of {PIECE_BYTES}"
        )
    return reason
