"""What instructions a launch executed, as plain data: by kind and source line, by cluster, how loads were awaited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FP32, FP16, FP64, TENSOR, SPECIAL = "fp32", "fp16", "fp64", "tensor", "special"
INTEGER, CONVERSION, MOVE = "integer", "conversion", "move"
MEMORY, SHARED, SHUFFLE, BARRIER, CONTROL = "memory", "shared", "shuffle", "barrier", "control"

KINDS = {
    FP32: "additions, multiplications and FMAs of 32 bits",
    FP16: "the same of 16 bits",
    FP64: "everything that computes with, or converts, 64-bit floating-point numbers",
    TENSOR: "matrix products on tensor cores",
    SPECIAL: "exponentials, logarithms, reciprocals, roots, divisions, sines, tanh",
    INTEGER: "integers and addresses, bits, comparisons, choices, minima and maxima",
    CONVERSION: "conversions between types",
    MOVE: "moves, and loads of parameters and constants, most of which no GPU executes",
    MEMORY: "loads, stores, atomics and copies of global and local memory",
    SHARED: "loads and stores of shared memory",
    SHUFFLE: "exchanges, votes and synchronization within a warp",
    BARRIER: "barriers, fences, and waits for copies and products",
    CONTROL: "branches and the like",
}
"""Every kind of instruction, by what of a multiprocessor it keeps busy, and what belongs to it."""

WARP_LANES = 32


@dataclass(frozen=True)
class InstructionCount:
    """The instructions of one form on one source line."""

    kind: str
    """A key of `KINDS`."""
    form: str
    """Opcode and modifiers, as PTX writes them."""
    file: str
    """Source file of the kernel, as the compiler names it; empty where it gave none."""
    line: int
    """Source line, or 0 where the compiler gave none."""
    instructions: int
    """How many there are in the text."""
    warps: int
    """Executions, a warp's counted once."""
    lanes: int
    """The same, counted once per active lane. Predicates of single instructions are not looked at."""
    flops: int
    """Multiplications and additions, of matrix products alone; else 0."""


@dataclass(frozen=True)
class LoadWait:
    """How far ahead of the instruction that waits for it a load of global or local memory was issued.

    One for each distance at the same places. Loads of shared memory are left out: ptxas moves them about.
    """

    is_copy: bool
    """Whether it is a `cp.async` that a wait for groups ends, and not a load whose value is used."""
    file: str
    """Source file of the load."""
    line: int
    """Source line of the load, or 0."""
    wait_line: int
    """Source line of what waits, or 0."""
    distance: int
    """PTX instructions that the warp executes in between."""
    waits: int
    """How often that happened to the warps that were followed."""


@dataclass(frozen=True)
class InstructionReport:
    """The instructions of one launch."""

    counts: tuple[InstructionCount, ...]
    """By kind, form, file and line."""
    clusters: tuple[int, ...]
    """Warp instructions of each cluster of thread blocks, which mostly is one block, in launch order."""
    waits: tuple[LoadWait, ...]
    """Of the warps that were followed: those of one cluster in the middle of the launch. Loads that were issued close
    together are one wait. Copies of TMA, which other warps wait for, are not in it."""
    followed_warps: int
    """How many warps that were."""
    are_connected: bool
    """Whether atomics on global memory connect blocks, which then may share out their work as they go: the emulator
    runs such blocks one after the other, so that the first ones may have done most of it."""
    dependent_cycles: int = 0
    """Of all warps: the longest chain of dependent instructions of each basic block, each time it is executed. Loads of
    global memory have no part in it, see `waits`."""

    def warps_of(self, wanted: Callable[[InstructionCount], bool]) -> int:
        """Warp instructions of the rows that are `wanted`."""
        return sum(row.warps for row in self.counts if wanted(row))
