"""FlashAttention-4: tiles, plan and claim. README.md explains the algorithm and derives its bytes.

`package` has FlashAttention-4's own kernel for Hopper, as a variant of the same algorithm.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, PlanError, Problem, Registry, Traffic
from variants._blackwell import ARCH, LANES, unsupported_on_blackwell
from variants._features import Feature
from variants._hopper import ALIGNMENT_BYTES, ELEMENT_BYTES, LARGEST_BLOCK_BYTES, limits, rows_map
from variants._mma import LOG2_E
from variants._tiles import blocks
from variants._tiles.registration import Kernels, register_languages
from variants._tiles.schedule import FLOAT32_BYTES
from variants._tiles.sectors import SECTOR_BYTES
from variants.attention.fa4 import package

FOLDER = "attention/fa4"
NUMERICS = Numerics(
    scores="float32",
    weights="problem",
    functions="fast",
    sums="truncated",
    one_score=True,
    divides_last=True,
    cubic_exp=True,
    headroom=8,
)
"""P is rounded to 16 bits, as tensor cores take it; what they add up they cut off. O is divided once. A share of P
comes from a cubic, and P is relative to a maximum that may have risen by a factor of 2^8 since."""
THREADS = 512
"""Two warpgroups of softmax, one of correction, and one whose warps load, multiply, store and inspect."""
ROW_TILES = 2
"""Tiles of 128 rows that a block has in turns."""
STATIC_BYTES = 4096
"""Of barriers, factors of rows, and notes of an inspected V."""
PARTS = ("row_tiles", "tiles", "inspection", "pipeline", "softmax", "correction")
WARP_ROWS = 32
"""Rows whose lse a warp stores per request."""


@dataclass(frozen=True)
class Fa4Tile:
    """Sizes of tiles. Raises `PlanError` where the kernel cannot have them."""

    Br: int
    """Query rows of a block, two tiles of 128."""
    Bc: int
    """Keys."""
    stages: int
    """Tiles of K or V on chip at once."""

    def __post_init__(self) -> None:
        if (self.Br, self.Bc) != (ROW_TILES * LANES, LANES):
            raise PlanError(f"{self}: Br has to be 256 and Bc 128, of which tensor memory has S, P and O")
        if self.stages < 2:
            raise PlanError(f"{self}: stages has to be at least 2, for K and V of a tile of keys")

    def shared_bytes(self, head_dim: int) -> int:
        """Q_i, a tile of O_i on its way out, K and V, and what aligns them."""
        rows = self.Br + LANES + self.stages * self.Bc
        return rows * head_dim * ELEMENT_BYTES + ALIGNMENT_BYTES

    def fits(self, head_dim: int) -> bool:
        """Whether a block's shared memory suffices."""
        return self.shared_bytes(head_dim) + STATIC_BYTES <= LARGEST_BLOCK_BYTES


def default_tile(problem: Problem) -> Fa4Tile:
    """As many stages as fill most of shared memory: at head_dim 64, more would be ahead of what is needed."""
    return Fa4Tile(ROW_TILES * LANES, LANES, stages=3 if problem.head_dim > 64 else 6)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, the default first."""
    default = default_tile(problem)
    others = (Fa4Tile(default.Br, default.Bc, stages) for stages in range(2, 9) if stages != default.stages)
    return [asdict(tile) for tile in (default, *others) if tile.fits(problem.head_dim)]


def cupy_kernels(problem: Problem, tile: Fa4Tile) -> tuple[Any, ...]:
    """The CUDA kernel."""
    from variants._blackwell.rawkernel import blackwell_kernel

    sizes = {"BR": tile.Br, "BC": tile.Bc, "STAGES": tile.stages}
    parts = tuple((FOLDER, f"{part}.cuh") for part in PARTS)
    return (blackwell_kernel(FOLDER, "fa4", problem.head_dim, sizes, problem.dtype, (_limits(problem),), parts),)


def _limits(problem: Problem) -> Feature:
    return limits(problem)


def plan(problem: Problem, kernels: Kernels, tile: Fa4Tile | None = None) -> Plan:
    """One launch; `tile` is the problem's default unless given."""
    p, tile = problem, tile or default_tile(problem)
    # exp(tau s) = 2^(tau2 s) for tau > 0. The kernel gives S the sign of tau, so that the largest s has most weight.
    tau2, sign = np.float32(abs(p.tau) * LOG2_E if p.tau else 1.0), np.int32(np.sign(p.tau))
    heads, kv_heads = p.batch * p.heads, p.batch * p.kv_heads_count
    maps = (
        rows_map("Q", p, heads, p.q_len, LANES),
        rows_map("K", p, kv_heads, p.kv_len, tile.Bc),
        rows_map("V", p, kv_heads, p.kv_len, tile.Bc),
        rows_map("O", p, heads, p.q_len, LANES),
    )
    sizes = tuple(np.int32(n) for n in (p.q_len, p.kv_len, heads, p.group))
    (kernel,) = kernels(p, tile)
    launch = Launch(
        kernel,
        (heads * blocks(p.q_len, tile.Br),),
        (THREADS,),
        (*maps, "lse", *sizes, tau2, sign, _limits(p).argument),
        shared_bytes=tile.shared_bytes(p.head_dim),
    )
    return Plan(launches=(launch,), buffers=(Buffer("lse", p.lse_shape, "float32"),))


def claim(problem: Problem, tile: Fa4Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, tile = problem, tile or default_tile(problem)
    heads, row_bytes = p.batch * p.heads, p.head_dim * ELEMENT_BYTES
    last_rows = np.minimum(np.arange(tile.Br, p.q_len + tile.Br, tile.Br), p.q_len) - 1
    end_keys = p.span(last_rows)[1]
    key_tiles = np.maximum(-(-end_keys // tile.Bc), 1)  # rows that see no key visit one all the same
    read_rows = len(last_rows) * tile.Br + 2 * int(key_tiles.sum()) * tile.Bc
    return Traffic(heads * read_rows * row_bytes, heads * p.q_len * row_bytes + lse_bytes(p))


def lse_bytes(problem: Problem) -> int:
    """Bytes of writing lse: a request is the 32 rows of a warp."""
    first = np.arange(0, problem.q_len, WARP_ROWS)
    heads = np.arange(problem.batch * problem.heads)[:, None] * problem.q_len
    begin, end = heads + first, heads + np.minimum(first + WARP_ROWS, problem.q_len)
    sectors = (end * FLOAT32_BYTES - 1) // SECTOR_BYTES - begin * FLOAT32_BYTES // SECTOR_BYTES + 1
    return SECTOR_BYTES * int(sectors.sum())


def register(registry: Registry) -> None:
    """Add `fa4-cupy`, and `fa4` if its package is installed."""
    package.register(registry)
    register_languages(
        registry,
        "fa4",
        "FlashAttention-4 for Blackwell: alternates two row tiles, accumulates in tensor memory, approximates exp by a "
        "cubic",
        {"cupy": cupy_kernels},
        plan,
        claim,
        tiles,
        NUMERICS,
        takes=("causal",),
        supports=unsupported_on_blackwell,
        tile_class=Fa4Tile,
        arch=ARCH,
    )
