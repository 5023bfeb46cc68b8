"""FlashAttention-1: plan and claim. README.md explains the algorithm and derives its bytes.

What the claim adds to the formula there: J_i, the tiles with a key that row block i sees, are its visits, and tiles of
K and V that no row sees are not loaded. If the mask is no band, the first keys and ends of Q_i's rows, 8 bytes a row,
are read with Q_i, and some of them to find the row blocks that see a tile (`looked_at_bytes`). Every copy is a run of
consecutive elements (_tiles/sectors.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import Feature, arguments, has_spans
from variants._tiles import BLOCK, WARPS, Tile, blocks, grid
from variants._tiles.registration import ROW_BY_ROW, Kernels, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, Schedule
from variants._tiles.sectors import SECTOR_BYTES
from variants._tiles.space import P_floats, rows_floats, tile_space

ON_CHIP_FLOATS = 8192
"""The paper's M."""
LARGEST_BC = 128
"""Maximum keys per tile."""

NUMERICS = Numerics(
    scores="float32", weights="float32", functions="__expf", sums="nearest", one_score=True, divides_last=False
)
"""Nothing is rounded to 16 bits before fa1_round; O is divided anew at every step."""


def fa1_tile(head_dim: int, on_chip_floats: int = ON_CHIP_FLOATS) -> Tile:
    """Line 1 of the algorithm."""
    Bc = blocks(on_chip_floats, 4 * head_dim)
    return Tile(Br=min(Bc, head_dim), Bc=min(Bc, LARGEST_BC))


def features_of(problem: Problem) -> tuple[Feature, ...]:
    """The features of the kernel `fa1`, in the order of its parameters."""
    return (features.limits(problem),)


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """CUDA kernels that initialize O, attend and round O."""
    from variants._tiles.rawkernel import UNROLLED, tiles_kernel

    folder, names = "attention/fa1", ("fa1_initialise", "fa1", "fa1_round")
    chosen, headers = features_of(problem), ((folder, "rows_seeing.cuh"),)
    return tuple(tiles_kernel(folder, name, problem, tile, chosen, UNROLLED, headers=headers) for name in names)


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """Numba kernels that initialize O, attend and round O."""
    from variants.attention.fa1.numba_kernel import fa1_kernels

    chosen = features.in_numba(problem, tile.Br, tile.Bc)
    kernels = fa1_kernels(problem.head_dim, tile, problem.dtype, has_spans(problem), chosen)
    return kernels.fa1_initialise, kernels.fa1, kernels.fa1_round


LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """Two launches, three if O has 16 bits; `tile` is `fa1_tile(head_dim)` unless given."""
    p, tile = problem, tile or fa1_tile(problem.head_dim)
    running_O = "O" if p.dtype == "float32" else "O_running"
    initialise, fa1, rounding = kernels(p, tile)
    q_len = np.int32(p.q_len)
    sizes = (q_len, np.int32(p.kv_len), np.int32(p.group), np.float32(p.tau))
    args = ("Q", "K", "V", running_O, "l", "m", *sizes, *arguments(features_of(p)))
    row_blocks = grid(p, blocks(p.q_len, tile.Br))
    launches = [
        Launch(initialise, row_blocks, BLOCK, (running_O, "l", "m", q_len)),
        Launch(fa1, grid(p, 1), BLOCK, args),
    ]
    buffers = [Buffer("l", p.lse_shape, "float32"), Buffer("m", p.lse_shape, "float32")]
    if running_O != "O":
        launches.append(Launch(rounding, row_blocks, BLOCK, (running_O, "O", q_len)))
        buffers.append(Buffer(running_O, p.q_shape, "float32"))
    return Plan(tuple(launches), tuple(buffers))


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p = problem
    schedule = Schedule(p, tile or fa1_tile(p.head_dim))
    q_bytes = schedule.row_block_bytes(p.head_dim, p.itemsize_bytes)
    running_bytes = schedule.row_block_bytes(p.head_dim, FLOAT32_BYTES)
    state_bytes = running_bytes + 2 * schedule.row_block_bytes(1, FLOAT32_BYTES)
    kv_bytes = 2 * ((schedule.key_visits > 0) * schedule.key_tile_bytes()).sum()
    read_bytes = kv_bytes + (schedule.visits * (q_bytes + state_bytes + schedule.limit_bytes())).sum()
    if has_spans(p):
        read_bytes += looked_at_bytes(schedule)
    write_bytes = ((schedule.visits + 1) * state_bytes).sum()
    if p.dtype != "float32":
        read_bytes += running_bytes.sum()
        write_bytes += q_bytes.sum()
    return Traffic(int(read_bytes), int(write_bytes))


def looked_at_bytes(schedule: Schedule) -> int:
    """Bytes of finding the blocks of rows that see each tile, over all heads: an end or a first key at a time.

    For each tile, the kernel reads the ends of the blocks' last rows, from the first block that sees the tile before to
    the first that sees this one, and then first keys of first rows up to the first block that does not see it. Before
    that, it reads the first key of the head's first row and the end of its last.
    """
    p, blocks_of_rows = schedule.problem, len(schedule.first_rows)
    looks = 0
    for first, end in zip(schedule.first_tiles, schedule.end_tiles):
        so_far = 0
        for tile in range(int(first[0]), int(end[-1])):
            sees = np.flatnonzero((first <= tile) & (tile < end))
            looks += int(min(sees[0], blocks_of_rows - 1) - so_far + 1)
            looks += int(min(sees[-1] + 1, blocks_of_rows - 1) - sees[0] + 1)
            so_far = int(sees[0])
        looks += 2
    heads = p.heads * p.batch // len(schedule.first_tiles)
    return heads * looks * WARPS * SECTOR_BYTES


def shared_floats(head_dim: int, tile: Tile) -> int:
    """Q_i, O_i, K_j, V_j, P, and l and m of every row."""
    return rows_floats(2 * tile.Br + 2 * tile.Bc, head_dim) + P_floats(tile) + 2 * tile.Br


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `fa1_tile(head_dim)` first."""
    return tile_space(problem.head_dim, fa1_tile(problem.head_dim), shared_floats, has_spans(problem))


def register(registry: Registry) -> None:
    """Add `fa1-cupy` and `fa1-numba`."""
    idea = "FlashAttention-1: K/V blocks outside, O rewritten in memory once per K/V block"
    takes = features.SPAN_FEATURES
    register_languages(
        registry, "fa1", idea, LANGUAGES, plan, claim, tiles, NUMERICS, takes=takes, invariant_to=ROW_BY_ROW
    )
