"""Warps: what the algorithms without tiles have in common. A warp has one query row and goes over the keys.

Rows of Q, K, V and O are moved as they lie in memory, 32 consecutive elements per warp request, so each is a run (see
_tiles/sectors.py), and every row loads K and V again. warps.cuh (CUDA) and numba_warps.py (Numba) have what the kernels
share. A row reads only the run of keys that it sees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic, Variant
from variants._features import SPAN_FEATURES, Feature, arguments, limits
from variants._tiles import BLOCK, Tile, blocks, grid, unsupported
from variants._tiles.schedule import FLOAT32_BYTES, Schedule
from variants._tiles.sectors import Integers

TILE = Tile(Br=4, Bc=8)
"""Rows of a block, one per warp, and keys that a warp looks at together. No row shares what is read with another."""
ROW = Tile(Br=1, Bc=1)
"""What is moved at once."""

Kernel = Callable[[Problem], Any]
"""Returns the algorithm's kernel in one language."""


def features_of(problem: Problem) -> tuple[Feature, ...]:
    """The features of a kernel, in the order of its parameters."""
    return (limits(problem),)


def register_warps(
    registry: Registry,
    algorithm: str,
    idea: str,
    languages: Mapping[str, Kernel],
    numerics: Numerics,
    *,
    stores_lse: bool = False,
    fails_in: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Add `<algorithm>-<language>` for each of `languages`, which are the variants' backends.

    `fails_in`: by language, see `Variant.fails_in`.
    """
    for language, kernel in languages.items():
        registry.add(
            Variant(
                name=f"{algorithm}-{language}",
                algorithm=algorithm,
                backend=language,
                idea=idea,
                # Partial functions of this module's, not closures: they can be sent to worker processes.
                plan=functools.partial(_plan, kernel, stores_lse),
                supports=unsupported,
                claim=functools.partial(_claim, stores_lse),
                takes=SPAN_FEATURES,
                invariant_to=("batch", "padding"),
                fails_in=(fails_in or {}).get(language, ()),
                numerics=numerics,
            )
        )


def _plan(kernel: Kernel, stores_lse: bool, problem: Problem) -> Plan:
    """One launch, a warp per row."""
    p = problem
    outputs = ("O", "lse") if stores_lse else ("O",)
    sizes = (np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.group), np.float32(p.tau))
    args = ("Q", "K", "V", *outputs, *sizes, *arguments(features_of(p)))
    return Plan(
        launches=(Launch(kernel(p), grid(p, blocks(p.q_len, TILE.Br)), BLOCK, args),),
        buffers=(Buffer("lse", p.lse_shape, "float32"),) if stores_lse else (),
    )


def _claim(stores_lse: bool, problem: Problem) -> Traffic:
    """Q once where a row sees any key, O once, and K and V once for every row that sees them; each row is a run.

    Where the mask is no band, also the row's first key and its end, a sector each.
    """
    schedule = Schedule(problem, ROW)
    firsts, ends = problem.spans
    seeing = ends > firsts
    row_bytes = schedule.row_block_bytes(problem.head_dim, problem.itemsize_bytes)
    rows = [_rows_that_see_each_key(problem, first[sees], end[sees]) for first, end, sees in zip(firsts, ends, seeing)]
    kv_bytes = 2 * (np.stack(rows) * schedule.key_tile_bytes()).sum()
    # A row's warp stores its log-sum-exp alone.
    lse_bytes = schedule.row_block_bytes(1, FLOAT32_BYTES).sum() if stores_lse else 0
    read_bytes = row_bytes[seeing].sum() + kv_bytes + schedule.limit_bytes().sum()
    return Traffic(read_bytes=int(read_bytes), write_bytes=int(row_bytes.sum() + lse_bytes))


def _rows_that_see_each_key(problem: Problem, first: Integers, end: Integers) -> Integers:
    """(N_k,): of one query head."""
    begin, stop = (np.bincount(edge, minlength=problem.kv_len + 1) for edge in (first, end))
    rows: Integers = np.cumsum(begin - stop)[: problem.kv_len]
    return rows
