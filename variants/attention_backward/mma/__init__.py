"""FlashAttention-2's backward pass on tensor cores: S and dP transposed, dQ summed by atomics.

The algorithm is that of `bwd-fa2` (Dao 2023, arXiv 2307.08691, algorithm 2). A block computes S^T = K_j Q_i^T, with a
key per row: what that product leaves in registers is P^T, and then dS^T, as the next products take them. Only dQ_i +=
dS K_j needs dS the other way round, and gets it through shared memory, one step later. Beyond head_dim 64 the other
two get P and dS through shared memory as well: half of the warps sum dV, half dK. Q_i and dO_i arrive while those
before are multiplied (_mma_backward/keys.cu). Sums into dQ come in any order, and so it is not the same to the bit each
time.

dQ is summed in float32, in the order in which products leave it in registers: 16 rows and 8 columns are a fragment of
512 bytes, which a warp adds at once. A last launch puts it in order and rounds it (_mma_backward/round.cu).

Bytes, per query head, n_r rows in a block and J_i the tiles with a key that row block i sees; X_r is dQ in whole
fragments, 4 N_q d bytes where N_q is a multiple of 16 and d of 8:

    prepare     O, dO, lse read, L = log2(e) lse and D written, dQ = 0 written      2 X_q + 4 N_q, 8 N_q + X_r
    of keys     sum_i J_i (Q_i + dO_i + 8 n_r of L and D) read, sum_i J_i (X_r's rows of block i) read and written
                per K/V head: K_j, V_j read, dK_j, dV_j written                     2 X_k, 2 X_k
    round       dQ read in float32, written                                         X_r, X_q

where an atomic reads and writes, and of keys also ALiBi's slope, once for the rows and keys that a warp scores at once.
Where there are sinks, a last launch reads lse and D, and writes a number per head. Of K and V, tiles that no row sees a
key of are left out. Where the mask is no band, of keys reads 8 N_k per K/V head besides, which rows see each key. Under
masks of blocks and FlashMask, a launch lists the tiles of rows that each K_j meets, and J_i leaves out the others
(_tiles/visits.py): one thread of a block reads how many there are, and each of them once per query head. With unpadded
sequences, each warp of prepare and round reads where its own begins and ends in Q, and each warp of keys where it does
in K and, unless it ends before the block, in Q; X_r has whole fragments of each sequence. All other copies are runs of
consecutive elements, or rows a stride apart in a layout, with up to 16 bytes per lane (see _tiles/sectors.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from harness import Buffer, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import term_bytes
from variants._mma import unsupported_on_tensor_cores
from variants._mma_backward import (
    NUMERICS,
    RUNNING,
    MmaBackwardSchedule,
    end_kernel,
    end_schedules,
    end_start_bytes,
    keys_kernel,
    keys_launch,
    mma_schedules,
    prepare_bytes,
    prepare_launch,
    round_launch,
    running_shape,
)
from variants._mma_backward.parts import scored_parts
from variants._mma_backward.tile import BackwardMmaTile, numba_tile_of, tile_of, tiles_owning_keys
from variants._tiles.backward import Claims, mirrored_start_bytes, sum_of_launches
from variants._tiles.registration import Kernels, register_languages
from variants._tiles.sink_gradient import cuda_sink_kernels, numba_sink_kernels, sink_gradient_bytes, sink_launches
from variants._tiles.visits import FEATURES as LISTED_FEATURES
from variants._tiles.visits import Visits, cuda_listing, numba_listing


def cupy_kernels(problem: Problem, tile: BackwardMmaTile) -> tuple[Any, ...]:
    """CUDA kernels that compute D, then all gradients, round dQ, sum those of sinks, and list tiles."""
    prepare, rounding = (end_kernel(problem, name, adds_dQ=True) for name in ("prepare", "round"))
    of_keys, of_sinks = keys_kernel(problem, tile, adds_dQ=True), cuda_sink_kernels(problem)
    return prepare, of_keys, rounding, *of_sinks, *cuda_listing(problem, tile, mirrored=True)


def numba_kernels(problem: Problem, tile: BackwardMmaTile) -> tuple[Any, ...]:
    """Numba kernels that compute D, then all gradients, round dQ, sum those of sinks, and list tiles."""
    from variants._mma_backward.numba_ends import end_kernels
    from variants._mma_backward.numba_keys import keys_kernel as numba_keys_kernel

    places = features.rows_aligned_to(problem), features.has_varlen(problem)
    ends = end_kernels(problem.head_dim, problem.dtype, *places, adds_dQ=True)
    of_keys = numba_keys_kernel(problem, tile, adds_dQ=True)
    of_sinks, listing = numba_sink_kernels(problem), numba_listing(problem, tile, mirrored=True)
    return ends.bwd_mma_prepare, of_keys, ends.bwd_mma_round, *of_sinks, *listing


LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}
TAKES = (
    *features.SPAN_FEATURES,
    *LISTED_FEATURES,
    *features.SCORE_FEATURES,
    features.DROPOUT_FEATURE,
    features.LAYOUT_FEATURE,
    features.VARLEN_FEATURE,
)


TileOf = Callable[[Problem], BackwardMmaTile]


def plan(problem: Problem, kernels: Kernels, tile: BackwardMmaTile | None = None, tile_of: TileOf = tile_of) -> Plan:
    """Three launches, and one more with sinks; `tile` is `tile_of(problem)` unless given.

    Where a row sees no run of keys, tiles are listed before these.
    """
    p, tile = problem, tile or tile_of(problem)
    prepare, of_keys, rounding, *others = kernels(p, tile)
    of_sinks, listing = others[: p.sinks], others[p.sinks :]
    visits = Visits(MmaBackwardSchedule(p, tile), mirrored=True)
    return Plan(
        launches=(
            *visits.launches(listing),
            prepare_launch(p, prepare, adds_dQ=True),
            keys_launch(p, of_keys, tile, adds_dQ=True),
            round_launch(p, rounding),
            *sink_launches(p, of_sinks),
        ),
        buffers=(
            Buffer("L", p.lse_shape, "float32"),
            Buffer("D", p.lse_shape, "float32"),
            Buffer(RUNNING, running_shape(p), "float32"),
            *visits.buffers,
        ),
    )


def claim(problem: Problem, tile: BackwardMmaTile | None = None, tile_of: TileOf = tile_of) -> Traffic:
    """The bytes above, at the `sectors` level."""
    return sum_of_launches(claims(problem, tile or tile_of(problem)))


def claims(problem: Problem, tile: BackwardMmaTile | None = None) -> Claims:
    """The bytes of each launch."""
    tile = tile or tile_of(problem)
    own, ends = mma_schedules(problem, tile), end_schedules(problem)
    rows_read, rows_written = prepare_bytes(problem)
    running_bytes, starts = sum(int(s.running_bytes.sum()) for s in ends), end_start_bytes(problem)
    keys_read, keys_written = (sum(each) for each in zip(*(_of_keys(s, tile) for s in own)))
    return Claims(
        prepare=(rows_read, rows_written + running_bytes),
        of_keys=(keys_read + mirrored_start_bytes(own, tile.warps), keys_written),
        rounding=(running_bytes + starts, sum(int(s.dQ_bytes.sum()) for s in ends)),
        of_sinks=sink_gradient_bytes(problem),
    )


def _of_keys(schedule: MmaBackwardSchedule, tile: BackwardMmaTile) -> tuple[int, int]:
    """Bytes that blocks of keys read and write, without those of where sequences begin."""
    s = schedule
    listed_read, listed_written = s.list_traffic(tile.warps)
    added_bytes = int((s.visits * s.running_bytes).sum())
    keys_read = int((s.visits * (s.copied_bytes("Q", "dO") + 2 * s.stat_bytes)).sum()) + added_bytes
    keys_read += int(s.seen_K_and_V_bytes.sum() + s.key_limit_bytes.sum()) + term_bytes(s.problem, scored_parts(s))
    return keys_read + listed_read, added_bytes + s.dK_and_dV_bytes + listed_written


WITH_TILES = {
    "cupy": (plan, claim, tiles_owning_keys),
    "numba": tuple(partial(function, tile_of=numba_tile_of) for function in (plan, claim, tiles_owning_keys)),
}
"""The functions of each language, with its usual tile."""


def register(registry: Registry) -> None:
    """Add `bwd-mma-cupy` and `bwd-mma-numba`."""
    for language, kernels in LANGUAGES.items():
        register_languages(
            registry,
            "bwd-mma",
            "FlashAttention-2 backward on tensor cores: S and dP transposed, dQ summed by atomics",
            {language: kernels},
            *WITH_TILES[language],
            NUMERICS,
            supports=unsupported_on_tensor_cores,
            tile_class=BackwardMmaTile,
            operation="attention-backward",
            takes=TAKES,
            deterministic=False,
        )
