"""A variant's schedule in steps: the rows that each thread block reads and writes, and those that it holds.

Plain data, recorded by `replay_recording`. A step ends where a whole block advances: at a barrier of all its warps, or
when bulk copies land. A block with too few of these is divided by instruction count. The steps' bytes sum to exactly
what the run counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

INPUT, OUTPUT, SCRATCH = "input", "output", "scratch"


@dataclass(frozen=True)
class Tile:
    """A rectangle of a matrix, in elements."""

    first_row: int
    end_row: int
    """End of the row range, exclusive."""
    first_column: int
    end_column: int
    """End of the column range, exclusive."""


@dataclass(frozen=True)
class Matrix:
    """A buffer as it is drawn: the part that belongs to the first head, or all of it if it has no heads."""

    name: str
    """Name of the buffer."""
    role: str
    """`INPUT`, `OUTPUT` or `SCRATCH`."""
    rows: int
    """Number of rows; 0 if the buffer is not drawn, such as a module's variable."""
    columns: int
    element_bytes: int
    slices: int
    """Number of heads over all batches, each of which has such a part; 1 if the buffer has no heads."""


@dataclass(frozen=True)
class Touch:
    """The accesses of a step to one matrix."""

    matrix: int
    """Index into `Replay.matrices`."""
    tiles: tuple[Tile, ...]
    """Accessed rows and columns, in whole sectors of 32 bytes. Those of other heads are left out."""
    bytes: int
    """Bytes at the `sectors` level, including those of other heads."""


@dataclass(frozen=True)
class Holding:
    """The part of one input that is in the block's shared memory at the end of a step."""

    matrix: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Step:
    """One step of one block, or all accesses of the blocks that are not shown individually."""

    launch: int
    """Index into `Replay.launches`."""
    block: int | None
    """Linear index of the block in the grid; None for all blocks of the launch that are not shown individually."""
    end: int
    """Time at which the step ends, in instructions since the block began; 0 if `block` is None."""
    reads: tuple[Touch, ...]
    """Loads and atomics."""
    writes: tuple[Touch, ...]
    """Stores and atomics."""
    held: tuple[Holding, ...]

    @property
    def read_bytes(self) -> int:
        """Bytes read at the `sectors` level."""
        return sum(touch.bytes for touch in self.reads)

    @property
    def write_bytes(self) -> int:
        """Bytes written at the `sectors` level."""
        return sum(touch.bytes for touch in self.writes)


@dataclass(frozen=True)
class ReplayLaunch:
    """One kernel launch."""

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    """Threads per block."""
    shared_bytes: int
    """Shared memory per block, in bytes."""
    shown: int
    """Number of blocks that are shown individually."""

    @property
    def blocks(self) -> int:
        """Number of thread blocks in the grid."""
        return math.prod(self.grid)


@dataclass(frozen=True)
class Replay:
    """All steps, launch by launch and block by block. On a GPU, blocks run concurrently."""

    variant: str
    algorithm: str
    problem: str
    """One-line description of the problem."""
    device: str
    """The device on which the schedule was recorded."""
    matrices: tuple[Matrix, ...]
    launches: tuple[ReplayLaunch, ...]
    steps: tuple[Step, ...]

    @property
    def read_bytes(self) -> int:
        """Bytes read at the `sectors` level over all steps, equal to the run's count."""
        return sum(step.read_bytes for step in self.steps)

    @property
    def write_bytes(self) -> int:
        """Bytes written at the `sectors` level over all steps, equal to the run's count."""
        return sum(step.write_bytes for step in self.steps)
