"""FlashAttention-3's backward pass: a producer warp, TMA and wgmma, dQ summed by bulk reductions.

The algorithm is that of `bwd-fa2` (Dao 2023, arXiv 2307.08691, algorithm 2), with the roles of FlashAttention-3 (Shah
et al. 2024, arXiv 2407.08608, appendix B). A block owns K_j and V_j, 64 keys for each of two warpgroups, which compute
S^T = K_j Q_i^T and dP^T = V_j dO_i^T: what these products leave in registers is P^T, and then dS^T, as the products
that sum dV_j and dK_j take them. dQ_i += dS K_j sums over the keys of both warpgroups, and gets dS through shared
memory, one tile of rows later. A warpgroup computes 64 rows of dQ_i: its half of a tile of 128 rows, every second tile
of 64, or, above 96 columns, some of the columns of every tile of 64. Each warp adds its part of 16 rows to dQ in memory
with one asynchronous copy.

dQ is summed in float32, in fragments, as in `bwd-mma`, whose launches before and after are these here, too
(_mma_backward/prepare.cu and round.cu). L and D are in whole tiles of rows: the copies want aligned addresses, and what
fills a tile makes P = 0.

Bytes, per query head, J_i the tiles of keys with one that row block i sees; X_r is dQ in whole fragments, n_s the rows
in whole tiles of 128:

    prepare     O, dO, lse read, L = log2(e) lse and D written, dQ = 0 written      2 X_q + 4 N_q, 8 n_s + X_r
    of keys     sum_i J_i (Q_i + dO_i + 8 B_r of L and D) read, sum_i J_i (X_r's rows of block i) read and written
                per K/V head: K_j, V_j read, dK_j, dV_j written                     2 X_k, 2 X_k
    round       dQ read in float32, written                                         X_r, X_q

where a reduction reads and writes, and zeros beyond Q, dO, K and V count as read (`zero_bytes`). Where the mask is no
band, of keys reads 8 N_k per K/V head besides, which rows see each key.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness import Buffer, Launch, Plan, PlanError, Problem, Registry, Traffic
from variants._features import SPAN_FEATURES, Feature, arguments, declarations, has_spans, mirrored_limits, stored
from variants._hopper import (
    ALIGNMENT_BYTES,
    ELEMENT_BYTES,
    LARGEST_BLOCK_BYTES,
    STATIC_BYTES,
    WARPGROUP_ROWS,
    box_columns,
    boxes_bytes,
    padded,
    rows_map,
    unsupported_on_hopper,
    zero_bytes,
)
from variants._mma import LOG2_E
from variants._mma_backward import (
    END_ROWS,
    NUMERICS,
    RUNNING,
    MmaBackwardSchedule,
    end_kernel,
    prepare_launch,
    round_launch,
    running_shape,
)
from variants._mma_backward.order import order, turn_bytes, turns
from variants._mma_backward.stats import stats, tiled_stats_bytes, tiled_stats_shape
from variants._tiles import Tile
from variants._tiles.backward import Claims, sum_of_launches
from variants._tiles.grids import grid_side_by_side
from variants._tiles.registration import Kernels, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, INT32_BYTES
from variants._tiles.sectors import Integers

FOLDER = "attention_backward/fa3"
CONSUMERS = 2
LARGEST_HEAD_DIM = 128
MULTIPROCESSORS = 132
"""Of an H100 or H200, each of which runs one block at a time."""
LARGEST_PART = 192
"""Elements of dK, dV, S and dP that a thread of a consumer may hold, so that nothing spills."""
LARGEST_DQ = 96
"""Columns of 64 rows of dQ that a consumer may hold beside dK and dV, for the same reason. Where there are more, each
has some of them."""


@dataclass(frozen=True)
class BackwardWarpgroupTile(Tile):
    """Sizes of tiles of a block that owns keys. Raises `PlanError` where no kernel here can have them."""

    stages: int
    """Tiles of Q, and of dO, on chip at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.Bc != WARPGROUP_ROWS * CONSUMERS:
            raise PlanError(f"{self}: Bc has to be {WARPGROUP_ROWS * CONSUMERS}, 64 keys for each of two warpgroups")
        if self.Br not in (WARPGROUP_ROWS, WARPGROUP_ROWS * CONSUMERS):
            raise PlanError(f"{self}: Br has to be 64 or 128, rows of dQ for one warpgroup or for both")
        if self.stages < 2:
            raise PlanError(f"{self}: stages has to be at least 2: one tile of rows is read while the next arrives")

    @property
    def threads(self) -> int:
        """Threads per block: one more warpgroup brings the tiles."""
        return 128 * (CONSUMERS + 1)

    def shared_bytes(self, head_dim: int) -> int:
        """K_j, V_j, `stages` of Q_i and dO_i with L_i and D_i, two tiles of dS, parts of dQ, and what aligns them."""
        width, rows = padded(head_dim), 2 * self.stages * self.Br
        sixteen_bits = (2 * self.Bc + rows) * width + 2 * self.Br * self.Bc
        dQ_parts = WARPGROUP_ROWS * CONSUMERS * dQ_columns(head_dim)[0]
        return sixteen_bits * ELEMENT_BYTES + (dQ_parts + rows) * FLOAT32_BYTES + ALIGNMENT_BYTES

    def fits(self, problem: Problem) -> bool:
        """Whether a block's shared memory and registers suffice: dK, dV, S and dP have D + Br of a thread's."""
        kept_bytes = 2 * INT32_BYTES * self.Bc if has_spans(problem) else 0  # which rows see each key
        shared_bytes = self.shared_bytes(problem.head_dim) + kept_bytes + STATIC_BYTES
        return padded(problem.head_dim) + self.Br <= LARGEST_PART and shared_bytes <= LARGEST_BLOCK_BYTES


def dQ_columns(head_dim: int) -> tuple[int, int]:
    """Columns of dQ_i that the first and the second consumer compute: all, or those of one box of K_j and the rest."""
    first = head_dim if head_dim <= LARGEST_DQ else box_columns(head_dim)
    return first, head_dim - first or first


def kept_depths(problem: Problem, tile: BackwardWarpgroupTile, in_order: bool) -> int:
    """How many times 16 elements of K a consumer keeps in registers: what fits beside dK, dV, S and dP without spills.

    Four registers each. In tiles of 128 rows, there are some to spare in any order only.
    """
    spare = {64: 208 if has_spans(problem) else 212, 128: 192 if in_order else 196}[tile.Br]
    return min(-(-problem.head_dim // 16), (spare - padded(problem.head_dim) - tile.Br) // 4)


def default_tile(problem: Problem) -> BackwardWarpgroupTile:
    """As many rows as registers have room for; at head_dim 64, 64 rows are slower on an H100."""
    return BackwardWarpgroupTile(Br=128 if problem.head_dim <= 64 else 64, Bc=128, stages=2)


def features_of(problem: Problem, in_order: bool) -> tuple[Feature, ...]:
    """The kernel's features; all but the last one are parameters."""
    return mirrored_limits(problem), order(in_order), stats(of_tiles=True)


def cupy_kernels(problem: Problem, tile: BackwardWarpgroupTile, in_order: bool = False) -> tuple[Any, ...]:
    """CUDA kernels that compute D, then all gradients, then round dQ. `in_order`: tiles of keys add to dQ in order."""
    prepare, rounding = (end_kernel(problem, name, True, True, in_order) for name in ("prepare", "round"))
    return prepare, keys_kernel(problem, tile, in_order), rounding


def numba_kernels(problem: Problem, tile: BackwardWarpgroupTile, in_order: bool = False) -> tuple[Any, ...]:
    """Numba kernels that compute D, then all gradients, then round dQ. `in_order`: tiles of keys add to dQ in order."""
    from variants._mma_backward.numba_ends import end_kernels
    from variants.attention_backward.fa3.numba_kernel import keys_kernel as numba_keys_kernel

    ends = end_kernels(
        problem.head_dim, problem.dtype, None, False, adds_dQ=True, stats_of_tiles=True, in_order=in_order
    )
    return ends.bwd_mma_prepare, numba_keys_kernel(problem, tile, in_order), ends.bwd_mma_round


def keys_kernel(problem: Problem, tile: BackwardWarpgroupTile, in_order: bool) -> Any:
    """The kernel of kernel.cu."""
    from variants._hopper.products import products, products_across, products_of_registers
    from variants._hopper.rawkernel import FOR_HOPPER, MMA
    from variants._tiles.rawkernel import raw_kernel

    width = padded(problem.head_dim)
    sizes = {"D": width, "HEAD_DIM": problem.head_dim, "BR": tile.Br, "BC": tile.Bc, "STAGES": tile.stages}
    sizes |= {"KEPT": kept_depths(problem, tile, in_order), "LARGEST_DQ": LARGEST_DQ}
    options = (*(f"-D{size}={number}" for size, number in sizes.items()), FOR_HOPPER)
    files, using = declarations(features_of(problem, in_order))
    hopper = tuple(("_hopper", f"{part}.cuh") for part in ("hopper", "slots", "registers"))
    text = products(tile.Br, problem.head_dim, problem.dtype, "=f")
    text += "".join(products_across(columns, problem.dtype) for columns in sorted(set(dQ_columns(problem.head_dim))))
    text += products_of_registers(tile.Br, problem.dtype)
    own = tuple((FOLDER, f"{part}.cuh") for part in ("chip", "products", "scoring", "not_finite"))
    common = (*stored(problem.dtype), *MMA, *hopper, *files)
    return raw_kernel(FOLDER, "bwd_fa3", options, common, using + text, parts=(("_mma_backward", "seen.cuh"), *own))


def plan(problem: Problem, kernels: Kernels, tile: BackwardWarpgroupTile | None = None, in_order: bool = False) -> Plan:
    """Three launches; `tile` is the problem's default unless given. `in_order` is that of the kernels."""
    p, tile = problem, tile or default_tile(problem)
    prepare, of_keys, rounding = kernels(p, tile)
    heads, kv_heads = p.batch * p.heads, p.batch * p.kv_heads_count
    maps = (
        rows_map("Q", p, heads, p.q_len, tile.Br),
        rows_map("K", p, kv_heads, p.kv_len, tile.Bc),
        rows_map("V", p, kv_heads, p.kv_len, tile.Bc),
        rows_map("dO", p, heads, p.q_len, tile.Br),
        rows_map("dK", p, kv_heads, p.kv_len, WARPGROUP_ROWS),
        rows_map("dV", p, kv_heads, p.kv_len, WARPGROUP_ROWS),
    )
    sizes = (np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.group), np.float32(p.tau), np.float32(p.tau * LOG2_E))
    *parameters, _ = features_of(p, in_order)
    launch = Launch(
        of_keys,
        keys_grid(p, tile, in_order),
        (tile.threads,),
        (*maps, "L", "D", RUNNING, *sizes, *arguments(tuple(parameters))),
        shared_bytes=tile.shared_bytes(p.head_dim),
    )
    return Plan(
        launches=(prepare_launch(p, prepare, True, in_order), launch, round_launch(p, rounding)),
        buffers=(
            Buffer("L", tiled_stats_shape(p), "float32"),
            Buffer("D", tiled_stats_shape(p), "float32"),
            Buffer(RUNNING, running_shape(p), "float32"),
            *([turns(p)] if in_order else []),
        ),
    )


def keys_grid(problem: Problem, tile: BackwardWarpgroupTile, in_order: bool) -> tuple[int, int, int]:
    """Heads side by side: blocks start with the first keys of several heads, which most rows see where causal.

    In order, each tile of keys waits for the one before, so several heads start together with any mask.
    """
    p, visits = problem, MmaBackwardSchedule(problem, tile).key_visits
    tile_bytes = p.group * tile.Br * p.head_dim * (2 * p.itemsize_bytes + FLOAT32_BYTES)
    heads = p.kv_heads_count
    return grid_side_by_side(p, heads, visits, tile_bytes, has_spans(p), running=MULTIPROCESSORS, in_order=in_order)


class BoxSchedule(MmaBackwardSchedule):
    """The bytes of tiles that are copied as boxes."""

    @property
    def Q_box_bytes(self) -> Integers:
        """(S, T_r): bytes of bringing Q_i, or dO_i, of every query head on chip once, with zeros after the last row."""
        p = self.problem
        first = self._heads(p.heads) * p.q_len + self.first_rows
        zeros = zero_bytes(self._rows, self.tile.Br, p.head_dim)
        return np.sum(boxes_bytes(first, self._rows, p.head_dim) + zeros, axis=1)

    @property
    def K_box_bytes(self) -> Integers:
        """(S, T_c): bytes of bringing K_j, or V_j, on chip once for each of their heads; 0 where no row sees a key."""
        p = self.problem
        zeros = zero_bytes(self._keys, self.tile.Bc, p.head_dim)
        return (self.key_visits > 0) * np.sum(self._stored_keys + zeros, axis=1)

    @property
    def dK_box_bytes(self) -> Integers:
        """(S, T_c): bytes of storing dK_j, or dV_j."""
        return np.sum(self._stored_keys, axis=1)

    @property
    def _stored_keys(self) -> Integers:
        p = self.problem
        first = self._heads(p.kv_heads_count) * p.kv_len + self.first_keys
        return boxes_bytes(first, self._keys, p.head_dim)


def claim(problem: Problem, tile: BackwardWarpgroupTile | None = None, in_order: bool = False) -> Traffic:
    """The bytes above, at the `sectors` level."""
    return sum_of_launches(claims(problem, tile, in_order))


def claims(problem: Problem, tile: BackwardWarpgroupTile | None = None, in_order: bool = False) -> Claims:
    """The bytes of each launch."""
    p, tile = problem, tile or default_tile(problem)
    s, ends = BoxSchedule(p, tile), MmaBackwardSchedule(p, Tile(END_ROWS, END_ROWS))
    stat_bytes = p.batch * p.heads * tile.Br * FLOAT32_BYTES
    running_bytes, added_bytes = int(ends.running_bytes.sum()), int((s.visits * s.running_bytes).sum())
    keys_read = int((s.visits * 2 * (s.Q_box_bytes + stat_bytes // len(s.visits))).sum() + 2 * s.K_box_bytes.sum())
    keys_read += added_bytes + int(s.key_limit_bytes.sum())
    turns_begun, turns_awaited, turns_passed = turn_bytes(s) if in_order else (0, 0, 0)
    return Claims(
        prepare=(
            int((ends.copied_bytes("O", "dO") + ends.stat_bytes).sum()),
            2 * tiled_stats_bytes(p, END_ROWS) + running_bytes + turns_begun,
        ),
        of_keys=(keys_read + turns_awaited, added_bytes + int(2 * s.dK_box_bytes.sum()) + turns_passed),
        rounding=(running_bytes, int(ends.dQ_bytes.sum())),
        of_sinks=(0, 0),
    )


def tiles(problem: Problem) -> list[dict[str, int]]:
    """The default first, then what else fits."""
    default = default_tile(problem)
    sizes = (BackwardWarpgroupTile(Br, 128, stages) for Br in (64, 128) for stages in (2, 3))
    return [asdict(tile) for tile in (default, *(t for t in sizes if t != default and t.fits(problem)))]


def unsupported(problem: Problem) -> str | None:
    """Why the variant cannot take the problem, or None."""
    if problem.head_dim > LARGEST_HEAD_DIM:
        return (
            f"head_dim is {problem.head_dim}; dK and dV of 64 keys fit a warpgroup's registers up to {LARGEST_HEAD_DIM}"
        )
    return unsupported_on_hopper(problem)


def register(registry: Registry) -> None:
    """Add `bwd-fa3-cupy` and `bwd-fa3-numba`."""
    register_languages(
        registry,
        "bwd-fa3",
        "FlashAttention-3 backward: a producer warp, TMA and wgmma; dQ summed by bulk reductions",
        {"cupy": cupy_kernels, "numba": numba_kernels},
        plan,
        claim,
        tiles,
        NUMERICS,
        supports=unsupported,
        tile_class=BackwardWarpgroupTile,
        operation="attention-backward",
        takes=SPAN_FEATURES,
        deterministic=False,
    )
