"""Ring attention: plan and claim. ../README.md explains the algorithm and derives its bytes.

The kernels of a block are those of FlashAttention-2, unchanged: each block is a problem of attention. What a plan of
several devices adds is data: buffers and launches on devices, and copies between them.

What the claim adds to the formula there: the blocks that some row of a device sees, in place of all blocks, with the
bytes of FlashAttention-2 for each; and what a row costs when blocks are put together, by a warp for each. A device that
sees one block only has nothing to put together.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness import (
    Buffer,
    Chunk,
    Launch,
    Link,
    Numerics,
    PeerCopy,
    Plan,
    Problem,
    Registry,
    RingProblem,
    Traffic,
    Variant,
)
from variants._features import stored
from variants._tiles import blocks
from variants._tiles.sectors import LANES, SECTOR_BYTES, run_bytes
from variants.attention import fa2

SLOTS = 2
"""Visiting blocks of K and V that a device has room for: one is computed with while the next one arrives."""
WARPS = 4
"""Rows that a thread block of `ring_merge` puts together."""
FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Attention:
    """Which kernel computes a block."""

    idea: str
    plan: Callable[[Problem], Plan]
    claim: Callable[[Problem], Traffic]
    supports: Callable[[Problem], str | None]


ATTENTION = Attention(
    "FlashAttention-2", functools.partial(fa2.plan, kernels=fa2.cupy_kernels), fa2.claim, fa2.supports
)


@dataclass(frozen=True)
class Block:
    """The rows of a chunk with the keys of another one."""

    step: int
    """How often K and V have gone on before."""
    rows: Chunk
    keys: Chunk
    problem: Problem
    is_first: bool
    """Whether it is the first block of which the rows see a key, and below, whether it is the last."""
    is_last: bool


def blocks_of(problem: RingProblem) -> list[Block]:
    """The blocks that some row sees, in the order of their launches: by step, by device, by chunks."""
    p, found = problem, []
    for step in range(p.devices):
        for device, chunks in enumerate(p.chunks):
            for rows, keys in itertools.product(chunks, p.chunks[(device - step) % p.devices]):
                if (block := p.block(rows, keys)) is not None:
                    found.append((step, rows, keys, block))
    firsts = {each[1]: place for place, each in reversed(list(enumerate(found)))}
    lasts = {each[1]: place for place, each in enumerate(found)}
    return [Block(*each, firsts[each[1]] == i, lasts[each[1]] == i) for i, each in enumerate(found)]


def place_of(chunk: Chunk, tensor: str, device: int, step: int) -> str:
    """The buffer in which a device has a chunk's K or V in this step: its own, or a slot that it came to."""
    return chunk.of(tensor) if step == 0 else f"{tensor}_visiting_{step % SLOTS}@{device}{chunk.letter}"


def plan(problem: RingProblem, attention: Attention) -> Plan:
    """In each step all devices compute with the block that they have, while it goes on to the next device."""
    p = problem
    launches: list[Launch] = []
    copies: list[PeerCopy] = []
    for step, blocks_of_step in itertools.groupby(blocks_of(p), key=lambda block: block.step):
        start = len(launches)
        for block in blocks_of_step:
            launches += _launches(p, block, attention)
        if step + 1 < p.devices:
            copies += _copies(p, step, start, len(launches))
    return Plan(launches=tuple(launches), buffers=_buffers(p), copies=tuple(copies))


def _launches(problem: RingProblem, block: Block, attention: Attention) -> list[Launch]:
    """Attention of a block, and what puts it together with the blocks before it; the first alone if it is the only."""
    p, rows, device = problem, block.rows, block.rows.device
    is_only = block.is_first and block.is_last
    K, V = (place_of(block.keys, tensor, device, block.step) for tensor in "KV")
    O, lse = (rows.of(name if is_only else f"{name}_block") for name in ("O", "lse"))
    names = {"Q": rows.of("Q"), "K": K, "V": V, "O": O, "lse": lse}
    found = [
        dataclasses.replace(
            launch, args=tuple(names[each] if isinstance(each, str) else each for each in launch.args), device=device
        )
        for launch in attention.plan(block.problem).launches
    ]
    if not is_only:
        count = _rows(p, rows)
        buffers = (O, lse, rows.of("O_sum"), rows.of("lse_sum"), rows.of("O"), rows.of("lse"))
        flags = (np.int32(count), np.int32(block.is_first), np.int32(block.is_last))
        grid = (blocks(count, WARPS),)
        found.append(Launch(_merge_kernel(p), grid, (LANES, WARPS), (*buffers, *flags), device=device))
    return found


def _copies(problem: RingProblem, step: int, start: int, wait: int) -> Iterator[PeerCopy]:
    """K and V of each device to the next one, while launches `start` to `wait` - 1 compute with them."""
    p = problem
    for device in range(p.devices):
        following = (device + 1) % p.devices
        for chunk in p.chunks[(device - step) % p.devices]:
            for tensor in "KV":
                source, destination = (place_of(chunk, tensor, *at) for at in ((device, step), (following, step + 1)))
                yield PeerCopy(source, destination, _kv_bytes(p, chunk) // 2, start, wait)


def _buffers(problem: RingProblem) -> tuple[Buffer, ...]:
    p, found = problem, []
    most_rows = max(len(chunk.rows) for chunks in p.chunks for chunk in chunks)
    merged = {block.rows for block in blocks_of(p) if not (block.is_first and block.is_last)}
    for device, chunks in enumerate(p.chunks):
        for chunk in chunks:
            shape = (p.batch, p.heads, len(chunk.rows))
            found.append(Buffer(chunk.of("lse"), shape, "float32", device))
            if chunk in merged:
                found.append(Buffer(chunk.of("O_block"), (*shape, p.head_dim), p.dtype, device))
                found.append(Buffer(chunk.of("lse_block"), shape, "float32", device))
                found.append(Buffer(chunk.of("O_sum"), (*shape, p.head_dim), "float32", device))
                found.append(Buffer(chunk.of("lse_sum"), shape, "float32", device))
            slot = (p.batch, p.kv_heads_count, most_rows, p.head_dim)
            for step in range(1, min(SLOTS, p.devices - 1) + 1):
                found += [Buffer(place_of(chunk, tensor, device, step), slot, p.dtype, device) for tensor in "KV"]
    return tuple(found)


def _merge_kernel(problem: RingProblem) -> Any:
    from variants._tiles.rawkernel import raw_kernel

    return raw_kernel("ring_attention/ring", "ring_merge", (f"-DD={problem.head_dim}",), stored(problem.dtype))


def _rows(problem: RingProblem, chunk: Chunk) -> int:
    return problem.batch * problem.heads * len(chunk.rows)


def _kv_bytes(problem: RingProblem, chunk: Chunk) -> int:
    """Bytes of a chunk's K and V."""
    return 2 * problem.batch * problem.kv_heads_count * len(chunk.rows) * problem.head_dim * problem.itemsize_bytes


def claim(problem: RingProblem, attention: Attention) -> Traffic:
    """The bytes above, at the `sectors` level, and those of each link."""
    p, read, written = problem, 0, 0
    for block in blocks_of(p):
        of_block = attention.claim(block.problem)
        read, written = read + of_block.read_bytes, written + of_block.write_bytes
        if not (block.is_first and block.is_last):
            row = np.arange(_rows(p, block.rows), dtype=np.int64)
            d, stats = p.head_dim, SECTOR_BYTES * len(row)
            stored_bytes, sum_bytes = (int(run_bytes(row * d, d, n).sum()) for n in (p.itemsize_bytes, FLOAT32_BYTES))
            read += stored_bytes + stats + (0 if block.is_first else sum_bytes + stats)
            written += (stored_bytes if block.is_last else sum_bytes) + stats
    return Traffic(read, written, links=_links(p))


def _links(problem: RingProblem) -> tuple[Link, ...]:
    """K and V of every device go on N - 1 times: a device sends all but those that the next one has from the start."""
    p = problem
    if p.devices == 1:
        return ()
    of_device = [sum(_kv_bytes(p, chunk) for chunk in chunks) for chunks in p.chunks]
    following = [(device + 1) % p.devices for device in range(p.devices)]
    return tuple(Link(device, to, sum(of_device) - of_device[to]) for device, to in enumerate(following))


def supports(problem: RingProblem, attention: Attention) -> str | None:
    """Why it cannot take the problem, or None."""
    return attention.supports(problem.whole)


def variant(name: str, attention: Attention, numerics: Numerics) -> Variant:
    """The variant that computes blocks with this kernel, which rounds as `numerics` says."""
    return Variant(
        name=f"{name}-cupy",
        operation="ring-attention",
        algorithm=name,
        backend="cupy",
        idea=f"Ring attention: K and V go round the devices; a block is {attention.idea}, merged by lse",
        # Partial functions, not closures: they can be sent to worker processes.
        plan=functools.partial(plan, attention=attention),
        supports=functools.partial(supports, attention=attention),
        claim=functools.partial(claim, attention=attention),
        takes=("causal",),
        numerics=numerics,
    )


def register(registry: Registry) -> None:
    """Add `ring-cupy`."""
    registry.add(variant("ring", ATTENTION, fa2.NUMERICS))
