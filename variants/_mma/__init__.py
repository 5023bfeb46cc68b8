"""Tensor cores: what the algorithms here have in common that run on mma.sync, and how large their tiles may be.

mma.cuh brings tiles on chip in 16 bits and multiplies fragments of them; `MmaTile` says how many rows and keys, how many
warps share them, and how many tiles of keys are on chip at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import PlanError
from harness.problem import Problem
from variants._tiles import Tile, blocks, unsupported

FRAGMENT = 16
"""Rows of A and elements of a step of mma.m16n8k16."""
LINE_BYTES = 128
"""What all banks of shared memory hold side by side. Rows are whole lines, so that swizzling them stays in the line."""
SHARED_BYTES = 227 * 1024
"""What a block may have of shared memory where it asks for more than 48 KB, compute capability 9.0."""
WARPS_PER_SM = 8
"""As many share a multiprocessor at least: each thread may then have 255 registers, which the accumulators fill."""
SMALLEST_NORMAL, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Of float32."""
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class MmaTile(Tile):
    """Sizes of tiles on tensor cores. Raises `PlanError` where no kernel here can have them."""

    warps: int
    """Of a block; each owns Br / warps query rows."""
    stages: int
    """Tiles of keys on chip at once: one is used while the others arrive."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warps < 1 or self.Br not in (FRAGMENT * self.warps, 2 * FRAGMENT * self.warps):
            raise PlanError(f"{self}: Br has to be 16 or 32 times the number of warps")
        if self.Bc % FRAGMENT:
            raise PlanError(f"{self}: Bc has to be a multiple of {FRAGMENT}, the keys that one product sums over")
        if self.stages < 2:
            raise PlanError(f"{self}: stages has to be at least 2: one tile of keys is used while the next arrives")

    @property
    def warp_rows(self) -> int:
        """Query rows per warp."""
        return self.Br // self.warps

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that share a multiprocessor at least."""
        return max(1, WARPS_PER_SM // self.warps)

    def shared_bytes(self, head_dim: int) -> int:
        """Q_i, and `stages` times K_j and V_j."""
        row_bytes = LINE_BYTES * blocks(head_dim, LINE_BYTES // 2)
        return int((self.Br + 2 * self.stages * self.Bc) * row_bytes)


def copied_at_once(head_dim: int) -> int:
    """Elements of a row of 16-bit elements that one thread copies: 8, or as many as rows keep aligned."""
    return next(step for step in (8, 4, 2, 1) if head_dim % step == 0)


def unsupported_mma(problem: Problem) -> str | None:
    """Why no variant on tensor cores can take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: take float16 or bfloat16"
    scale = abs(problem.tau) * LOG2_E
    if scale != 0 and not SMALLEST_NORMAL <= scale <= LARGEST:
        return f"scale is {problem.tau:g}; scale times log2(e) is no normal float32, in which scores are computed"
    return unsupported(problem)
