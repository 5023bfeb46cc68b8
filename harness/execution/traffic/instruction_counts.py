"""Instructions that a launch executed, as plain data: by kind, source line and cluster; load-to-use distances."""

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
"""Kinds of instruction by the unit of a multiprocessor that they occupy, and what each kind includes."""


@dataclass(frozen=True)
class InstructionCount:
    """Executions of one instruction form on one source line."""

    kind: str
    """A key of `KINDS`."""
    form: str
    """Opcode and modifiers in PTX."""
    file: str
    """Source file of the kernel, as the compiler names it; empty if unknown."""
    line: int
    """Source line; 0 if unknown."""
    instructions: int
    """Number of such instructions in the PTX text."""
    warps: int
    """Warp-level executions."""
    lanes: int
    """Executions summed over active lanes. Predicates of single instructions are ignored."""
    flops: int
    """Floating-point operations of matrix instructions; 0 for all others."""


@dataclass(frozen=True)
class LoadWait:
    """The distance between a load of global or local memory and the instruction that waits for it.

    There is one record per pair of places and distance. Loads of shared memory are excluded, since ptxas reorders them.
    """

    is_copy: bool
    """True for a `cp.async` that a wait for groups ends; False for a load whose value is used."""
    file: str
    """Source file of the load."""
    line: int
    """Source line of the load; 0 if unknown."""
    wait_line: int
    """Source line of the waiting instruction; 0 if unknown."""
    distance: int
    """PTX instructions that the warp executes between the load and the wait."""
    waits: int
    """How often this happened, summed over the followed warps."""


@dataclass(frozen=True)
class InstructionReport:
    """Executed instructions of one launch."""

    counts: tuple[InstructionCount, ...]
    """Counts, sorted by kind, form, file and line."""
    clusters: tuple[int, ...]
    """Warp instructions of each thread block cluster (usually one block), in launch order."""
    waits: tuple[LoadWait, ...]
    """Load waits of the followed warps, which are those of one cluster in the middle of the launch. Loads issued close
    together count as one wait. TMA copies, which other warps await, are excluded."""
    followed_warps: int
    """Number of followed warps."""
    are_connected: bool
    """Whether blocks communicate through atomics on global memory, and so may distribute their work dynamically. The
    emulator runs such blocks one after the other, so the first ones may do most of the work."""
    dependent_cycles: int = 0
    """Dependent latency in cycles, summed over all warps: the longest dependency chain of each basic block, times its
    executions. Loads of global memory are excluded; see `waits`."""

    def warps_of(self, wanted: Callable[[InstructionCount], bool]) -> int:
        """Warp instructions of the counts for which `wanted` is true."""
        return sum(row.warps for row in self.counts if wanted(row))
