"""Flash-Decoding: few rows of queries and many keys, so the keys are split over thread blocks.

Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference", crfm.stanford.edu/2023/10/12/flashdecoding.
When a text is generated, one row of queries or a few meet all keys before them. FlashAttention has a block of threads
per tile of rows, which leaves most of the GPU without work. Here each block takes `split` keys of one key/value head,
and all query rows of the heads that share it, packed: K and V are read once per 16 rows of a group. It leaves O, not
divided by l yet, l and m in memory; a second kernel puts the splits together: M = max m_s, O = sum exp(m_s - M) O_s
over sum exp(m_s - M) l_s. How long a split is depends on nothing but the tile sizes, so a row's bits do not depend on
what else is in the batch.

Products are those of tensor cores, float16 or bfloat16 with sums in float32; P is rounded to 16 bits for the second.

Bytes, per key/value head with g query heads, R = g N_q rows, T_r = ceil(R / 16) and S splits, where nothing is masked:

    split     g S X_q + T_r 2 X_k read, S (R d + 2 R) 4 written
    combine   S (R d 4 + 2 R 32) read, g X_q + R 32 written

m, l and L are one number per row and request there, which costs a sector. Under a causal mask a tile of
rows meets the keys that any of its rows sees, and a row the splits with keys that it sees. Copies of Q, K and V are runs
of consecutive elements, as many per lane as there are in 16 bytes or in what divides a row of fewer (`copied_at_once`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.problem import Problem
from harness.variant import Buffer, Launch, Numerics, Plan, Registry, Traffic, Variant
from variants._mma import LINE_BYTES, copied_at_once
from variants._mma.rawkernel import raw_kernel
from variants._tiles import blocks, unsupported
from variants._tiles.schedule import FLOAT32_BYTES, keys_seen
from variants._tiles.sectors import SECTOR_BYTES, run_bytes

BR, BC = 16, 16
"""Rows of queries per block, keys per warp and step: the sizes of an mma."""
WARPS, COMBINE_WARPS = 4, 8
"""Per block, of the two kernels."""
RING_BYTES = 64 * 1024
"""Per block, for tiles of K and V on their way: with three blocks on a multiprocessor, several times what it takes to
hide the latency of memory (bandwidth times latency is about 40 KB for each of an H200's 132)."""
FEWEST_SLOTS, MOST_SLOTS = 3, 8
SPLITS = (512, 64, 128, 256, 1024, 2048, 4096)
"""Keys per split, the default first: long enough for what a block does once to be little, short enough for a few
sequences to fill a GPU."""

NUMERICS = Numerics(
    scores="float32", weights="problem", functions="__expf", sums="truncated", one_score=True, divides_last=True
)
"""A weight shrinks when its warp's maximum rises, then once for its block's and once for its row's: each time by a key
that it had not met, so at most once per key."""


def plan(problem: Problem, tile: Mapping[str, int] | None = None) -> Plan:
    """Two launches; `tile` is the first of `tiles(problem)` unless given."""
    p, split = problem, _split(problem, tile)
    slots = _slots(p.head_dim)
    sizes = {"D": p.head_dim, "SPLIT": split, "WARPS": WARPS, "COMBINE_WARPS": COMBINE_WARPS, "SLOTS": slots}
    sizes["BLOCKS_PER_SM"] = _blocks_per_sm(p.head_dim)
    options = (*(f"-D{name}={size}" for name, size in sizes.items()), f"-DSTORED_AS_{p.dtype}")
    split_kv, combine = (raw_kernel("split_kv", name, options) for name in ("split_kv", "split_kv_combine"))
    row_tiles, splits, rows = blocks(p.group * p.q_len, BR), blocks(p.kv_len, split), p.batch * p.heads * p.q_len
    lengths, causal = (np.int32(p.q_len), np.int32(p.kv_len)), np.int32(p.causal)
    partial = ("O_split", "l_split", "m_split")
    return Plan(
        launches=(
            Launch(
                split_kv,
                (row_tiles * splits, p.kv_heads_count, p.batch),
                (32 * WARPS,),
                ("Q", "K", "V", *partial, *lengths, np.int32(p.group), np.float32(p.tau), causal),
                shared_bytes=shared_bytes(p.head_dim),
            ),
            Launch(combine, (rows,), (32 * COMBINE_WARPS,), (*partial, "O", "lse", *lengths, causal)),
        ),
        buffers=(
            Buffer("O_split", (splits, *p.q_shape), "float32"),
            Buffer("l_split", (splits, *p.lse_shape), "float32"),
            Buffer("m_split", (splits, *p.lse_shape), "float32"),
            Buffer("lse", p.lse_shape, "float32"),
        ),
    )


def claim(problem: Problem, tile: Mapping[str, int] | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, split = problem, _split(problem, tile)
    d, w, group_rows = p.head_dim, p.itemsize_bytes, p.group * p.q_len
    rows = p.batch * p.heads * p.q_len
    lane = copied_at_once(d)
    kv_heads = np.arange(p.batch * p.kv_heads_count, dtype=np.int64)[:, None]

    # Tiles of rows, and the keys that at least one row of each sees: the last query of a head, where it is among them.
    first_rows = np.arange(0, group_rows, BR, dtype=np.int64)
    tile_rows = np.minimum(BR, group_rows - first_rows)
    last_queries = np.minimum(first_rows % p.q_len + tile_rows, p.q_len) - 1
    keys = keys_seen(p, last_queries)
    visits = blocks(keys, split)
    first_stats = kv_heads * group_rows + first_rows
    q_bytes = (visits * run_bytes(first_stats * d, tile_rows * d, w, lane)).sum()
    first_keys = kv_heads * p.kv_len * d  # of a head; whole tiles of keys are whole sectors long
    kv_bytes = (
        2 * (keys // BC * run_bytes(first_keys, BC * d, w, lane) + run_bytes(first_keys, keys % BC * d, w, lane)).sum()
    )

    partial_bytes = 0
    for index in range(int(visits.max(initial=0))):
        met, first = index < visits, index * rows + first_stats
        partial_bytes += (met * (run_bytes(first * d, tile_rows * d, 4) + 2 * run_bytes(first, tile_rows, 4))).sum()

    row = np.arange(rows, dtype=np.int64)
    row_splits = blocks(keys_seen(p, row % p.q_len), split)
    gathered_bytes = (row_splits * 2 * SECTOR_BYTES).sum()
    for index in range(int(row_splits.max(initial=0))):
        gathered_bytes += ((index < row_splits) * run_bytes((index * rows + row) * d, d, FLOAT32_BYTES)).sum()
    written_bytes = run_bytes(row * d, d, w).sum() + rows * SECTOR_BYTES
    return Traffic(int(q_bytes + kv_bytes + gathered_bytes), int(partial_bytes + written_bytes))


def shared_bytes(head_dim: int) -> int:
    """Dynamic shared memory of a block: the warps' rings of slots, Q, and l and m of the rows for each warp."""
    return (WARPS * _slots(head_dim) + 1) * _slot_bytes(head_dim) + 2 * WARPS * BR * FLOAT32_BYTES


def _slots(head_dim: int) -> int:
    return min(max(RING_BYTES // (WARPS * _slot_bytes(head_dim)), FEWEST_SLOTS), MOST_SLOTS)


def _blocks_per_sm(head_dim: int) -> int:
    return (
        4 if head_dim <= 64 else 3 if head_dim <= 128 else 2
    )  # as registers allow: O alone takes head_dim / 2 of them


def _slot_bytes(head_dim: int) -> int:
    return int(BC * LINE_BYTES * blocks(2 * head_dim, LINE_BYTES))


def _split(problem: Problem, tile: Mapping[str, int] | None) -> int:
    return (tile or tiles(problem)[0])["split"]


def tiles(problem: Problem) -> list[dict[str, int]]:
    """How many keys a split may have, the default first. Br is no choice: it says where tiles of rows end."""
    return [{"Br": BR, "split": split} for split in SPLITS]


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; the tensor cores that it uses multiply float16 and bfloat16"
    return unsupported(problem)


def register(registry: Registry) -> None:
    """Add `split-kv-cupy`."""
    registry.add(
        Variant(
            name="split-kv-cupy",
            algorithm="split-kv",
            backend="cupy",
            idea="Flash-Decoding: for few queries; keys split over blocks, grouped heads share them, tensor cores",
            plan=plan,
            supports=supports,
            claim=claim,
            tiles=tiles,
            numerics=NUMERICS,
        )
    )
