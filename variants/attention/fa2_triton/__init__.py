"""FlashAttention-2 in Triton: the algorithm of `fa2`, with layouts, copies and tensor cores that Triton chooses.

Dao 2023, arXiv 2307.08691, algorithm 1. A program owns Q_i and walks over the K_j and V_j that its rows see. Tiles have
a power of two of elements per row, at least 16, of which those from head_dim on are masked. 16-bit tiles are multiplied
on tensor cores, float32 in full precision.

Bytes, per query head, are those of `fa2`:

    2 X_q + 4 N_q + sum_i J_i (bytes of K_j + V_j)        = 2 X_q + 4 N_q + T_r 2 X_k where nothing is masked

If head_dim is a multiple of 16, rows are whole sectors. Otherwise Triton knows no alignment of rows and moves one
element per lane: 32 elements of a row at once, or two rows if tiles have 16 elements per row.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic, TritonKernel, Variant
from variants._features import BAND_FEATURES, band
from variants._tiles import Tile, blocks, unsupported
from variants._tiles.schedule import FLOAT32_BYTES, Schedule
from variants._tiles.sectors import LANES, Integers, run_bytes

NUMERICS = Numerics(scores="float32", one_score=True, divides_last=True)
"""P is rounded to 16 bits for tensor cores, which cut off their sums; exp and log are approximate."""
STAGES = 2
SHARED_BYTES = 163 * 1024
"""Shared memory of a block on an A100."""
ALIGNMENT = 16
"""Elements. Rows of a multiple of them begin at a sector."""


def row_tile(problem: Problem) -> int:
    """Elements per row of a tile."""
    return max(16, 1 << (problem.head_dim - 1).bit_length())


def row_tile_bytes(problem: Problem) -> int:
    """Bytes per row of a tile."""
    return row_tile(problem) * problem.itemsize_bytes


def default_tile(problem: Problem) -> Tile:
    """The largest tile for which `ptxas` spills nothing, or little, to local memory."""
    row_bytes = row_tile_bytes(problem)
    if problem.dtype == "float32":
        return Tile(32, 32) if row_bytes <= 256 else Tile(32, 16) if row_bytes <= 512 else Tile(16, 16)
    return Tile(64, 32) if row_bytes <= 256 else Tile(64, 16)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """Tiles whose Q_i and `STAGES` of K_j and V_j fit `SHARED_BYTES`, the default first."""
    default = default_tile(problem)
    others = [Tile(Br, Bc) for Br in (default.Br, 2 * default.Br) for Bc in (16, 32, 64)]
    fitting = [t for t in others if (t.Br + 2 * STAGES * t.Bc) * row_tile_bytes(problem) <= SHARED_BYTES]
    return [{"Br": tile.Br, "Bc": tile.Bc} for tile in dict.fromkeys((default, *fitting))]


def warps_of(problem: Problem, tile: Tile) -> int:
    """Warps per program: as many as leave a thread registers for its part of S and O."""
    return 4 if tile.Br <= 64 and row_tile_bytes(problem) <= 128 else 8


def tile_of(problem: Problem, tile: Mapping[str, int] | None) -> Tile:
    """The tile that was chosen, or the default."""
    return Tile(**tile) if tile else default_tile(problem)


@functools.cache
def kernel_of(dtype: str, columns: int, aligned: bool, tile: Tile, warps: int) -> TritonKernel:
    """The kernel for these compile-time parameters."""
    from variants.attention.fa2_triton.kernel import fa2

    sizes = {"ALIGNED": aligned, "D_TILE": columns, "BR": tile.Br, "BC": tile.Bc}
    precision = {"PRECISION": "ieee" if dtype == "float32" else "tf32"}
    return TritonKernel(fa2, {**sizes, **precision}, num_warps=warps, num_stages=STAGES)


def plan(problem: Problem, tile: Mapping[str, int] | None = None) -> Plan:
    """One launch."""
    p, chosen = problem, tile_of(problem, tile)
    kernel = kernel_of(p.dtype, row_tile(p), p.head_dim % ALIGNMENT == 0, chosen, warps_of(p, chosen))
    sizes = map(np.int32, (p.q_len, p.kv_len, p.head_dim, p.group))
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau), *band(p))
    launch = Launch(kernel, (blocks(p.q_len, chosen.Br), p.heads, p.batch), kernel.block, args)
    return Plan(launches=(launch,), buffers=(Buffer("lse", p.lse_shape, "float32"),))


def tile_bytes(problem: Problem, heads: int, length: int, rows: int) -> Integers:
    """(heads, tiles): bytes of moving each tile of `rows` rows once, at the `sectors` level."""
    d, together = problem.head_dim, LANES // min(LANES, row_tile(problem))
    first_rows = np.arange(0, length, together)
    count = np.minimum(together, length - first_rows)
    first = (np.arange(heads)[:, None] * length + first_rows) * d
    if d % ALIGNMENT == 0:
        moved = np.broadcast_to(count * d * problem.itemsize_bytes, first.shape)
    else:
        pieces = [(c, count * min(LANES, d - c)) for c in range(0, d, LANES)]
        moved = sum(run_bytes(first + c, elements, problem.itemsize_bytes) for c, elements in pieces)
    return np.add.reduceat(moved, np.arange(0, len(first_rows), rows // together), axis=1)


def claim(problem: Problem, tile: Mapping[str, int] | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, chosen = problem, tile_of(problem, tile)
    schedule = Schedule(p, chosen)
    q_bytes = int(tile_bytes(p, p.batch * p.heads, p.q_len, chosen.Br).sum())
    key_tiles = tile_bytes(p, p.batch * p.kv_heads_count, p.kv_len, chosen.Bc).sum(axis=0)
    key_bytes = int(2 * p.group * np.sum(key_tiles * schedule.key_visits[0]))
    lse_bytes = int(schedule.row_block_bytes(1, FLOAT32_BYTES).sum())
    return Traffic(read_bytes=q_bytes + key_bytes, write_bytes=q_bytes + lse_bytes)


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; run: pip install 'attention-sandbox[triton]'"
    return unsupported(problem)


def register(registry: Registry) -> None:
    """Add `fa2-triton`."""
    fields: dict[str, Any] = {"plan": plan, "supports": supports, "claim": claim, "tiles": tiles}
    registry.add(
        Variant(
            name="fa2-triton",
            algorithm="fa2-triton",
            backend="triton",
            idea="FlashAttention-2 in Triton, which chooses layouts and copies",
            takes=BAND_FEATURES,
            numerics=NUMERICS,
            **fields,
        )
    )
