"""Standard attention in three kernels: plan and claim. README.md explains the algorithm and derives its bytes.

S and P are stored in the problem's dtype. A row of S and P is the keys that it sees, and a block of rows visits only
tiles with a key that one of them sees; the buffers are N_q x N_k for every mask. Weights that dropout removes are
written as 0, and O is multiplied by 1 / (1 - P); dropout moves no bytes.

What the claim adds to the formula there: a row of n_r keys reads max(n_r - 3072, 0) of S twice more. If the mask is no
band, the first and the last kernel also read 8 N_q bytes of the first keys and ends that rows see, and the softmax two
sectors per row. Each of the 4 warps of a block of the first launch reads the head's slope, if it has one and the block
sees a key (T_r 4 x 32 bytes); each row of the second reads its sink (N_q 32 bytes). Every copy is a run of consecutive
elements (_tiles/sectors.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import Feature, arguments, has_spans, sink_bytes, term_bytes
from variants._tiles import BLOCK, SHARED_BYTES, WARPS, Tile, blocks, default_tile, grid
from variants._tiles.registration import ROW_BY_ROW, Kernels, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, Schedule
from variants._tiles.sectors import SECTOR_BYTES, matrix_rows, run_bytes, tiled_run_bytes
from variants._tiles.space import P_floats, rows_floats, tile_space

SOFTMAX_ROWS = 4
"""Rows per thread block of the softmax: one per warp."""
ON_CHIP = SHARED_BYTES // SOFTMAX_ROWS // FLOAT32_BYTES
"""Elements of a row of S that the softmax keeps on chip."""

NUMERICS = Numerics(
    scores="problem",
    weights="problem",
    functions="__expf",
    tanh="accurate",
    sums="nearest",
    one_score=True,
    divides_last=True,
)
"""S and P go through memory in the problem's dtype; all else stays in float32."""


Features = tuple[Feature, ...]


def features_of(problem: Problem) -> tuple[Features, Features, Features]:
    """The features of each kernel, in the order of its parameters."""
    limits, dropout = features.limits(problem), features.dropout(problem)
    return (limits, features.scores(problem)), (limits, features.sink(problem), dropout), (limits, dropout)


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """CUDA kernels of scores, softmax and output."""
    from variants._tiles.rawkernel import LANES, SIZES, UNROLLED, tiles_kernel

    folder, (of_scores, of_softmax, of_output) = "attention/three_pass", features_of(problem)
    both = tuple(dict.fromkeys((*of_scores, *of_output)))
    headers, sizes = (*LANES, (folder, "rows_seeing.cuh")), {**SIZES, "ON_CHIP": ON_CHIP}
    return (
        tiles_kernel(folder, "three_pass_scores", problem, tile, both, UNROLLED, headers=headers),
        tiles_kernel(folder, "three_pass_softmax", problem, tile, of_softmax, sizes, headers=LANES, file="softmax.cu"),
        tiles_kernel(folder, "three_pass_output", problem, tile, both, UNROLLED, headers=headers),
    )


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """Numba kernels of scores, softmax and output."""
    from variants.attention.three_pass.numba_kernel import three_pass_kernels
    from variants.attention.three_pass.numba_softmax import three_pass_softmax_kernel

    chosen = features.in_numba(problem, tile.Br, tile.Bc)
    kernels = three_pass_kernels(problem.head_dim, tile, problem.dtype, has_spans(problem), chosen)
    softmax = three_pass_softmax_kernel(problem.dtype, ON_CHIP, chosen)
    return kernels.three_pass_scores, softmax, kernels.three_pass_output


TAKES = (*features.SPAN_FEATURES, *features.SCORE_FEATURES, features.DROPOUT_FEATURE)
LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """Three launches; `tile` is `default_tile(head_dim)` unless given."""
    p, tile = problem, tile or default_tile(problem.head_dim)
    scores, softmax, output = kernels(p, tile)
    of_scores, of_softmax, of_output = (arguments(each) for each in features_of(p))
    lengths, group, tau = (np.int32(p.q_len), np.int32(p.kv_len)), np.int32(p.group), np.float32(features.factor(p))
    row_blocks, rows = grid(p, blocks(p.q_len, tile.Br)), grid(p, blocks(p.q_len, SOFTMAX_ROWS))
    square = (p.batch, p.heads, p.q_len, p.kv_len)
    return Plan(
        launches=(
            Launch(scores, row_blocks, BLOCK, ("Q", "K", "S", *lengths, group, tau, *of_scores)),
            Launch(softmax, rows, BLOCK, ("S", "P", *lengths, *of_softmax)),
            Launch(output, row_blocks, BLOCK, ("P", "V", "O", *lengths, group, *of_output)),
        ),
        buffers=(Buffer("S", square, p.dtype), Buffer("P", square, p.dtype)),
    )


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p = problem
    schedule = Schedule(p, tile or default_tile(p.head_dim))
    q_bytes = schedule.row_block_bytes(p.head_dim, p.itemsize_bytes).sum()
    kv_bytes = 2 * (schedule.key_visits * schedule.key_tile_bytes()).sum()

    start, first, end, count = matrix_rows(p.batch * p.heads, p.kv_len, *p.spans)
    seen = np.maximum(end - first, 0)
    row_bytes = run_bytes(start + first, seen, p.itemsize_bytes)
    again_bytes = 2 * run_bytes(start + first + ON_CHIP, np.maximum(seen - ON_CHIP, 0), p.itemsize_bytes)
    tiles_bytes = tiled_run_bytes(start, first, end, schedule.tile.Bc, p.itemsize_bytes)

    # Two launches read what rows of a block see, and a row of the softmax its own.
    rows = p.batch * p.heads * p.q_len
    limit_bytes = 2 * schedule.limit_bytes().sum() + (2 * SECTOR_BYTES * rows if has_spans(p) else 0)
    read_bytes = q_bytes + kv_bytes + limit_bytes + (count * (row_bytes + again_bytes + tiles_bytes)).sum()
    seeing_blocks = p.heads * p.batch // len(p.spans[0]) * int(np.count_nonzero(schedule.visits))
    read_bytes += term_bytes(p, WARPS * seeing_blocks) + sink_bytes(p, rows)
    write_bytes = q_bytes + (count * (tiles_bytes + row_bytes)).sum()
    return Traffic(int(read_bytes), int(write_bytes))


def shared_floats(head_dim: int, tile: Tile) -> int:
    """Shared memory of a block in floats: Q_i, K_j and S in the first launch; O_i, V_j and P in the third."""
    return rows_floats(tile.Br + tile.Bc, head_dim) + P_floats(tile)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `default_tile(head_dim)` first."""
    return tile_space(problem.head_dim, default_tile(problem.head_dim), shared_floats, has_spans(problem))


def register(registry: Registry) -> None:
    """Add `three-pass-cupy` and `three-pass-numba`."""
    idea = "standard attention: S = Q K^T and P = softmax(S) both written to memory"
    register_languages(
        registry, "three-pass", idea, LANGUAGES, plan, claim, tiles, NUMERICS, takes=TAKES, invariant_to=ROW_BY_ROW
    )
