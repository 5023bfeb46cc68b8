"""What plans of rings have in common: blocks of rows and keys, slots to which visitors come, copies to the next device.

In step t, device i has the block of keys of device (i - t) mod N, which came from device i - 1.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

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
    Reshaped,
    RingProblem,
    TensorMap,
    Traffic,
    Variant,
)

SLOTS = 2
"""Visiting blocks that a device has room for: one is computed with while the next one arrives."""
FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Block:
    """The rows of a chunk with the keys of another one."""

    step: int
    """How often K and V have gone on before."""
    rows: Chunk
    keys: Chunk
    problem: Problem
    is_first: bool = True
    """Whether it is the first part of a sum over blocks, and below, whether it is the last."""
    is_last: bool = True

    @property
    def is_only(self) -> bool:
        """Whether there is nothing to add it to."""
        return self.is_first and self.is_last


def blocks_of(problem: RingProblem, steps: range) -> list[Block]:
    """The blocks of which some row sees a key: by step, by device, by chunks."""
    p, found = problem, []
    for step in steps:
        for device, chunks in enumerate(p.chunks):
            for rows, keys in itertools.product(chunks, p.chunks[(device - step) % p.devices]):
                if (block := p.block(rows, keys)) is not None:
                    found.append(Block(step, rows, keys, block))
    return found


def marked(blocks: list[Block], sum_of: Callable[[Block], Chunk]) -> list[Block]:
    """The blocks in this order, with the first and the last of each sum marked; `sum_of` returns what a sum is of."""
    firsts = {sum_of(block): place for place, block in reversed(list(enumerate(blocks)))}
    lasts = {sum_of(block): place for place, block in enumerate(blocks)}
    return [
        dataclasses.replace(block, is_first=firsts[sum_of(block)] == place, is_last=lasts[sum_of(block)] == place)
        for place, block in enumerate(blocks)
    ]


def slot(tensor: str, chunk: Chunk, device: int, step: int) -> str:
    """The buffer to which a chunk's part of a tensor comes before this step."""
    return f"{tensor}_visiting_{step % SLOTS}@{device}{chunk.letter}"


def place_of(problem: RingProblem, tensor: str, chunk: Chunk, device: int, step: int) -> str:
    """The buffer in which a device has a chunk's K or V in this step: its own, or a slot."""
    return chunk.of(tensor) if step % problem.devices == 0 else slot(tensor, chunk, device, step)


def in_slot(problem: RingProblem, buffer: str, chunk: Chunk) -> str | Reshaped:
    """A buffer that has room for the largest chunk, as the argument that has the shape of this chunk's K."""
    is_full = len(chunk.rows) == most_rows(problem)
    return buffer if is_full else Reshaped(buffer, shape_of_keys(problem, len(chunk.rows)))


def most_rows(problem: RingProblem) -> int:
    """Rows of the largest chunk."""
    return max(len(chunk.rows) for chunk in problem.all_chunks)


def shape_of_keys(problem: RingProblem, rows: int) -> tuple[int, int, int, int]:
    """Shape of so many rows of K."""
    return (problem.batch, problem.kv_heads_count, rows, problem.head_dim)


def slots(problem: RingProblem, tensors: Iterable[str], dtype: str, steps: range) -> Iterator[Buffer]:
    """The buffers of all slots in which a device receives, or sums, these tensors in these steps."""
    shape = shape_of_keys(problem, most_rows(problem))
    for device, chunks in enumerate(problem.chunks):
        for chunk in chunks:
            for step in steps[:SLOTS]:
                yield from (Buffer(slot(tensor, chunk, device, step), shape, dtype, device) for tensor in tensors)


def copies_to_next(
    problem: RingProblem,
    step: int,
    flight: tuple[int, int],
    source: Callable[[Chunk, int, int], str],
    chunks: Callable[[Chunk], bool] = lambda chunk: True,
) -> Iterator[PeerCopy]:
    """A copy of a tensor of each chunk from the device that has it in this step to the next one's slot.

    `flight` are the launches from `PeerCopy.start` to `wait`, `source` is its buffer for (chunk, device, step), and
    `chunks` says which travel. The buffer tells how many bytes an element has: sums are float32.
    """
    p = problem
    for device in range(p.devices):
        following = (device + 1) % p.devices
        for chunk in filter(chunks, p.chunks[(device - step) % p.devices]):
            buffer = source(chunk, device, step)
            tensor = buffer.partition("@")[0].partition("_visiting")[0]
            itemsize_bytes = FLOAT32_BYTES if tensor.endswith("_sum") else p.itemsize_bytes
            size_bytes = elements_of_keys(p, chunk) * itemsize_bytes
            yield PeerCopy(buffer, slot(tensor, chunk, following, step + 1), size_bytes, *flight)


def elements_of_keys(problem: RingProblem, chunk: Chunk) -> int:
    """Elements of a chunk's K."""
    return problem.batch * problem.kv_heads_count * len(chunk.rows) * problem.head_dim


def renamed(launch: Launch, names: dict[str, str | Reshaped], device: int) -> Launch:
    """The launch on a device, with other buffers for its own."""

    def other(argument: Any) -> Any:
        if isinstance(argument, tuple):
            items = [other(item) for item in argument]
            return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)
        if isinstance(argument, TensorMap):
            buffer = names[argument.buffer]
            return dataclasses.replace(argument, buffer=buffer if isinstance(buffer, str) else buffer.buffer)
        return names[argument] if isinstance(argument, str) else argument

    return dataclasses.replace(launch, args=tuple(map(other, launch.args)), device=device)


def links_of_keys(problem: RingProblem) -> dict[tuple[int, int], int]:
    """Bytes of each link if K and V of every device go on N - 1 times.

    A device sends all but those that the next one has from the start.
    """
    p = problem
    if p.devices == 1:
        return {}
    of_device = [p.kv_bytes(device) for device in range(p.devices)]
    following = [(device + 1) % p.devices for device in range(p.devices)]
    return {(device, to): sum(of_device) - of_device[to] for device, to in enumerate(following)}


def as_links(size_bytes: dict[tuple[int, int], int]) -> tuple[Link, ...]:
    """The links with these bytes, sorted."""
    return tuple(sorted(Link(*ends, size) for ends, size in size_bytes.items()))


class Kernels(Protocol):
    """The kernels of one language."""

    @property
    def supports(self) -> Callable[[Any], str | None]:
        """Says of a problem of the whole sequence why they cannot take it, or None."""


K = TypeVar("K", bound=Kernels)


def register_ring(
    registry: Registry,
    operation: str,
    algorithm: str,
    idea: str,
    languages: Mapping[str, K],
    plan: Callable[[Any, K], Plan],
    claim: Callable[[Any, K], Traffic],
    numerics: Numerics,
    deterministic: bool = True,
) -> None:
    """Add `<algorithm>-<language>` for each of `languages`, which rounds as `numerics` says."""
    for language, kernels in languages.items():
        registry.add(
            Variant(
                name=f"{algorithm}-{language}",
                operation=operation,
                algorithm=algorithm,
                backend=language,
                idea=idea,
                # Partial functions, not closures: they can be sent to worker processes.
                plan=functools.partial(_planned, plan, kernels),
                supports=functools.partial(_supports, kernels),
                claim=functools.partial(_planned, claim, kernels),
                takes=("causal",),
                deterministic=deterministic,
                numerics=numerics,
            )
        )


def _planned(function: Callable[[RingProblem, K], Any], kernels: K, problem: RingProblem) -> Any:
    return function(problem, kernels)


def _supports(kernels: Kernels, problem: RingProblem) -> str | None:
    return kernels.supports(problem.whole)
