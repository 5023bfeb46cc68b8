"""Cascade attention over pages: sequences attend to the keys that they share together, each to its own keys on its own.

Ye et al. 2024, "Cascade inference: Memory bandwidth efficient shared prefix batch decoding" (FlashInfer); Juravsky et
al. 2024, "Hydragen", arXiv 2402.05099; Zhu et al. 2024, "RelayAttention", arXiv 2402.14808. README.md has the algorithm
and its bytes.

The shared keys follow from the problem: `prefix`, in whole pages, as far as two sequences have them. Without any there
is no launch for them, and the rest is Flash-Decoding over pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, PagedProblem, Plan, Registry, Traffic, Variant
from variants import _paged
from variants._mma import RESERVED_BYTES, SHARED_BYTES_PER_SM, tile_copy
from variants._mma.splits import (
    BC,
    BR,
    SPLITS,
    THREADS_PER_WARP,
    WARPS,
    blocks_per_sm,
    combine_block,
    combined_stat_bytes,
    has_few,
    shared_bytes,
    slot_bytes,
    slots,
    split_sizes,
    splits_kernel,
)
from variants._paged import (
    FLOAT32_BYTES,
    INT32_BYTES,
    SPLIT_PAGES,
    PackedRows,
    key_bytes,
    limits,
    pool,
    row_tiles,
    window,
)
from variants._tiles import blocks
from variants._tiles.sectors import SECTOR_BYTES, Integers, run_bytes

NUMERICS = Numerics(
    scores="float32", weights="problem", functions="__expf", sums="truncated", one_score=True, divides_last=True
)
"""As attention's split-kv: see there."""
ROWS = WARPS * BR
"""Rows of a block of the prefix."""
MOST_BLOCKS = 2**31 - 1
"""Maximum thread blocks of a grid along x."""
PARTS = ("O_split", "l_split", "m_split")


@dataclass(frozen=True)
class Parts:
    """How the keys of sequences are divided: into splits of the prefix, and of what each has besides."""

    problem: PagedProblem
    split: int

    @property
    def prefix(self) -> int:
        """Keys in pages that two sequences share, and perhaps more sequences."""
        *_, second, _ = (0, *sorted(self.problem.shared_pages))
        return second * self.problem.page_size

    @property
    def owner(self) -> int:
        """A sequence whose first pages are those of the prefix."""
        return int(np.argmax(self.problem.shared_pages))

    @property
    def shared(self) -> Integers:
        """(sequences,): the keys of each that are in the prefix."""
        lengths, page = np.array(self.problem.lengths, np.int64), self.problem.page_size
        return np.minimum(self.prefix, lengths // page * page)

    @property
    def prefix_splits(self) -> int:
        """Splits of the prefix."""
        return int(blocks(self.prefix, self.split))

    @property
    def suffix_splits(self) -> Integers:
        """(sequences,): splits of the keys that each has besides."""
        counts: Integers = blocks(np.array(self.problem.lengths, np.int64) - self.shared, self.split)
        return counts

    @property
    def most(self) -> int:
        """Parts of a row that there is room for."""
        return int((blocks(self.shared, self.split) + self.suffix_splits).max())

    @property
    def prefix_tiles(self) -> int:
        """Tiles of rows of a key/value head, counted through all sequences."""
        return int(blocks(self.problem.sequences * self.problem.group * self.problem.q_len, ROWS))

    @property
    def grids(self) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """Blocks for the prefix and for what sequences have besides; some have no keys."""
        p = self.problem
        of_suffix = row_tiles(p, BR) * p.kv_heads * int(self.suffix_splits.max())
        return (self.prefix_tiles * self.prefix_splits, p.kv_heads), (of_suffix, 1, p.sequences)


def cupy_kernels(problem: PagedProblem, split: int, most: int) -> tuple[Any, Any, Any]:
    """The CUDA kernels."""
    p, chosen = problem, (limits(problem), window(problem), pool(problem))
    sizes = {**split_sizes(p.head_dim, split), "PAGE": p.page_size}
    more = {"prefix": {"BLOCKS_PER_SM": prefix_blocks_per_sm(p)}, "suffix": {}, "combine": has_few(most)}
    prefix, suffix, combine = (
        splits_kernel(
            "paged_attention/cascade", f"cascade_{part}", p.dtype, sizes | has_few(0) | own, chosen, SPLIT_PAGES
        )
        for part, own in more.items()
    )
    return prefix, suffix, combine


def numba_kernels(problem: PagedProblem, split: int, most: int) -> tuple[Any, Any, Any]:
    """The Numba kernels."""
    from variants.paged_attention.cascade.numba_kernel import cascade_kernels

    p, sharing = problem, (prefix_blocks_per_sm(problem), blocks_per_sm(problem.head_dim))
    return cascade_kernels(p.head_dim, split, slots(p.head_dim), p.dtype, sharing, p.page_size)


KERNELS = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(
    problem: PagedProblem,
    tile: Mapping[str, int] | None = None,
    kernels: Callable[[PagedProblem, int, int], tuple[Any, Any, Any]] = cupy_kernels,
) -> Plan:
    """Three launches, those without keys left out; `tile`: the first of `tiles(problem)` if None."""
    p, parts, band = problem, Parts(problem, _split(problem, tile)), limits(problem).argument
    prefix, suffix, combine = kernels(p, parts.split, parts.most)
    of_prefix, of_suffix = parts.grids
    args = ("Q", "K", "V", "table", "lengths", *PARTS, np.int32(parts.prefix))
    numbers = (parts.most, p.q_len, p.table_shape[1], p.kv_heads, p.group)
    last = (*map(np.int32, numbers), np.float32(p.tau), band)
    of_sequences = (np.int32(parts.owner), np.int32(p.sequences))
    threads, shared = (THREADS_PER_WARP * WARPS,), shared_bytes(p.head_dim)
    launches = []
    if parts.prefix:
        launches.append(Launch(prefix, of_prefix, threads, (*args, *of_sequences, *last), prefix_shared_bytes(p)))
    if parts.suffix_splits.any():
        launches.append(Launch(suffix, of_suffix, threads, (*args, *last), shared))
    sequence_rows = p.heads * p.q_len
    rows = p.sequences * sequence_rows
    combine_threads, combine_rows = combine_block(parts.most, rows)
    combine_numbers = map(np.int32, (parts.prefix, parts.most, p.q_len, sequence_rows))
    combine_args = (*PARTS, "lengths", "O", "lse", *combine_numbers, band)
    launches.append(Launch(combine, (rows // combine_rows,), (combine_threads, combine_rows), combine_args))
    kept = p.sequences * max(1, parts.most)
    return Plan(
        launches=tuple(launches),
        buffers=(
            Buffer("O_split", (kept, *p.q_shape[1:]), "float32"),
            Buffer("l_split", (kept, *p.lse_shape[1:]), "float32"),
            Buffer("m_split", (kept, *p.lse_shape[1:]), "float32"),
            Buffer("lse", p.lse_shape, "float32"),
        ),
    )


def prefix_shared_bytes(problem: PagedProblem) -> int:
    """Dynamic shared memory of a block of the prefix: the warps' slots, and their rows of Q."""
    return WARPS * (slots(problem.head_dim) + 1) * slot_bytes(problem.head_dim)


def prefix_blocks_per_sm(problem: PagedProblem) -> int:
    """Blocks of the prefix that share a multiprocessor: fewer than of suffixes where shared memory is short."""
    fitting = SHARED_BYTES_PER_SM // (prefix_shared_bytes(problem) + RESERVED_BYTES)
    return min(blocks_per_sm(problem.head_dim), fitting)


def claim(problem: PagedProblem, tile: Mapping[str, int] | None = None) -> Traffic:
    """The bytes of README.md, at the `sectors` level."""
    parts = Parts(problem, _split(problem, tile))
    moved = (_prefix_bytes(parts), _suffix_bytes(parts), _combine_bytes(parts))
    read, written = map(sum, zip(*moved))
    return Traffic(int(read), int(written))


def _prefix_bytes(parts: Parts) -> tuple[int, int]:
    """Bytes that blocks of the prefix read and write."""
    p, packed = parts.problem, PackedRows(parts.problem, BR)
    d, copy, group_rows = p.head_dim, tile_copy(p.head_dim), packed.group_rows
    # Rows of a key/value head through all sequences, (rows,), and where they begin in Q, (kv_heads, rows).
    sequence, own = np.divmod(np.arange(p.sequences * group_rows, dtype=np.int64), group_rows)
    ends = np.minimum(packed.end_seen(np.arange(group_rows) % p.q_len), parts.shared[:, None]).reshape(-1)
    heads = np.arange(p.kv_heads, dtype=np.int64)[:, None] * group_rows
    Q = copy.bytes((sequence * p.heads * p.q_len + heads + own) * d, d)
    lengths = p.kv_heads * SECTOR_BYTES * _changes(sequence * INT32_BYTES // SECTOR_BYTES, THREADS_PER_WARP).sum()
    read, written = 0, 0
    for number in range(parts.prefix_splits):
        first = number * parts.split
        keys, seen = min(parts.split, parts.prefix - first), ends > first
        of_blocks = np.add.reduceat(seen, np.arange(0, len(seen), ROWS)) > 0
        first_page = first // p.page_size
        pages = (first + keys - 1) // p.page_size - first_page + 1
        entries = run_bytes(parts.owner * p.table_shape[1] + first_page, pages, INT32_BYTES)
        of_block = 2 * key_bytes(p, np.array(keys), BC, copy) + entries
        read += lengths + p.kv_heads * of_blocks.sum() * of_block + Q[:, seen].sum()
        stat = (sequence * parts.most + number) * p.heads * p.q_len + heads + own
        written += run_bytes(stat[:, seen] * d, d, FLOAT32_BYTES).sum()
        for of_head in stat * FLOAT32_BYTES // SECTOR_BYTES:
            written += 2 * SECTOR_BYTES * _changes(np.where(seen, of_head, -1), BR // 2).sum()
    return int(read), int(written)


def _changes(sectors: Integers, per_request: int) -> Integers:
    """1 where a lane asks for a sector that none before it does, of requests of so many lanes; -1: of none.

    Sectors increase, among those of a request that are asked for.
    """
    padded = np.full(blocks(len(sectors), per_request) * per_request, -1)
    padded[: len(sectors)] = sectors
    of_requests = np.maximum.accumulate(padded.reshape(-1, per_request), axis=1)
    changes: Integers = np.diff(of_requests, axis=1, prepend=-1) > 0
    return changes


def _suffix_bytes(parts: Parts) -> tuple[int, int]:
    """Bytes that blocks of what sequences have besides read and write."""
    p, packed = parts.problem, PackedRows(parts.problem, BR)
    d, copy = p.head_dim, tile_copy(p.head_dim)
    # (sequences, splits, tiles of rows): keys that the block has, and whether it has any; of each key/value head.
    number = np.arange(int(parts.suffix_splits.max()), dtype=np.int64)
    first_key = parts.shared[:, None] + number * parts.split
    keys = np.clip(packed.ends[:, None] - first_key[..., None], 0, parts.split)
    there = keys > 0
    first_page = first_key // p.page_size
    entry = np.arange(p.sequences, dtype=np.int64)[:, None] * p.table_shape[1] + first_page
    pages = np.where(there, (first_key[..., None] + keys - 1) // p.page_size - first_page[..., None] + 1, 0)
    per_head = 2 * key_bytes(p, keys, BC, copy) + run_bytes(entry[..., None], pages, INT32_BYTES) + WARPS * SECTOR_BYTES
    Q = packed.copied_bytes(copy)[:, None] * there[:, :, None]

    before = blocks(parts.shared, parts.split)[:, None] + number
    part = np.arange(p.sequences, dtype=np.int64)[:, None] * parts.most + before
    heads = np.arange(p.kv_heads, dtype=np.int64)[:, None] * packed.group_rows
    stat = (part * p.heads * p.q_len)[..., None, None] + heads + packed.first_rows
    rows = packed.rows * there[:, :, None]
    written = run_bytes(stat * d, rows * d, FLOAT32_BYTES) + 2 * run_bytes(stat, rows, FLOAT32_BYTES)
    return int(p.kv_heads * per_head.sum() + Q.sum()), int(written.sum())


def _combine_bytes(parts: Parts) -> tuple[int, int]:
    """Bytes of putting parts together."""
    p, d, sequence_rows = parts.problem, parts.problem.head_dim, parts.problem.heads * parts.problem.q_len
    row = np.arange(sequence_rows, dtype=np.int64)
    ends, shared = PackedRows(p, BR).end_seen(row % p.q_len), parts.shared[:, None]
    counts = blocks(np.minimum(ends, shared), parts.split) + blocks(np.maximum(ends - shared, 0), parts.split)
    threads, _ = combine_block(parts.most, p.sequences * sequence_rows)
    read = p.sequences * sequence_rows * (threads // THREADS_PER_WARP) * SECTOR_BYTES  # the length
    for number in range(parts.most):
        part = np.arange(p.sequences, dtype=np.int64)[:, None] * parts.most + number
        seen, stat = counts > number, part * sequence_rows + row
        stats = combined_stat_bytes(np.array(number), stat, sequence_rows)
        read += (run_bytes(stat * d, seen * d, FLOAT32_BYTES) + seen * stats).sum()
    all_rows = np.arange(p.sequences * sequence_rows, dtype=np.int64)
    return int(read), int(run_bytes(all_rows * d, d, p.itemsize_bytes).sum() + len(all_rows) * SECTOR_BYTES)


def tiles(problem: PagedProblem) -> list[dict[str, int]]:
    """How many keys a split may have, the default first. Br is no choice: it says where tiles of rows end."""
    return [{"Br": BR, "split": split} for split in SPLITS]


def _split(problem: PagedProblem, tile: Mapping[str, int] | None) -> int:
    return (tile or tiles(problem)[0])["split"]


def supports(problem: PagedProblem) -> str | None:
    """Why it cannot take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    parts = Parts(problem, min(SPLITS))
    rows = problem.sequences * problem.heads * problem.q_len
    if (most := max(rows, *(grid[0] for grid in parts.grids))) > MOST_BLOCKS:
        return f"it takes {most:,} blocks; a grid has at most 2^31 - 1 along x"
    return _paged.unsupported(problem)


def register(registry: Registry) -> None:
    """Add `cascade-cupy` and `cascade-numba`."""
    for language, kernels in KERNELS.items():
        registry.add(
            Variant(
                name=f"cascade-{language}",
                operation="paged-attention",
                algorithm="cascade",
                backend=language,
                idea="cascade attention: rows of all sequences share the keys of a common prefix, tensor cores",
                plan=partial(plan, kernels=kernels),
                supports=supports,
                claim=claim,
                tiles=tiles,
                takes=("causal",),
                invariant_to=(),  # what sequences share depends on the rest of the batch
                numerics=NUMERICS,
            )
        )
