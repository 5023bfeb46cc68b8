"""Flash-Decoding: a few rows of queries, many keys, so it is the keys that are split over thread blocks.

Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference". Where text is generated, one query or a
few meet all keys before them. FlashAttention has a thread block per tile of rows, which leaves most of a GPU without
work. Here a block takes `split` keys of one key/value head and 16 rows of the query heads that share it, packed: K and
V are read once per 16 rows of a group. It leaves O, not yet divided by l, and l and m in memory, and a second kernel
puts the splits together: m = max m_s, O = sum exp(m_s - m) O_s over sum exp(m_s - m) l_s. Where splits begin depends on
the tile sizes alone, so the bits of a row do not depend on what else is in the batch.

Products are those of tensor cores: float16 or bfloat16, summed in float32. P is rounded to 16 bits for the second.

Bytes, per key/value head with g query heads, R = g N_q rows, T_r = ceil(R / 16) and S splits, where nothing is masked:

    split_kv    S g X_q + T_r 2 X_k read, 4 S R (d + 2) written
    combine     S R (4 d + 2 * 32) read, g X_q + 32 R written

The second kernel asks for one l_s, m_s or L at a time, and each costs a sector. Under a mask a tile of rows meets the
keys from the first to the last that any of its rows sees; where it has the last queries of one head and the first of
the next, and these see nothing in common, the tiles of 16 keys in between are left out. A row meets the splits of which
it sees a key. All copies are runs of consecutive elements (see _tiles/sectors.py), those of Q, K and V with up to 16
bytes per lane.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic, Variant
from variants._mma import LINE_BYTES, LINE_ELEMENTS, elements_per_copy
from variants._mma.rawkernel import COMMON
from variants._tiles import blocks, unsupported
from variants._tiles.band import FEATURES, band
from variants._tiles.rawkernel import raw_kernel
from variants._tiles.schedule import FLOAT32_BYTES
from variants._tiles.sectors import SECTOR_BYTES, Integers, run_bytes

BR, BC = 16, 16
"""Rows of queries per block, and keys that a warp takes at once: as many as one mma has."""
WARPS, COMBINE_WARPS = 4, 8
"""Per block, of the two kernels."""
THREADS_PER_WARP = 32
Run = tuple[Integers, Integers]
"""Keys from the first to before the second."""
RING_BYTES = 64 * 1024
"""Per block, for tiles of K and V on their way. To keep the memory of an H200 busy takes its 4.8 TB/s times about a
microsecond (Little's law), 36 KB for each of 132 multiprocessors: one block comes near, two or three have plenty."""
FEWEST_SLOTS, MOST_SLOTS = 3, 8
SPLITS = (512, 64, 128, 256, 1024, 2048)
"""Keys per split, the default first: long enough for what a block does once to be little, short enough for a few
sequences to fill a GPU."""

NUMERICS = Numerics(
    scores="float32", weights="problem", functions="__expf", sums="truncated", one_score=True, divides_last=True
)
"""A weight shrinks when its warp's maximum rises, when the warps of a block are put together, and twice more with the
splits: each time by the distance to a larger score of another key, so at most once per key, as budgets assume."""


def plan(problem: Problem, tile: Mapping[str, int] | None = None) -> Plan:
    """Two launches; `tile` is the first of `tiles(problem)` unless given."""
    p, split = problem, _split(problem, tile)
    sizes = {"D": p.head_dim, "SPLIT": split, "WARPS": WARPS, "COMBINE_WARPS": COMBINE_WARPS}
    sizes |= {"SLOTS": slots(p.head_dim), "BLOCKS_PER_SM": blocks_per_sm(p.head_dim)}
    options = (*(f"-D{name}={size}" for name, size in sizes.items()), f"-DSTORED_AS_{p.dtype}")
    split_kv, combine = (
        raw_kernel("attention/split_kv", name, options, COMMON) for name in ("split_kv", "split_kv_combine")
    )

    row_tiles, splits = blocks(p.group * p.q_len, BR), blocks(p.kv_len, split)
    grid = (row_tiles * splits, p.kv_heads_count, p.batch)
    partial = ("O_split", "l_split", "m_split")
    lengths, group, tau = (np.int32(p.q_len), np.int32(p.kv_len)), np.int32(p.group), np.float32(p.tau)
    args = ("Q", "K", "V", *partial, *lengths, group, tau, *band(p))
    combine_args = (*partial, "O", "lse", *lengths, *band(p))
    return Plan(
        launches=(
            Launch(split_kv, grid, (THREADS_PER_WARP * WARPS,), args, shared_bytes(p.head_dim)),
            Launch(combine, (_rows(p),), (THREADS_PER_WARP * COMBINE_WARPS,), combine_args),
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
    d, at_once = p.head_dim, elements_per_copy(p.head_dim)

    # (key/value heads, tiles of rows): each tile's first row, and the two runs of keys that some row of it sees.
    group_rows = p.group * p.q_len
    first_rows = np.arange(0, group_rows, BR, dtype=np.int64)
    tile_rows = np.minimum(BR, group_rows - first_rows)
    low, high = _keys_seen(p, first_rows % p.q_len, tile_rows)
    heads = np.arange(p.batch * p.kv_heads_count, dtype=np.int64)[:, None]
    first = heads * group_rows + first_rows

    def split_kv_bytes(index: int) -> tuple[Integers, Integers]:
        """Q read and O, l and m written by the blocks of one split."""
        there = _meets(low, index, split) | _meets(high, index, split)
        stat = index * _rows(p) + first
        Q = run_bytes(first * d, there * tile_rows * d, p.itemsize_bytes, at_once)
        O, l = (run_bytes(stat * n, there * tile_rows * n, FLOAT32_BYTES) for n in (d, 1))
        return Q.sum(), (O + 2 * l).sum()

    # Splits are whole tiles of 16 keys, and each of those is copied by itself.
    kv_bytes = sum(_key_bytes(p, heads * p.kv_len, *run).sum() for run in (low, high))
    splits = range(blocks(p.kv_len, split))
    split_kv = np.sum([split_kv_bytes(index) for index in splits], axis=0, dtype=np.int64)

    rows = np.arange(_rows(p), dtype=np.int64)
    seen = p.span(rows % p.q_len)

    def combine_bytes(index: int) -> Integers:
        """O, l and m of one split, read for all rows."""
        there = _meets(seen, index, split)
        return (run_bytes((index * _rows(p) + rows) * d, there * d, FLOAT32_BYTES) + there * 2 * SECTOR_BYTES).sum()

    combine = np.sum([combine_bytes(index) for index in splits], dtype=np.int64)
    output_bytes = run_bytes(rows * d, d, p.itemsize_bytes).sum() + _rows(p) * SECTOR_BYTES
    read_bytes = 2 * kv_bytes + split_kv[0] + combine
    return Traffic(int(read_bytes), int(split_kv[1] + output_bytes))


def tiles(problem: Problem) -> list[dict[str, int]]:
    """How many keys a split may have, the default first. Br is no choice: it says where tiles of rows end."""
    return [{"Br": BR, "split": split} for split in SPLITS]


def slots(head_dim: int) -> int:
    """Tiles of keys or values that a warp has room for."""
    return min(max(RING_BYTES // (WARPS * _slot_bytes(head_dim)), FEWEST_SLOTS), MOST_SLOTS)


def shared_bytes(head_dim: int) -> int:
    """Dynamic shared memory of a block: the warps' slots, Q, and l and m of its rows from each warp."""
    return (WARPS * slots(head_dim) + 1) * _slot_bytes(head_dim) + 2 * WARPS * BR * FLOAT32_BYTES


def blocks_per_sm(head_dim: int) -> int:
    """Blocks that share a multiprocessor, as slots and registers allow; a thread has head_dim / 2 for O alone."""
    return 3 if head_dim <= 128 else 2


def _slot_bytes(head_dim: int) -> int:
    return int(BC * LINE_BYTES * blocks(head_dim, LINE_ELEMENTS))


def _keys_seen(problem: Problem, first_queries: Integers, tile_rows: Integers) -> tuple[Run, Run]:
    """Two runs of keys that tiles of so many rows meet, of which the first is that query of its head: low and high.

    Where the rows of two heads meet in a tile, the first queries of one see the low run, the last of the other the high
    one. Each ends with whole tiles of keys where there are keys in between; else the low one is all.
    """
    p, last = problem, first_queries + tile_rows - 1
    meet = last >= p.q_len
    low_first, _ = p.span(np.where(meet, 0, first_queries))
    _, low_end = p.span(np.where(meet, np.minimum(last - p.q_len, p.q_len - 1), last))
    high_first, _ = p.span(first_queries)
    _, high_end = p.span(np.minimum(last, p.q_len - 1))
    low_tiles_end, first_high_tile = blocks(low_end, BC) * BC, high_first // BC * BC
    apart = (low_end > 0) & (low_tiles_end < first_high_tile)
    low = np.where(low_end > 0, low_first, high_first), np.where(apart, low_tiles_end, high_end)
    high = first_high_tile, np.where(apart, high_end, 0)
    return low, high


def _meets(run: Run, index: int, split: int) -> npt.NDArray[np.bool_]:
    """Whether a key of the run is in this split."""
    first, end = run
    return np.maximum(first, index * split) < np.minimum(end, (index + 1) * split)


def _key_bytes(problem: Problem, head_key: Integers, first: Integers, end: Integers) -> Integers:
    """Bytes of K, or V, from key `first` of a head to before `end`; `head_key` counts the keys of the heads before.

    A lane has the same place in its tile whether it copies or not, so what lies before `first` in a tile shifts none.
    """
    d, at_once = problem.head_dim, elements_per_copy(problem.head_dim)
    request = THREADS_PER_WARP * at_once
    end = np.maximum(first, end)

    def run(first_element: Integers, elements: Integers) -> Integers:
        return run_bytes(first_element, elements, problem.itemsize_bytes, at_once)

    # The rest of a tile that does not begin with `first`: up to where a request ends, and on from there. Then whole
    # tiles, which are whole sectors long, and what is left.
    rest_end = np.minimum(end, blocks(first, BC) * BC)
    rest, before = (rest_end - first) * d, first % BC * d
    cut = np.minimum(-before % request, rest)
    whole_end = np.maximum(rest_end, end // BC * BC)
    first_element = (head_key + first) * d
    return (
        run(first_element, cut)
        + run(first_element + cut, rest - cut)
        + (whole_end - rest_end) // BC * run(head_key * d, np.int64(BC * d))
        + run((head_key + whole_end) * d, (end - whole_end) * d)
    )


def _split(problem: Problem, tile: Mapping[str, int] | None) -> int:
    return (tile or tiles(problem)[0])["split"]


def _rows(problem: Problem) -> int:
    return problem.batch * problem.heads * problem.q_len


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    return unsupported(problem)


def register(registry: Registry) -> None:
    """Add `split-kv-cupy`."""
    registry.add(
        Variant(
            name="split-kv-cupy",
            algorithm="split-kv",
            backend="cupy",
            idea="Flash-Decoding: keys split over thread blocks, grouped heads share them, tensor cores",
            plan=plan,
            supports=supports,
            claim=claim,
            tiles=tiles,
            takes=FEATURES,
            numerics=NUMERICS,
        )
    )
