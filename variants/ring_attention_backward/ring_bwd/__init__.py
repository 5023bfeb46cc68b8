"""Gradients of ring attention: plan and claim. ../README.md explains the algorithm and derives its bytes.

The kernels of a block are those of FlashAttention-2's backward pass, unchanged. The one that precedes them and the one
that rounds dQ run once for a chunk of rows: dQ is summed over blocks as it is summed over tiles of keys. A plan adds
what goes round: K and V, and dK and dV in float32.

What the claim adds to the formula there: the blocks of which some row sees a key, in place of all blocks. A sum of dK
and dV begins on the first device that has a part of it, and if that is their own, nothing travels.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness import (
    Buffer,
    Chunk,
    Launch,
    Numerics,
    PeerCopy,
    Plan,
    Problem,
    Registry,
    Reshaped,
    RingBackwardProblem,
    Traffic,
)
from variants._features import stored
from variants._ring import (
    FLOAT32_BYTES,
    Block,
    as_links,
    blocks_of,
    copies_to_next,
    elements_of_keys,
    in_slot,
    links_of_keys,
    marked,
    most_rows,
    place_of,
    register_ring,
    renamed,
    shape_of_keys,
    slot,
    slots,
)
from variants._tiles import blocks
from variants._tiles.backward import NUMERICS, Claims
from variants._tiles.sectors import run_bytes
from variants.attention_backward import fa2

THREADS = 256
"""Threads of a block that adds gradients. Each has an element of dK and of dV."""
GRADIENTS = ("dK", "dV")


def cupy_sums(problem: RingBackwardProblem) -> tuple[Any, Any]:
    """The CUDA kernels that add a block's dK and dV to their sums, and that store them where they belong."""
    from variants._tiles.rawkernel import raw_kernel

    folder, common = "ring_attention_backward/ring_bwd", stored(problem.dtype)
    add, store = (raw_kernel(folder, name, (), common) for name in ("ring_add", "ring_store"))
    return add, store


def numba_sums(problem: RingBackwardProblem) -> tuple[Any, Any]:
    """The Numba kernels that do."""
    from variants.ring_attention_backward.ring_bwd.numba_kernel import ring_sum_kernels

    kernels = ring_sum_kernels(problem.dtype)
    return kernels.ring_add, kernels.ring_store


@dataclass(frozen=True)
class Gradients:
    """Which kernels compute the gradients of a block, and which ones of the same language sum dK and dV."""

    plan: Callable[[Problem], Plan]
    """Its launches: what comes before, what blocks of keys do, and, if dQ has 16 bits, what rounds it."""
    claims: Callable[[Problem], Claims]
    supports: Callable[[Problem], str | None]
    sums: Callable[[RingBackwardProblem], tuple[Any, Any]]


KERNELS = {
    language: Gradients(functools.partial(fa2.plan, kernels=kernels), fa2.claims, fa2.supports, sums)
    for language, kernels, sums in (("cupy", fa2.cupy_kernels, cupy_sums), ("numba", fa2.numba_kernels, numba_sums))
}


def steps_of(problem: RingBackwardProblem) -> list[list[list[Block]]]:
    """The blocks of each step from 1 to N, by turn. In step N, each device has its own block again.

    A device takes one block of each visiting chunk per turn: two turns where both of its chunks see it. The first and
    the last part of each sum of dK and dV are marked, in this order.
    """
    p, found = problem, list[tuple[int, Block]]()
    for step in range(1, p.devices + 1):
        turns: dict[tuple[int, Chunk], int] = defaultdict(int)
        for block in blocks_of(p, range(step, step + 1)):
            visit = block.rows.device, block.keys
            found.append((turns[visit], block))
            turns[visit] += 1
    found.sort(key=lambda each: (each[1].step, each[0]))
    steps: list[list[list[Block]]] = [[[], []] for _ in range(p.devices)]
    for (turn, _), block in zip(found, marked([block for _, block in found], lambda block: block.keys)):
        steps[block.step - 1][turn].append(block)
    return steps


def first_parts(steps: list[list[list[Block]]]) -> dict[Chunk, int]:
    """The step in which the sum of each chunk's dK and dV begins."""
    return {block.keys: block.step for turns in steps for turn in turns for block in turn if block.is_first}


def plan(problem: RingBackwardProblem, gradients: Gradients) -> Plan:
    """K and V set out while D is computed. In each step, sums of dK and dV arrive while devices compute their parts."""
    p, steps = problem, steps_of(problem)
    begun = first_parts(steps)
    chunks = p.all_chunks
    of_rows = {chunk: _plan_of(p, chunk, chunk, gradients) for chunk in chunks}
    launches = [_launch(p, of_rows[chunk].launches[0], chunk, chunk, p.devices) for chunk in chunks]
    copies = _visits(p, 0, (0, len(launches)))
    for step, turns in enumerate(steps, start=1):
        start = len(launches)
        arrival = start + len(turns[0])
        for turn in turns:
            launches += [
                _launch(
                    p,
                    _plan_of(p, each.rows, each.keys, gradients).launches[1],
                    each.rows,
                    each.keys,
                    step,
                    each.is_only,
                )
                for each in turn
            ]
            launches += [_sum(p, each, gradients) for each in turn if not each.is_only]
        copies += _visits(p, step, (start, len(launches)))
        copies += _returns(p, step - 1, (start, arrival), begun)
    for chunk in chunks:
        launches += [_launch(p, each, chunk, chunk, p.devices) for each in of_rows[chunk].launches[2:]]
    buffers = (
        Buffer(chunk.of(buffer.name), buffer.shape, buffer.dtype, chunk.device)
        for chunk in chunks
        for buffer in of_rows[chunk].buffers
    )
    visiting = slots(p, "KV", p.dtype, range(1, p.devices))
    return Plan(tuple(launches), (*buffers, *visiting, *_sum_buffers(p, steps, copies)), copies=tuple(copies))


def _plan_of(problem: RingBackwardProblem, rows: Chunk, keys: Chunk, gradients: Gradients) -> Plan:
    block = problem.block(rows, keys)
    assert block is not None
    return gradients.plan(block)


def _launch(
    problem: RingBackwardProblem, launch: Launch, rows: Chunk, keys: Chunk, step: int, is_only: bool = False
) -> Launch:
    """A launch of a block's plan on the buffers of the device. The only part of dK and dV is stored at once."""
    p, device = problem, rows.device
    names: dict[str, str | Reshaped] = {
        name: rows.of(name) for name in ("Q", "O", "dO", "lse", "L", "D", "dQ", "dQ_running")
    }
    for tensor, gradient in zip("KV", GRADIENTS):
        names[tensor] = in_slot(p, place_of(p, tensor, keys, device, step), keys)
        names[gradient] = keys.of(gradient) if is_only else in_slot(p, _part(gradient, device, keys), keys)
    return renamed(launch, names, device)


def _part(gradient: str, device: int, keys: Chunk) -> str:
    """The buffer of a block's dK or dV on a device."""
    return f"{gradient}_block@{device}{keys.letter}"


def _sum(problem: RingBackwardProblem, block: Block, gradients: Gradients) -> Launch:
    """What adds a block's dK and dV to their sums, or with the last of them stores them."""
    p, device, keys = problem, block.rows.device, block.keys
    count = elements_of_keys(p, keys)
    add, store = gradients.sums(p)
    parts = [_part(gradient, device, keys) for gradient in GRADIENTS]
    sums = [slot(f"{gradient}_sum", keys, device, block.step) for gradient in GRADIENTS]
    stored_in = [keys.of(gradient) for gradient in GRADIENTS] if block.is_last else []
    flags = [] if block.is_last else [np.int32(block.is_first)]
    args = (*(Reshaped(each, (count,)) for each in (*parts, *sums, *stored_in)), np.int64(count), *flags)
    return Launch(store if block.is_last else add, (blocks(count, THREADS),), (THREADS,), args, device=device)


def _visits(problem: RingBackwardProblem, step: int, flight: tuple[int, int]) -> list[PeerCopy]:
    """K and V on their way to the next device, unless that is their own."""
    p = problem
    if step + 1 >= p.devices:
        return []
    places = (functools.partial(place_of, p, tensor) for tensor in "KV")
    return [copy for place in places for copy in copies_to_next(p, step, flight, place)]


def _returns(
    problem: RingBackwardProblem, step: int, flight: tuple[int, int], begun: Mapping[Chunk, int]
) -> list[PeerCopy]:
    """Sums of dK and dV, as far as they have begun, on their way to the next device."""
    places = (functools.partial(slot, f"{gradient}_sum") for gradient in GRADIENTS)
    return [
        copy
        for place in places
        for copy in copies_to_next(problem, step, flight, place, lambda chunk: begun[chunk] <= step)
    ]


def _sum_buffers(
    problem: RingBackwardProblem, steps: list[list[list[Block]]], copies: list[PeerCopy]
) -> Iterator[Buffer]:
    """The slots of sums, and what holds a block's dK and dV, where there are any."""
    p = problem
    shape = shape_of_keys(p, most_rows(p))
    parts = [block for turns in steps for turn in turns for block in turn if not block.is_only]
    held = {copy.destination for copy in copies}
    for gradient in GRADIENTS:
        held |= {slot(f"{gradient}_sum", each.keys, each.rows.device, each.step) for each in parts}
        held |= {_part(gradient, each.rows.device, each.keys) for each in parts}
    for name in sorted(held):
        tensor, _, place = name.partition("@")
        if tensor.startswith(GRADIENTS):
            yield Buffer(name, shape, "float32" if "_sum" in tensor else p.dtype, int(place.rstrip("ab")))


def claim(problem: RingBackwardProblem, gradients: Gradients) -> Traffic:
    """The bytes above, at the `sectors` level, and those of each link."""
    p, steps = problem, steps_of(problem)
    bytes_of: list[tuple[int, int]] = []
    for chunk in p.all_chunks:
        own = p.block(chunk, chunk)
        assert own is not None
        of_chunk = gradients.claims(own)
        bytes_of += [of_chunk.prepare, of_chunk.rounding]
    for block in (block for turns in steps for turn in turns for block in turn):
        bytes_of.append(gradients.claims(block.problem).of_keys)
        if not block.is_only:
            count = elements_of_keys(p, block.keys)
            stored_bytes, sum_bytes = (2 * int(run_bytes(0, count, n)) for n in (p.itemsize_bytes, FLOAT32_BYTES))
            read_bytes = stored_bytes + (0 if block.is_first else sum_bytes)
            bytes_of.append((read_bytes, stored_bytes if block.is_last else sum_bytes))
    read_bytes, write_bytes = (int(sum(each)) for each in zip(*bytes_of))
    return Traffic(read_bytes, write_bytes, links=as_links(links_of(p, first_parts(steps))))


def links_of(problem: RingBackwardProblem, begun: Mapping[Chunk, int]) -> dict[tuple[int, int], int]:
    """Bytes of each link: K and V, and dK and dV in float32 from the device on which their sum begins to their own."""
    p, found = problem, links_of_keys(problem)
    for chunk, first in begun.items():
        for step in range(first, p.devices):
            device = (chunk.device + step) % p.devices
            found[device, (device + 1) % p.devices] += 2 * elements_of_keys(p, chunk) * FLOAT32_BYTES
    return found


def register_gradients(
    registry: Registry, algorithm: str, of_block: str, languages: Mapping[str, Gradients], numerics: Numerics
) -> None:
    """Add `<algorithm>-<language>`; `of_block` says whose gradients those of a block are."""
    idea = f"Ring attention backward: K, V, dK and dV go round the devices; gradients of a block are {of_block}"
    operation = "ring-attention-backward"
    register_ring(registry, operation, algorithm, idea, languages, plan, claim, numerics, deterministic=False)


def register(registry: Registry) -> None:
    """Add `ring-bwd-cupy` and `ring-bwd-numba`."""
    register_gradients(registry, "ring-bwd", "FlashAttention-2's", KERNELS, NUMERICS)
