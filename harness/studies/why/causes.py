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


ARITHMETIC = Cause(
    "arithmetic", "M FLOP", "use tensor cores, or fewer products: skip masked tiles, keep sums in registers"
)
FP64 = Cause("fp64", "M lane instr", "write 1.0f for 1.0 (Numba: float32(...)); keep doubles out of the inner loop")
SPECIAL = Cause(
    "special functions", "M lane instr", "use exp2 with log2(e) folded into the scale, and one reciprocal per row"
)
INTEGER = Cause(
    "integer arithmetic",
    "M warp instr",
    "increment pointers instead of recomputing them; use compile-time strides",
)
CONVERSION = Cause("conversions", "M lane instr", "convert once per tile, two at a time; keep P in its final type")
IDLE_LANES = Cause("idle lanes", "% idle", "give every lane work: map rows or elements to all 32, and branch per warp")
MEMORY = Cause("memory instructions", "M warp instr", "access 16 bytes per lane at once; keep operands in registers")
SHARED = Cause(
    "shared memory", "M wavefronts", "use larger tiles per thread, so that each loaded value is used more often"
)
CONFLICTS = Cause("bank conflicts", "M extra wavefronts", "pad the rows of the tile, or swizzle them")
COALESCING = Cause("uncoalesced accesses", "sectors / minimum", "let neighbouring lanes read neighbouring addresses")
BYTES = Cause("bytes moved", "MiB", "load each value once and keep it in shared memory or registers")
LOCAL_MEMORY = Cause(
    "local memory", "MiB", "make indices into arrays compile-time constants (unroll), or use fewer elements per thread"
)
SPILLS = Cause("spills", "bytes / thread", "use a smaller tile per thread, or allow more registers")
LATENCY = Cause("latency of loads", "waits / warp", "prefetch: cp.async into one more stage, and wait one tile later")
FEW_WARPS = Cause(
    "few warps", "warps / SM", "use less shared memory or fewer registers per block, so that more blocks fit"
)
DEPENDENT = Cause(
    "dependent steps", "cycles / instr", "process two rows or tiles at a time, so that dependency chains overlap"
)
SEVERAL_LAUNCHES_ADVICE = {BYTES: f"{BYTES.advice}; fuse the launches"}
"""Advice for variants with more than one launch."""
UNTILED_ADVICE = {LATENCY: "issue several loads before the first is used (unroll), or keep rows in registers"}
"""Advice for kernels without barriers, which have neither tiles nor stages."""
SMALL_GRID_ADVICE = {FEW_WARPS: "launch more warps: split the keys, or use several lanes or warps per row"}
"""Advice for kernels of which more blocks would fit on a multiprocessor than the grid has."""
SHUFFLES = Cause("shuffles and votes", "M warp instr", "reduce within each thread first, then once across lanes")
CONTROL = Cause("control", "M warp instr", "unroll the inner loops")
UNROLLED_ADVICE = {CONTROL: "the loop is unrolled: make its bounds compile-time constants, so that no guards remain"}
"""Advice for a place in a loop with `#pragma unroll`."""
BARRIERS = Cause(
    "barriers and waits", "M warp instr", "use fewer, larger tiles; with two stages, one barrier per tile is enough"
)
TAIL = Cause(
    "tail and idle SMs", "% of SMs idle", "launch more or smaller blocks, or split the keys, so that all SMs have work"
)
IMBALANCE = Cause("imbalance", "longest / mean", "launch the heaviest blocks first, or pair heavy with light ones")
LAUNCHES = Cause("launches", "launches", "put all heads into one grid, or fuse steps into one kernel")
REREAD = Cause("bytes read again", "MiB", "load each input once, and keep it in shared memory or registers")
NO_TENSOR_CORES = Cause(
    "no tensor cores", "M FLOP on them", "use mma.sync or wgmma for both products, with sums in float32"
)
TILE = Cause("tile size", "barriers", "use larger tiles of rows: fewer blocks then read each key, with fewer barriers")
STEPS = Cause("small steps", "barriers", "use larger tiles of keys: fewer steps, each of which has barriers and a wait")
