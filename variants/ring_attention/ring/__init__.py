"""Ring attention: plan and claim. ../README.md explains the algorithm and derives its bytes.

The kernels of a block are those of FlashAttention-2, unchanged: each block is a problem of attention. What a plan of
several devices adds is data: buffers and launches on devices, and copies between them.

What the claim adds to the formula there: the blocks that some row of a device sees, in place of all blocks, with the
bytes of FlashAttention-2 for each; and what a row costs when blocks are put together, by a warp for each, which reads O
of a block, or of the sum, only if the row sees a key of it. A device that sees one block only has nothing to put
together.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import Buffer, Chunk, Launch, PeerCopy, Plan, Problem, Registry, RingProblem, Traffic
from variants._features import stored
from variants._ring import (
    FLOAT32_BYTES,
    Block,
    as_links,
    blocks_of,
    copies_to_next,
    in_slot,
    links_of_keys,
    marked,
    place_of,
    register_ring,
    renamed,
    slots,
)
from variants._tiles import blocks
from variants._tiles.sectors import LANES, SECTOR_BYTES, run_bytes
from variants.attention import fa2

WARPS = 4
"""Rows that a thread block of `ring_merge` puts together."""


def cupy_merge(problem: RingProblem) -> Any:
    """The CUDA kernel that puts blocks together."""
    from variants._tiles.rawkernel import raw_kernel

    return raw_kernel("ring_attention/ring", "ring_merge", (f"-DD={problem.head_dim}",), stored(problem.dtype))


def numba_merge(problem: RingProblem) -> Any:
    """The Numba kernel that puts blocks together."""
    from variants.ring_attention.ring.numba_kernel import ring_merge_kernel

    return ring_merge_kernel(problem.head_dim, problem.dtype)


@dataclass(frozen=True)
class Attention:
    """Which kernel computes a block, and which one of the same language puts blocks together."""

    plan: Callable[[Problem], Plan]
    claim: Callable[[Problem], Traffic]
    supports: Callable[[Problem], str | None]
    merge: Callable[[RingProblem], Any]


ATTENTION = {
    language: Attention(functools.partial(fa2.plan, kernels=kernels), fa2.claim, fa2.supports, merge)
    for language, kernels, merge in (("cupy", fa2.cupy_kernels, cupy_merge), ("numba", fa2.numba_kernels, numba_merge))
}


def merged_blocks(problem: RingProblem) -> list[Block]:
    """All blocks, with the first and the last marked of which a chunk's rows see a key."""
    return marked(blocks_of(problem, range(problem.devices)), lambda block: block.rows)


def plan(problem: RingProblem, attention: Attention) -> Plan:
    """In each step all devices compute with the block that they have, while it goes on to the next device."""
    p = problem
    launches: list[Launch] = []
    copies: list[PeerCopy] = []
    for step, blocks_of_step in itertools.groupby(merged_blocks(p), key=lambda block: block.step):
        start = len(launches)
        for block in blocks_of_step:
            launches += _launches(p, block, attention)
        if step + 1 < p.devices:
            for tensor in "KV":
                place = functools.partial(place_of, p, tensor)
                copies += copies_to_next(p, step, (start, len(launches)), place)
    return Plan(launches=tuple(launches), buffers=_buffers(p), copies=tuple(copies))


def _launches(problem: RingProblem, block: Block, attention: Attention) -> list[Launch]:
    """Attention of a block, and what puts it together with the blocks before it; the first alone if it is the only."""
    p, rows, device = problem, block.rows, block.rows.device
    K, V = (in_slot(p, place_of(p, tensor, block.keys, device, block.step), block.keys) for tensor in "KV")
    O, lse = (rows.of(name if block.is_only else f"{name}_block") for name in ("O", "lse"))
    names = {"Q": rows.of("Q"), "K": K, "V": V, "O": O, "lse": lse}
    found = [renamed(launch, names, device) for launch in attention.plan(block.problem).launches]
    if not block.is_only:
        count = p.batch * p.heads * len(rows.rows)
        buffers = (O, lse, rows.of("O_sum"), rows.of("lse_sum"), rows.of("O"), rows.of("lse"))
        flags = (np.int32(count), np.int32(block.is_first), np.int32(block.is_last))
        grid = (blocks(count, WARPS),)
        found.append(Launch(attention.merge(p), grid, (LANES, WARPS), (*buffers, *flags), device=device))
    return found


def _buffers(problem: RingProblem) -> tuple[Buffer, ...]:
    p, found = problem, list[Buffer]()
    merged = {block.rows for block in merged_blocks(p) if not block.is_only}
    for device, chunks in enumerate(p.chunks):
        for chunk in chunks:
            shape = (p.batch, p.heads, len(chunk.rows))
            found.append(Buffer(chunk.of("lse"), shape, "float32", device))
            if chunk in merged:
                found.append(Buffer(chunk.of("O_block"), (*shape, p.head_dim), p.dtype, device))
                found.append(Buffer(chunk.of("lse_block"), shape, "float32", device))
                found.append(Buffer(chunk.of("O_sum"), (*shape, p.head_dim), "float32", device))
                found.append(Buffer(chunk.of("lse_sum"), shape, "float32", device))
    return (*found, *slots(p, "KV", p.dtype, range(1, p.devices)))


def claim(problem: RingProblem, attention: Attention) -> Traffic:
    """The bytes above, at the `sectors` level, and those of each link."""
    p, read, written = problem, 0, 0
    has_sum: dict[Chunk, npt.NDArray[np.bool_]] = {}  # rows that have seen a key
    for block in merged_blocks(p):
        of_block = attention.claim(block.problem)
        read, written = read + of_block.read_bytes, written + of_block.write_bytes
        if not block.is_only:
            first, end = (np.broadcast_to(each[:, None], block.problem.lse_shape) for each in block.problem.spans)
            sees_block = (first < end).reshape(-1)
            sees_sum = has_sum.get(block.rows, np.zeros_like(sees_block))
            has_sum[block.rows] = sees_sum | sees_block
            stats = SECTOR_BYTES * len(sees_block)
            read += _O_bytes(p, sees_block, p.itemsize_bytes) + _O_bytes(p, sees_sum, FLOAT32_BYTES)
            read += stats if block.is_first else 2 * stats
            every_row = np.ones_like(sees_block)
            written += _O_bytes(p, every_row, p.itemsize_bytes if block.is_last else FLOAT32_BYTES) + stats
    return Traffic(read, written, links=as_links(links_of_keys(p)))


def _O_bytes(problem: RingProblem, rows: npt.NDArray[np.bool_], itemsize_bytes: int) -> int:
    """Bytes of moving O of those rows that are true."""
    d, row = problem.head_dim, np.arange(len(rows), dtype=np.int64)
    return int(run_bytes(row * d, rows * d, itemsize_bytes).sum())


def idea(attention: str) -> str:
    """The variant in one line; `attention` computes a block."""
    return f"Ring attention: K and V go round the devices; a block is {attention}, merged by lse"


def register(registry: Registry) -> None:
    """Add `ring-cupy` and `ring-numba`."""
    register_ring(registry, "ring-attention", "ring", idea("FlashAttention-2"), ATTENTION, plan, claim, fa2.NUMERICS)
