"""Two passes over the keys with the online softmax: plan and claim. README.md explains the algorithm and its bytes.

What the claim adds to the formula there: J_i, the tiles with a key that row block i sees, in place of all tiles. If the
mask is no band, 8 N_q bytes hold the first key and the end of what each row sees. Each of a block's 4 warps reads the
head's slope and its sink, if it has them: T_r 4 x 32 bytes each. Every copy is a run of consecutive elements
(_tiles/sectors.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Launch, Numerics, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import Feature, arguments, has_spans, sink_bytes, term_bytes
from variants._tiles import BLOCK, WARPS, Tile, blocks, default_tile, grid
from variants._tiles.registration import ROW_BY_ROW, Kernels, register_languages
from variants._tiles.schedule import Schedule
from variants._tiles.space import P_floats, rows_floats, tile_space

NUMERICS = Numerics(
    scores="float32",
    weights="float32",
    functions="__expf",
    tanh="accurate",
    sums="nearest",
    one_score=True,
    divides_last=True,
)
"""Nothing is rounded to 16 bits before O; sweep two computes the scores with the code of sweep one."""


def features_of(problem: Problem) -> tuple[Feature, ...]:
    """The kernel's features, in the order of its parameters."""
    return features.limits(problem), features.scores(problem), features.sink(problem)


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """The CUDA kernel."""
    from variants._tiles.rawkernel import SWEEP, tiles_kernel

    return (tiles_kernel("attention/two_pass", "two_pass", problem, tile, features_of(problem), headers=SWEEP),)


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """The Numba kernel."""
    from variants.attention.two_pass.numba_kernel import two_pass_kernel

    chosen = features.in_numba(problem, tile.Br, tile.Bc)
    return (two_pass_kernel(problem.head_dim, tile, problem.dtype, chosen),)


TAKES = (*features.SPAN_FEATURES, *features.SCORE_FEATURES)
LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """One launch; `tile` is `default_tile(head_dim)` unless given."""
    p, tile = problem, tile or default_tile(problem.head_dim)
    (two_pass,) = kernels(p, tile)
    sizes = (np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.group), np.float32(features.factor(p)))
    args = ("Q", "K", "V", "O", *sizes, *arguments(features_of(p)))
    return Plan(launches=(Launch(two_pass, grid(p, blocks(p.q_len, tile.Br)), BLOCK, args),))


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p = problem
    schedule = Schedule(p, tile or default_tile(p.head_dim))
    q_bytes = schedule.row_block_bytes(p.head_dim, p.itemsize_bytes).sum()
    kv_bytes = 3 * (schedule.key_visits * schedule.key_tile_bytes()).sum()
    read_bytes = q_bytes + kv_bytes + schedule.limit_bytes().sum()
    score_bytes = term_bytes(p, WARPS * schedule.owners) + sink_bytes(p, WARPS * schedule.owners)
    return Traffic(read_bytes=int(read_bytes) + score_bytes, write_bytes=int(q_bytes))


def shared_floats(head_dim: int, tile: Tile) -> int:
    """Q_i, one of K_j and V_j, and P."""
    return rows_floats(tile.Br + tile.Bc, head_dim) + P_floats(tile)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `default_tile(head_dim)` first."""
    return tile_space(problem.head_dim, default_tile(problem.head_dim), shared_floats, has_spans(problem))


def register(registry: Registry) -> None:
    """Add `two-pass-cupy` and `two-pass-numba`."""
    idea = "online softmax: one sweep for maximum and denominator, one that recomputes scores for P V"
    register_languages(
        registry, "two-pass", idea, LANGUAGES, plan, claim, tiles, NUMERICS, takes=TAKES, invariant_to=ROW_BY_ROW
    )
