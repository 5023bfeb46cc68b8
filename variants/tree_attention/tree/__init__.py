"""Tree attention: plan and claim. ../README.md explains the algorithm and derives its bytes.

The kernels of a device's keys are those of FlashAttention-2, unchanged. A plan adds the tree: who sends its partial
result to whom, and when.

What the claim adds to the formula there: rows that are no multiple of a sector, and masks. A device's partial result
includes its first keys, so that under a causal mask the rows from some row on see one of its keys; O of others is not
read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness import Buffer, Launch, Link, PeerCopy, Plan, Problem, Registry, Traffic, TreeProblem
from variants._features import stored
from variants._ring import FLOAT32_BYTES, register_ring, renamed
from variants._tiles import blocks
from variants._tiles.sectors import LANES, SECTOR_BYTES, run_bytes
from variants.attention import fa2

WARPS = 4
"""Rows that a thread block of `tree_merge` puts together."""
SLOTS = 2
"""Partial results that a device has room for: one is merged while the next one arrives."""


@dataclass(frozen=True)
class Partial:
    """O and lse of some of the keys, on a device. O is in the problem's dtype as a kernel of attention stores it.

    After the first merge it is in float32, until device 0 stores the last one.
    """

    O: str
    lse: str
    dtype: str

    @classmethod
    def of(cls, name: str, device: int, dtype: str) -> Partial:
        """Return the partial result in buffers that begin with O and lse."""
        return cls(f"O{name}@{device}", f"lse{name}@{device}", dtype)

    @property
    def O_bytes(self) -> int:
        """Bytes of an element of O."""
        return FLOAT32_BYTES if self.dtype == "float32" else 2


@dataclass(frozen=True)
class Merge:
    """A device puts its own partial result and one that has arrived together."""

    level: int
    """The step of the tree, from 0."""
    device: int
    sender: int
    own: Partial
    sent: Partial
    """What the sender has, and below, where it arrives."""
    arrived: Partial
    merged: Partial


def merges_of(problem: TreeProblem) -> list[list[Merge]]:
    """The merges of each step: device i, a multiple of 2^(s + 1), takes what device i + 2^s has.

    Devices that send in the next step come first.
    """
    p, levels = problem, list[list[Merge]]()
    held = {device: Partial.of("" if p.devices == 1 else "_own", device, p.dtype) for device in range(p.devices)}
    while (distance := 1 << len(levels)) < p.devices:
        found = []
        for device in range(0, p.devices - distance, 2 * distance):
            sent, level = held[device + distance], len(levels)
            is_last = device == 0 and 2 * distance >= p.devices
            merged = Partial.of("", 0, p.dtype) if is_last else Partial.of("_merged", device, "float32")
            arrived = Partial.of(f"_{sent.dtype}_{level % SLOTS}", device, sent.dtype)
            found.append(Merge(level, device, device + distance, held[device], sent, arrived, merged))
            held[device] = merged
        levels.append(sorted(found, key=lambda merge: not sends_at(merge.device, len(levels) + 1)))
    return levels


def sends_at(device: int, level: int) -> bool:
    """Whether a device sends its partial result in this step: if its lowest 1 bit is bit `level`."""
    return device % (2 << level) == 1 << level


@dataclass(frozen=True)
class TreeKernels:
    """Which kernel computes attention of a device's keys, and which one of the same language merges."""

    plan: Callable[[Problem], Plan]
    claim: Callable[[Problem], Traffic]
    supports: Callable[[Problem], str | None]
    merge: Callable[[TreeProblem, Merge], Any]


def cupy_merge(problem: TreeProblem, merge: Merge) -> Any:
    """The CUDA kernel of a merge."""
    from variants._tiles.rawkernel import raw_kernel

    types = zip(("Own", "Arrived", "Merged"), (merge.own, merge.arrived, merge.merged))
    using = "".join(f"using {name} = {'float' if each.dtype == 'float32' else 'stored'};\n" for name, each in types)
    options = (f"-DD={problem.head_dim}",)
    return raw_kernel("tree_attention/tree", "tree_merge", options, stored(problem.dtype), using)


def numba_merge(problem: TreeProblem, merge: Merge) -> Any:
    """The Numba kernel of a merge."""
    from variants.tree_attention.tree.numba_kernel import tree_merge_kernel

    return tree_merge_kernel(problem.head_dim, merge.own.dtype, merge.arrived.dtype, merge.merged.dtype)


KERNELS = {
    language: TreeKernels(functools.partial(fa2.plan, kernels=kernels), fa2.claim, fa2.supports, merge)
    for language, kernels, merge in (("cupy", fa2.cupy_kernels, cupy_merge), ("numba", fa2.numba_kernels, numba_merge))
}


def plan(problem: TreeProblem, kernels: TreeKernels) -> Plan:
    """Every device computes with its keys. Partial results travel while other devices still compute or merge."""
    p, levels = problem, merges_of(problem)
    launches: list[Launch] = []
    copies: list[PeerCopy] = []
    own = _own_launches(p, kernels)
    first_senders = [device for device in range(p.devices) if sends_at(device, 0)]
    others = [device for device in range(p.devices) if not sends_at(device, 0)]
    launches += [launch for device in first_senders for launch in own[device]]
    start = len(launches)
    launches += [launch for device in others for launch in own[device]]
    for level in levels:
        wait = len(launches)
        copies += [copy for merge in level for copy in _copies(p, merge, start, wait)]
        launches += [_merge(p, merge, kernels) for merge in level]
        start = wait + sum(sends_at(merge.device, merge.level + 1) for merge in level)
    return Plan(tuple(launches), tuple(_buffers(p, levels)), copies=tuple(copies))


def _own_launches(problem: TreeProblem, kernels: TreeKernels) -> list[list[Launch]]:
    """Attention of all rows with each device's keys."""
    p, found = problem, []
    for device, (keys,) in enumerate(p.chunks):
        partial = Partial.of("" if p.devices == 1 else "_own", device, p.dtype)
        names = {"Q": f"Q@{device}", "K": keys.of("K"), "V": keys.of("V"), "O": partial.O, "lse": partial.lse}
        found.append([renamed(launch, names, device) for launch in kernels.plan(p.block(keys)).launches])  # type: ignore[arg-type]
    return found


def _merge(problem: TreeProblem, merge: Merge, kernels: TreeKernels) -> Launch:
    count = _rows(problem)
    buffers = (name for each in (merge.own, merge.arrived, merge.merged) for name in (each.O, each.lse))
    grid, args = (blocks(count, WARPS),), (*buffers, np.int32(count))
    return Launch(kernels.merge(problem, merge), grid, (LANES, WARPS), args, device=merge.device)


def _copies(problem: TreeProblem, merge: Merge, start: int, wait: int) -> Iterator[PeerCopy]:
    sent, arrived, rows = merge.sent, merge.arrived, _rows(problem)
    yield PeerCopy(sent.O, arrived.O, rows * problem.head_dim * sent.O_bytes, start, wait)
    yield PeerCopy(sent.lse, arrived.lse, rows * FLOAT32_BYTES, start, wait)


def _rows(problem: TreeProblem) -> int:
    return problem.batch * problem.heads * problem.q_len


def _buffers(problem: TreeProblem, levels: list[list[Merge]]) -> Iterator[Buffer]:
    p = problem
    merges = [merge for level in levels for merge in level]
    partials = [(merge.device, each) for merge in merges for each in (merge.own, merge.arrived, merge.merged)]
    partials += [(merge.sender, merge.sent) for merge in merges]
    for device, partial in dict.fromkeys([*partials, (0, Partial.of("", 0, p.dtype))]):
        if partial.O != "O@0":
            yield Buffer(partial.O, p.q_shape, partial.dtype, device)
        yield Buffer(partial.lse, p.lse_shape, "float32", device)


def claim(problem: TreeProblem, kernels: TreeKernels) -> Traffic:
    """The bytes above, at the `sectors` level, and those of each link."""
    p, read, written, links = problem, 0, 0, []
    for (keys,) in p.chunks:
        of_keys = kernels.claim(p.block(keys))
        read, written = read + of_keys.read_bytes, written + of_keys.write_bytes
    for merge in (merge for level in merges_of(p) for merge in level):
        for partial, device in ((merge.own, merge.device), (merge.arrived, merge.sender)):
            read += _partial_bytes(p, partial, device)
        written += _partial_bytes(p, merge.merged)
        sent_bytes = _rows(p) * (p.head_dim * merge.sent.O_bytes + FLOAT32_BYTES)
        links.append(Link(merge.sender, merge.device, sent_bytes))
    return Traffic(read, written, links=tuple(sorted(links)))


def _partial_bytes(problem: TreeProblem, partial: Partial, device: int | None = None) -> int:
    """Bytes of O and lse; of a device's partial result only O of rows that see one of its keys."""
    p = problem
    row = np.arange(_rows(p), dtype=np.int64)
    first_seeing = max(0, p.chunks[device][0].rows.start - p.diagonal) if p.causal and device is not None else 0
    seeing = row[row % p.q_len >= first_seeing]
    return int(run_bytes(seeing * p.head_dim, p.head_dim, partial.O_bytes).sum()) + SECTOR_BYTES * len(row)


def idea(attention: str) -> str:
    """The variant in one line; `attention` computes with a device's keys."""
    return f"Tree attention: keys divided over devices; {attention} on each, merged by lse in a tree"


def register(registry: Registry) -> None:
    """Add `tree-cupy` and `tree-numba`."""
    register_ring(registry, "tree-attention", "tree", idea("FlashAttention-2"), KERNELS, plan, claim, fa2.NUMERICS)
