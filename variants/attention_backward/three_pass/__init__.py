"""Standard attention's backward pass: S, P, dP and dS, N_q x N_k each, go to memory and come back.

Dao et al. 2022, arXiv 2205.14135, algorithm 3. The paper reads P from memory, where the forward pass left it; here the
forward pass left the log-sum-exp, so S = tau Q K^T is written first, and then P = exp(S - lse). rowsum(P o dP) of line
3 is rowsum(dO o O), which costs 2 d reads per row instead of another pass over both matrices. S, P, dP and dS are
stored in the problem's dtype. A row of them is the keys that it sees, whatever the mask, and tiles of which a block of
rows sees nothing are not visited; the buffers are N_q x N_k all the same.

Bytes, per query head, with n_r the keys that row r sees and J_i the tiles with a key that row block i sees:

    S, dP       Q, dO and J_i (K_j + V_j) read, 2 sum_r n_r written
    P, dS       2 sum_r n_r, O, dO and lse of rows that see a key read, 2 sum_r n_r written
    dV, dK      2 sum_r n_r and sum_i J_i (dO_i + Q_i) read; per K/V head: dV, dK written
    dQ          sum_r n_r and J_i K_j read, dQ written

A block of the third kind sums over the query heads that share its keys. If the mask is not a band, each launch also
reads which keys each row sees, 8 N_q per query head (those of the second kind a sector of either end per row), or, of
the third kind, which rows see each key, 8 N_k per K/V head. Every copy is a run of consecutive elements (see
_tiles/sectors.py); lse of a row is a sector. Dropout moves no bytes: the second launch draws the numbers again, and dV
is multiplied by 1 / (1 - P) as it is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import has_spans
from variants._tiles import BLOCK, Tile, blocks, default_tile, grid
from variants._tiles.backward import BACKWARD, BackwardSchedule, key_grid, register_backward, sizes, turned
from variants._tiles.registration import Kernels
from variants._tiles.sectors import SECTOR_BYTES, matrix_rows, run_bytes, tiled_run_bytes
from variants._tiles.space import P_floats, rows_floats, tile_space

WEIGHTS_ROWS = 4
"""Rows per thread block of the launch between the products: one per warp."""

NUMERICS = Numerics(scores="problem", weights="problem", functions="__expf", sums="nearest")
"""S, P, dP and dS go through memory in the problem's dtype; all else stays in float32."""


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """CUDA kernels of the products, the weights, dK and dV, and dQ."""
    from variants._tiles.rawkernel import LANES, tiles_kernel

    chosen, headers = (features.limits(problem), features.dropout(problem)), (*LANES, *BACKWARD)

    def kernel(name: str, tile: Tile, file: str = "kernel.cu") -> Any:
        folder, name = "attention_backward/three_pass", f"bwd_three_pass_{name}"
        return tiles_kernel(folder, name, problem, tile, chosen, headers=headers, file=file)

    weights = kernel("weights", tile, "weights.cu")
    return kernel("product", tile), weights, kernel("of_keys", turned(tile)), kernel("of_rows", tile)


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """Numba kernels of the products, the weights, dK and dV, and dQ."""
    from variants.attention_backward.three_pass.numba_kernel import (
        three_pass_of_keys,
        three_pass_of_rows,
        three_pass_weights,
    )

    head_dim, dtype = problem.head_dim, problem.dtype
    owning_rows = features.in_numba(problem, tile.Br, tile.Bc)
    owning_keys = features.in_numba(problem, tile.Bc, tile.Br)
    product, of_rows = three_pass_of_rows(head_dim, tile, dtype, owning_rows)
    of_keys = three_pass_of_keys(head_dim, turned(tile), dtype, owning_keys)
    return product, three_pass_weights(head_dim, dtype, owning_rows), of_keys, of_rows


TAKES = (*features.SPAN_FEATURES, features.DROPOUT_FEATURE)
LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """Six launches of four kernels; `tile` is `default_tile(head_dim)` unless given."""
    p, tile = problem, tile or default_tile(problem.head_dim)
    product, weights, of_keys, of_rows = kernels(p, tile)
    q_len, kv_len, group, tau = sizes(p)
    by, one = (q_len, kv_len, group), np.float32(1)
    see, seen_by = features.limits(p).argument, features.mirrored_limits(p).argument
    dropout, factor = features.dropout(p).argument, np.float32(p.kept_factor)
    row_blocks, key_blocks = grid(p, blocks(p.q_len, tile.Br)), key_grid(p, tile)
    rows, weights_args = grid(p, blocks(p.q_len, WEIGHTS_ROWS)), ("S", "dP", "O", "dO", "lse", "P", "dS")
    square = (p.batch, p.heads, p.q_len, p.kv_len)
    return Plan(
        launches=(
            Launch(product, row_blocks, BLOCK, ("Q", "K", "S", *by, tau, see)),
            Launch(product, row_blocks, BLOCK, ("dO", "V", "dP", *by, one, see)),
            Launch(weights, rows, BLOCK, (*weights_args, q_len, kv_len, see, dropout)),
            Launch(of_keys, key_blocks, BLOCK, ("P", "dO", "dV", *by, factor, seen_by)),
            Launch(of_keys, key_blocks, BLOCK, ("dS", "Q", "dK", *by, tau, seen_by)),
            Launch(of_rows, row_blocks, BLOCK, ("dS", "K", "dQ", *by, tau, see)),
        ),
        buffers=tuple(Buffer(name, square, p.dtype) for name in ("S", "P", "dP", "dS")),
    )


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p = problem
    s = BackwardSchedule(p, tile or default_tile(p.head_dim))
    Q_bytes, kv_bytes = s.Q_bytes.sum(), (s.key_visits * s.key_tile_bytes()).sum()

    rows = np.arange(p.batch * p.heads * p.q_len, dtype=np.int64)
    first, end = (np.repeat(each, p.batch * p.heads // len(each), axis=0).ravel() for each in p.spans)
    own_bytes = 2 * run_bytes(rows * p.head_dim, p.head_dim, p.itemsize_bytes) + SECTOR_BYTES
    weights_bytes = own_bytes[end > first].sum()
    limit_bytes = 3 * s.limit_bytes().sum() + 2 * s.key_limit_bytes.sum()
    if has_spans(p):
        limit_bytes += 2 * SECTOR_BYTES * len(rows)
    start, first, end, count = matrix_rows(p.batch * p.heads, p.kv_len, *p.spans)
    matrix_bytes = (count * run_bytes(start + first, np.maximum(end - first, 0), p.itemsize_bytes)).sum()
    tiles_bytes = (count * tiled_run_bytes(start, first, end, s.tile.Bc, p.itemsize_bytes)).sum()

    read_bytes = 2 * (Q_bytes + kv_bytes) + 2 * matrix_bytes + weights_bytes + limit_bytes
    read_bytes += 2 * (tiles_bytes + (s.visits * s.Q_bytes).sum()) + tiles_bytes + kv_bytes
    write_bytes = 2 * tiles_bytes + 2 * matrix_bytes + 2 * s.K_bytes.sum() + Q_bytes
    return Traffic(int(read_bytes), int(write_bytes))


def shared_floats(head_dim: int, tile: Tile) -> int:
    """Q_i, K_j and S of a block that owns rows, or what one that owns keys has, whose tile of P is turned."""
    return rows_floats(tile.Br + tile.Bc, head_dim) + max(P_floats(tile), P_floats(turned(tile)))


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `default_tile(head_dim)` first."""
    return tile_space(problem.head_dim, default_tile(problem.head_dim), shared_floats, has_spans(problem))


def register(registry: Registry) -> None:
    """Add `bwd-three-pass-cupy` and `bwd-three-pass-numba`."""
    idea = "standard attention backward: S, P, dP and dS all written to memory"
    register_backward(registry, "bwd-three-pass", idea, LANGUAGES, plan, claim, tiles, numerics=NUMERICS, takes=TAKES)
