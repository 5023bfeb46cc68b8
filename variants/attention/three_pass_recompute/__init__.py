"""Standard attention without stored scores: three passes over the keys, each of which computes the scores anew.

The safe softmax of Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", arXiv 1805.02867,
algorithm 2, a tile of keys at a time. `three_pass` stores the scores between its passes; here each sweep computes Q_i
K_j^T again. All sweeps are one launch: m and l stay in registers, and Q_i stays on chip.

Algorithm, by line:

    1 to 4      sweep one: m = rowmax(S)
    5 to 8      sweep two: l = rowsum(exp(S - m))
    9 to 11     sweep three: P = exp(S - m) / l, O = O + P V_j

Bytes, per query head: Q and O once, and per row block K three times and V once:

    2 X_q + sum_i J_i (bytes of 3 K_j + V_j)        = 2 X_q + T_r 4 X_k if nothing is masked

J_i are the tiles with a key that row block i sees. `three_pass` moves 2 X_q + T_r 2 X_k + 4 N_q N_k w: two more reads
of K, 2 d elements for each key and row block, replace 4 B_r elements of S and P. This is less if d < 2 B_r, with the
tiles here up to head_dim 64, and more beyond. Every copy is a run of consecutive elements (_tiles/sectors.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Launch, Numerics, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import Feature, arguments, has_spans
from variants._tiles import BLOCK, Tile, blocks, default_tile, grid
from variants._tiles.registration import Kernels, register_languages
from variants._tiles.schedule import Schedule
from variants._tiles.space import P_floats, rows_floats, tile_space

NUMERICS = Numerics(
    scores="float32", weights="float32", functions="__expf", sums="nearest", one_score=True, divides_last=True
)
"""Nothing is rounded to 16 bits before O; all sweeps compute the scores with the same code."""


def features_of(problem: Problem) -> tuple[Feature, ...]:
    """The kernel's features, in the order of its parameters."""
    return (features.limits(problem),)


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """The CUDA kernel."""
    from variants._tiles.rawkernel import SWEEP, tiles_kernel

    folder, name = "attention/three_pass_recompute", "three_pass_recompute"
    return (tiles_kernel(folder, name, problem, tile, features_of(problem), headers=SWEEP),)


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """The Numba kernel."""
    from variants.attention.three_pass_recompute.numba_kernel import three_pass_recompute_kernel

    chosen = features.in_numba(problem, tile.Br, tile.Bc)
    return (three_pass_recompute_kernel(problem.head_dim, tile, problem.dtype, chosen),)


LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """One launch; `tile` is `default_tile(head_dim)` unless given."""
    p, tile = problem, tile or default_tile(problem.head_dim)
    (three_pass_recompute,) = kernels(p, tile)
    sizes = (np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.group), np.float32(p.tau))
    args = ("Q", "K", "V", "O", *sizes, *arguments(features_of(p)))
    return Plan(launches=(Launch(three_pass_recompute, grid(p, blocks(p.q_len, tile.Br)), BLOCK, args),))


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p = problem
    schedule = Schedule(p, tile or default_tile(p.head_dim))
    q_bytes = schedule.row_block_bytes(p.head_dim, p.itemsize_bytes).sum()
    kv_bytes = 4 * (schedule.key_visits * schedule.key_tile_bytes()).sum()
    read_bytes = q_bytes + kv_bytes + schedule.limit_bytes().sum()
    return Traffic(read_bytes=int(read_bytes), write_bytes=int(q_bytes))


def shared_floats(head_dim: int, tile: Tile) -> int:
    """Q_i, one of K_j and V_j, and P."""
    return rows_floats(tile.Br + tile.Bc, head_dim) + P_floats(tile)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `default_tile(head_dim)` first."""
    return tile_space(problem.head_dim, default_tile(problem.head_dim), shared_floats, has_spans(problem))


def register(registry: Registry) -> None:
    """Add `three-pass-recompute-cupy` and `three-pass-recompute-numba`."""
    idea = "standard attention without S and P: scores computed anew for maximum, denominator and P V"
    takes = features.SPAN_FEATURES
    register_languages(registry, "three-pass-recompute", idea, LANGUAGES, plan, claim, tiles, NUMERICS, takes=takes)
