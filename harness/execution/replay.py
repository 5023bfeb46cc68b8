"""A variant's schedule, step by step: which rows of which arrays each thread block reads and writes, what it holds.

Plain data, made by `replay_recording` of what the emulator saw. A step is a stretch of a block between moments at which
all of it gets on: barriers of all its warps, or bulk copies that land; where it has hardly any, so many instructions.
The sum of the steps' bytes is what the run counted, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

INPUT, OUTPUT, SCRATCH = "input", "output", "scratch"


@dataclass(frozen=True)
class Tile:
    """A rectangle of a matrix, in elements."""

    first_row: int
    end_row: int
    """Behind the last one."""
    first_column: int
    end_column: int
    """Behind the last one."""


@dataclass(frozen=True)
class Matrix:
    """One buffer as it is drawn: the part of it that belongs to the first head, or all of it where it has no heads."""

    name: str
    """Of the buffer."""
    role: str
    """`INPUT`, `OUTPUT` or `SCRATCH`."""
    rows: int
    """0 where it is nothing to draw, such as a variable of a module."""
    columns: int
    element_bytes: int
    slices: int
    """Heads of all batches that the buffer has such a part for; 1 where it has no heads."""


@dataclass(frozen=True)
class Touch:
    """What a step does to one matrix."""

    matrix: int
    """Its place in `Replay.matrices`."""
    tiles: tuple[Tile, ...]
    """Rows and columns that are touched, in whole sectors of 32 bytes; those of other heads are left out."""
    bytes: int
    """At the `sectors` level, those of other heads, too."""


@dataclass(frozen=True)
class Holding:
    """What of one input is in the block's shared memory at the end of a step."""

    matrix: int
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Step:
    """A stretch of one block, or all that blocks do which are not shown one by one."""

    launch: int
    """Its place in `Replay.launches`."""
    block: int | None
    """Its number in the grid; None for all blocks of the launch that are not shown."""
    end: int
    """When it is over, in instructions since the block began; 0 where `block` is None."""
    reads: tuple[Touch, ...]
    """Loads and atomics."""
    writes: tuple[Touch, ...]
    """Stores and atomics."""
    held: tuple[Holding, ...]

    @property
    def read_bytes(self) -> int:
        """At the `sectors` level."""
        return sum(touch.bytes for touch in self.reads)

    @property
    def write_bytes(self) -> int:
        """At the `sectors` level."""
        return sum(touch.bytes for touch in self.writes)


@dataclass(frozen=True)
class ReplayLaunch:
    """One launch."""

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    """Of a block."""
    shared_bytes: int
    """Of a block."""
    shown: int
    """How many of its blocks are shown one by one."""

    @property
    def blocks(self) -> int:
        """Thread blocks of the grid."""
        x, y, z = self.grid
        return x * y * z


@dataclass(frozen=True)
class Replay:
    """All of it, launch by launch and block by block. On a GPU blocks run at the same time."""

    variant: str
    algorithm: str
    problem: str
    """In one line."""
    device: str
    """Where it was seen."""
    matrices: tuple[Matrix, ...]
    launches: tuple[ReplayLaunch, ...]
    steps: tuple[Step, ...]

    @property
    def read_bytes(self) -> int:
        """At the `sectors` level, all steps together: what the run counted."""
        return sum(step.read_bytes for step in self.steps)

    @property
    def write_bytes(self) -> int:
        """At the `sectors` level, all steps together: what the run counted."""
        return sum(step.write_bytes for step in self.steps)
