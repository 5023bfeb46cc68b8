"""Three passes that compute the scores again: plan and claim. README.md explains the algorithm and derives its bytes.

What the claim adds to the formula there: J_i, the tiles with a key that row block i sees, in place of all tiles. Every
copy is a run of consecutive elements (_tiles/sectors.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Launch, Numerics, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import Feature, arguments, has_spans
from variants._tiles import BLOCK, Tile, blocks, default_tile, grid
from variants._tiles.registration import ROW_BY_ROW, Kernels, register_languages
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
    idea = "standard attention without S and P: scores recomputed for maximum, denominator and P V"
    takes = features.SPAN_FEATURES
    register_languages(
        registry,
        "three-pass-recompute",
        idea,
        LANGUAGES,
        plan,
        claim,
        tiles,
        NUMERICS,
        takes=takes,
        invariant_to=ROW_BY_ROW,
    )
