"""The causes to which time is attributed: the meaning of each, and advice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One kind of cost."""

    name: str
    """Name in the table."""
    unit: str
    """Unit of the figure next to the predicted time."""
    advice: str
    """What to do if it costs most."""


ARITHMETIC = Cause("arithmetic", "M FLOP", "tensor cores, or fewer products: skip masked tiles, keep sums in registers")
FP64 = Cause("fp64", "M lane instr", "write 1.0f for 1.0 (numba: float32(...)): no double in the inner loop")
SPECIAL = Cause("special functions", "M lane instr", "exp2 with log2(e) in the scale; one reciprocal per row")
INTEGER = Cause("integers, addresses", "M warp instr", "step pointers instead of computing them; compile-time strides")
CONVERSION = Cause("conversions", "M lane instr", "convert once per tile, two at a time; keep P in its final type")
IDLE_LANES = Cause("idle lanes", "% idle", "give every lane work: map rows or elements to all 32, branch by warp")
MEMORY = Cause("memory instructions", "M warp instr", "wider accesses: 16 bytes a lane; keep operands in registers")
SHARED = Cause("shared memory", "M wavefronts", "larger tiles per thread, so that what is loaded is used more often")
CONFLICTS = Cause("bank conflicts", "M extra wavefr.", "pad the rows of the tile, or swizzle them")
COALESCING = Cause("coalescing", "sectors / ideal", "let neighbouring lanes read neighbouring addresses")
BYTES = Cause(
    "bytes moved", "MB sectors", "load each value once and keep it in shared memory or registers; fuse the launches"
)
LOCAL_MEMORY = Cause(
    "local memory", "MiB", "make indices into arrays compile-time constants (unroll), or fewer elements per thread"
)
SPILLS = Cause("spills", "bytes / thread", "a smaller tile per thread, or a higher limit of registers")
LATENCY = Cause("latency of loads", "waits / warp", "copy ahead: cp.async into one stage more, wait one tile later")
FEW_WARPS = Cause("few warps", "warps / SM", "less shared memory or fewer registers per block, so that more fit")
DEPENDENT = Cause("dependent steps", "cycles / instr", "two rows or tiles at a time, so that chains overlap")
UNTILED_ADVICE = {LATENCY: "several loads before the first is used (unroll), or fewer: keep rows in registers"}
"""Advice for kernels without barriers, which have neither tiles nor stages."""
SMALL_GRID_ADVICE = {FEW_WARPS: "more warps in the grid: split the keys, or several lanes or warps per row"}
"""Advice for kernels of which more blocks would fit on a multiprocessor than the grid has."""
SHUFFLES = Cause("shuffles, votes", "M warp instr", "reduce within a thread first, across lanes once")
CONTROL = Cause("control", "M warp instr", "unroll the inner loops")
UNROLLED_ADVICE = {CONTROL: "the loop is unrolled: make its bounds compile-time constants, so that no guards are left"}
"""Advice for a place in a loop with `#pragma unroll`."""
BARRIERS = Cause("barriers, waits", "M warp instr", "fewer, larger tiles; two stages need one barrier per tile")
TAIL = Cause("tail, idle SMs", "% of SMs idle", "more or smaller blocks, or split the keys, so that all SMs have work")
IMBALANCE = Cause("imbalance", "longest / mean", "heaviest blocks first, or pair heavy with light ones")
LAUNCHES = Cause("launches", "launches", "fewer launches: all heads in one grid, or steps fused into one kernel")
REREAD = Cause("bytes read again", "MB sectors", "load it once and keep it, in shared memory or registers")
NO_TENSOR_CORES = Cause("no tensor cores", "M FLOP on them", "mma.sync or wgmma for both products, sums in float32")
TILE = Cause("tile size", "barriers", "larger tiles: each key is then read by fewer blocks, with fewer barriers")
STEPS = Cause("small steps", "barriers", "larger tiles of keys: fewer steps, each with its barriers and its wait")
