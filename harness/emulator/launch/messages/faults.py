"""Describes a kernel's fault in one message with kernel, source line, block, thread, buffer and offset."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.codegen.kernel_facts import Site
from harness.emulator.launch.messages import tensor_faults
from harness.ptx.recursion import STACK_BYTES
from harness.support.errors import KernelFault


@dataclass(frozen=True)
class Cluster:
    """The blocks that ran together with the one at fault."""

    blocks: tuple[tuple[int, int, int], ...]
    """Coordinates by rank; a single block without clusters."""
    tagged: bool
    """Whether addresses of shared memory contain the rank of their block."""


@dataclass(frozen=True)
class Deadlock:
    """Clusters that wait for each other in loops."""

    clusters: int
    not_started: int
    """Number of clusters that cannot start before one of them ends."""
    places: dict[str, list[int]]
    """The blocks that are in a loop, by place in the source."""


@dataclass(frozen=True)
class Fault:
    """The runtime's record of a fault, with the data needed to explain it."""

    kernel: str
    kind: str
    site: Site | None
    """The instruction; None if the block as a whole is at fault."""
    block: int
    warp: int
    lane: int
    lanes: int
    """Mask of lanes that are missing or at fault."""
    address: int
    size_bytes: int
    step_limit: int
    shared_bytes: int
    waiting: tuple[tuple[int, int, str], ...]
    """For a deadlock: for each warp, identified by its block's rank, where it waits or that it has exited, in words."""
    grid: tuple[int, int, int]
    cluster: Cluster
    threads: tuple[int, int, int]
    buffers: tuple[tuple[str, int], ...]
    variables: tuple[tuple[str, int], ...]
    local_bytes: int
    deadlock: Deadlock | None = None
    """If one of several clusters that wait for each other was stopped: which ones, and where they wait."""
    assertion: str = ""
    """The text of a failed assertion."""
    lacks_grid_barrier: bool = False
    """Whether the kernel calls `grid.sync()` and was not launched cooperatively."""
    sites: tuple[Site, ...] = ()
    """The kernel's instructions, for messages that name a second one."""
    left_at: Site | None = None
    """For an "ended block": where the block returned whose shared memory was accessed."""


def describe(fault: Fault) -> KernelFault:
    """The error to raise."""
    where = f"kernel {fault.kernel}"
    if fault.site is not None:
        where += f", {fault.site.where()}"
    block = f"block {at.coordinates(fault.block, fault.grid)}"
    thread = f"thread {at.coordinates(32 * fault.warp + fault.lane, fault.threads)}"
    explanations: dict[str, Callable[[Fault], str]] = {
        "out of bounds": _access,
        "misaligned": _access,
        "read-only memory": _read_only,
        "barrier deadlock": _deadlock,
        "divergent barrier": lambda f: (
            f"barrier in divergent code: lanes {_lanes(f.lanes)} of warp {f.warp} do not reach it together with the "
            "other lanes (they took another path or have returned)"
        ),
        "divergent warp operation": _divergent_warp,
        "lane outside of its mask": _outside,
        "step limit": _step_limit,
        "copy size": _copy_size,
        "copies in flight": lambda f: (
            f"warp {f.warp} has {f.size_bytes} asynchronous copies in flight, more than there are words of shared "
            "memory; commit them (cp.async.commit_group) and wait for them (cp.async.wait_group) before issuing more"
        ),
        "no mbarrier": lambda f: (
            f"there is no mbarrier at byte offset {_shared_target(f, f.address & 0xFFFFFFFF)[2]:,} of "
            f"{_shared_target(f, f.address & 0xFFFFFFFF)[0]}; "
            "initialise it (mbarrier.init), and synchronise all threads before they use it"
        ),
        "mbarrier count": _mbarrier_count,
        "mbarrier bytes": lambda f: (
            f"an mbarrier counts at most {proxy.NO_BYTES - 1} bytes per phase, but more are expected or have arrived"
        ),
        "no tensor map": lambda f: (
            f"there is no tensor map of {f.size_bytes} dimensions at address {f.address:#x}; pass a TensorMap to the "
            "launch, and declare the parameter as 'const __grid_constant__ CUtensorMap' (in Numba: uint64, its address)"
        ),
        "bulk copies in flight": _bulk_copies_in_flight,
        "matrix descriptor": lambda f: (
            f"the matrix descriptor {f.address & (1 << 64) - 1:#018x} extends beyond shared memory, or has a base "
            "offset, which the emulator does not support"
        ),
        "products in flight": lambda f: (
            f"warp {f.warp} has more than {f.size_bytes} products or accumulators in flight; "
            "commit them (wgmma.commit_group) and wait for them (wgmma.wait_group)"
        ),
        "cluster rank": _cluster_rank,
        "cluster barrier": _cluster_barrier,
        "ended block": _ended_block,
        "own block": lambda f: (
            "the destination is in the block's own shared memory; it must be in another block of the cluster (use mapa)"
        ),
        "mbarrier elsewhere": lambda f: (
            f"the mbarrier is in block {f.cluster.blocks[f.address]}, but the destination is in block "
            f"{f.cluster.blocks[f.size_bytes]}; both must be in the same block, or with .cta_group::2 in one pair"
        ),
        "tensor map field": lambda f: tensor_faults.explain_field(f.address, f.size_bytes),
        "tensor coordinate": lambda f: tensor_faults.explain_coordinate(f.address, f.size_bytes),
        "reduction type": lambda f: (
            f"this reduction is not defined for tensors of {proxy.MAP_TYPES[f.address]}; the PTX ISA lists the types "
            "under cp.reduce.async.bulk"
        ),
        "trap": _trap,
        "assertion": lambda f: f.assertion,
        "no function": lambda f: (
            f"indirect call of address {f.address:#x}: there is no function with these parameters, or the function is "
            "already running (recursion)"
        ),
        "invalid free": lambda f: (
            f"free of address {f.address:#x}, which malloc did not return or which has already been freed"
        ),
        "heap overrun": lambda f: "malloc found its heap corrupted: a store went beyond the end of an allocation",
        "bad text": lambda f: f"printf reads address {f.address:#x}, where there is no memory",
        "no texture": lambda f: (
            f"there is no {'surface' if f.size_bytes else 'texture'} object with the handle {f.address:#x}; create "
            "it before the launch, and keep it until the kernel has ended"
        ),
        "stack overflow": lambda f: (
            f"recursive calls need more than the {STACK_BYTES // 1024} KiB of a thread's stack, which holds the "
            "registers and parameters of each call"
        ),
        "surface coordinate": _surface_coordinate,
        "register deadlock": _register_deadlock,
        "tensor memory allocation": lambda f: tensor_faults.explain_allocation(f.address, f.size_bytes, f.sites),
        "tensor memory address": lambda f: tensor_faults.explain_address(f.address, f.size_bytes),
        "instruction descriptor": lambda f: tensor_faults.explain_instruction(f.address, f.size_bytes),
        "tensor descriptor": lambda f: tensor_faults.explain_descriptor(f.address, f.size_bytes),
        "tensor operations in flight": lambda f: (
            f"the cluster has {f.size_bytes} operations of tensor cores in flight; commit them (tcgen05.commit) and "
            "wait for the mbarrier before others are issued"
        ),
        "lanes disagree": lambda f: (
            f"lanes {_lanes(f.lanes)} of warp {f.warp} give another value than lane 0; all lanes have to give the same "
            "address and number of columns"
        ),
        "no peer block": lambda f: (
            "it needs two blocks ('.cta_group::2'), whose ranks in the cluster differ in the last bit; launch it in "
            "clusters of an even number of blocks"
        ),
        "request after refusal": lambda f: (
            "a request to cancel a cluster after this block has observed that one was refused, which is undefined (PTX "
            "ISA 9.7.13.17); end the loop when clusterlaunchcontrol.query_cancel.is_canceled is false"
        ),
        "no response": lambda f: (
            "the operand is no response of clusterlaunchcontrol.try_cancel; wait for the mbarrier that counts its 16 "
            "bytes before it is loaded"
        ),
    }
    explain = explanations[fault.kind]
    place = block if fault.kind == "barrier deadlock" else f"{block}, {thread}"
    kind = "divergent barrier" if fault.kind == "divergent warp operation" else fault.kind
    return KernelFault(kind, f"{where}, {place}: {explain(fault)}")


def _access(fault: Fault) -> str:
    instruction = fault.site
    assert instruction is not None and instruction.memory is not None
    kind = fault.kind.replace(" ", "-")
    what = f"{kind} {instruction.memory.verb} of {_bytes(fault.size_bytes)}"
    name, size, offset = _target(fault)
    if name is None:
        hint = "a null pointer" if fault.address == 0 else "there is no buffer at this address"
        return f"{what} at address {fault.address:#x}; {hint}"
    if instruction.memory.in_global is None and not name.startswith("shared memory"):
        return f"{what} at byte offset {offset:,} of {name}; '{instruction.form}' accesses only shared memory"
    if fault.kind == "misaligned":
        return f"{what} at byte offset {offset:,} of {name}; the offset must be a multiple of {fault.size_bytes}"
    if name.startswith("shared memory of") and offset + fault.size_bytes <= size:
        return (
            f"{what} at byte offset {offset:,} of {name}; '{instruction.form}' accesses only the shared memory of its "
            "own block; ld, st, atom and red with .shared::cluster or generic addresses can access that of other blocks"
        )
    return f"{what} at byte offset {offset:,} of {name}, which has {_bytes(size)}"


def _bytes(count: int) -> str:
    return f"{count:,} byte{'s' if count != 1 else ''}"


def _surface_coordinate(fault: Fault) -> str:
    axis = ("x, in bytes,", "y", "z", "the layer")[fault.size_bytes // 256]
    return (
        f"access of {fault.size_bytes % 256} bytes outside the surface: {axis} is {fault.address}; "
        "check the coordinates first, or use cudaBoundaryModeZero"
    )


def _register_deadlock(fault: Fault) -> str:
    """`address` is the registers of all warps in the end, and `size_bytes` those of a thread at launch."""
    threads = 32 * (-(-math.prod(fault.threads) // 32))
    return (
        f"after it, the block's warps would have {fault.address:,} registers, but a launch with {fault.size_bytes} for "
        f"each of {threads} threads provides {fault.size_bytes * threads:,}; on a GPU, setmaxnreg would wait forever"
    )


def _trap(fault: Fault) -> str:
    if fault.lacks_grid_barrier:
        return "the kernel stopped itself (trap); grid.sync() needs a cooperative launch (Device: cooperative=True)"
    return "the kernel stopped itself (trap)"


def _read_only(fault: Fault) -> str:
    instruction = fault.site
    assert instruction is not None and instruction.memory is not None
    name, _, offset = _target(fault)
    what = f"byte offset {offset:,} of {name}, which is constant memory" if name else "a parameter of the kernel"
    return f"{instruction.memory.in_global} of {_bytes(fault.size_bytes)} at {what}; kernels may only read it"


def _target(fault: Fault) -> tuple[str | None, int, int]:
    """Name, size and byte offset of the object at or near the address."""
    window, offset = fault.address >> at.WINDOW_BITS, fault.address & at.OFFSET_MASK
    if window == at.SHARED_WINDOW:
        return _shared_target(fault, offset)
    if window == at.LOCAL_WINDOW:
        return "local memory", fault.local_bytes, offset
    offset -= at.BUFFER_START
    if 0 <= window - at.FIRST_BUFFER_WINDOW < len(fault.buffers):
        name, size = fault.buffers[window - at.FIRST_BUFFER_WINDOW]
        return f"buffer {name}", size, offset
    if 0 <= window - at.FIRST_VARIABLE_WINDOW < len(fault.variables):
        name, size = fault.variables[window - at.FIRST_VARIABLE_WINDOW]
        return f"variable {name}", size, offset
    return None, 0, 0


def _shared_target(fault: Fault, offset: int) -> tuple[str, int, int]:
    """Name, size and byte offset for an address in shared memory, which in a cluster identifies the block."""
    rank, within = offset >> at.RANK_SHIFT, offset & ((1 << at.RANK_SHIFT) - 1)
    if within >> (at.RANK_SHIFT - 1):  # just below the next block's memory
        rank, within = rank + 1, within - (1 << at.RANK_SHIFT)
    blocks = len(fault.cluster.blocks)
    if fault.cluster.tagged and blocks <= rank < 1 << (32 - at.RANK_SHIFT):
        return f"shared memory of rank {rank} (mapa), and ranks of a cluster of {blocks} begin at 0", 0, within
    if not fault.cluster.tagged or blocks == 1 or rank >= blocks:
        return "shared memory", fault.shared_bytes, offset - (1 << 32 if offset >> 31 else 0)
    owner = fault.cluster.blocks[rank]
    if owner == at.coordinates(fault.block, fault.grid):
        return "shared memory", fault.shared_bytes, within
    return f"shared memory of block {owner}", fault.shared_bytes, within


def _cluster_rank(fault: Fault) -> str:
    if len(fault.cluster.blocks) == 1:
        return f"there is no block {fault.address}: each block is a cluster of its own; launch the kernel with clusters"
    return f"there is no rank {fault.address} in a cluster of {len(fault.cluster.blocks)} blocks; ranks begin at 0"


def _cluster_barrier(fault: Fault) -> str:
    if fault.address:
        return (
            f"warp {fault.warp} waits at the cluster's barrier without having arrived; "
            "it must arrive first (barrier.cluster.arrive)"
        )
    return (
        f"warp {fault.warp} arrives at the cluster's barrier a second time without having waited; "
        "each arrival must be followed by a wait (barrier.cluster.wait)"
    )


def _ended_block(fault: Fault) -> str:
    instruction = fault.site
    assert instruction is not None and instruction.memory is not None
    name, _, offset = _target(fault)
    left = f", which has ended at {fault.left_at.where()}" if fault.left_at is not None else ", which has ended"
    return (
        f"{instruction.memory.verb} at byte offset {offset:,} of {name}{left}; its threads must not return before "
        "other blocks have finished with its shared memory (use barrier.cluster)"
    )


def _deadlock(fault: Fault) -> str:
    groups: dict[tuple[int, str], list[int]] = {}
    for rank, warp, place in fault.waiting:
        groups.setdefault((rank, place), []).append(warp)
    blocks = fault.cluster.blocks
    waits = "; ".join(
        _waiting(warps, f"of block {blocks[rank]} " if len(blocks) > 1 else "", place)
        for (rank, place), warps in groups.items()
    )
    hint = "every thread of the block must reach the same barrier"
    if any("barrier of the cluster" in place for _, _, place in fault.waiting):
        hint = "all warps of the cluster that have not returned must arrive there"
    if any("tensor memory" in place for _, _, place in fault.waiting):
        hint = "a warp must free tensor memory (tcgen05.dealloc)"
    if any("mbarrier" in place for _, _, place in fault.waiting):
        hint = "a thread must arrive there, or a copy must deliver its bytes"
    return f"barrier deadlock: {waits}; {hint}"


def waits_at_mbarrier(site: Site, place: int, parity: int, word: int, expected_by: Site | None) -> str:
    """Describe the mbarrier at which a warp waits; `word` is its contents.

    `expected_by` is the instruction that last set the expected bytes.
    """
    arrivals = word & ((1 << proxy.COUNT_BITS) - 1)
    missing = ((word >> proxy.BYTES_AT) & (2 * proxy.NO_BYTES - 1)) - proxy.NO_BYTES
    lacks = f"{arrivals} arrivals and {missing} bytes are missing"
    if missing < 0:
        expected = "expected" if expected_by is None else f"{expected_by.where()} expects"
        lacks = f"{arrivals} arrivals are missing and {-missing} bytes more have arrived than {expected}"
    elif missing and expected_by is not None:
        lacks += f" of those that {expected_by.where()} expects"
    return (
        f"wait at the mbarrier at byte offset {place:,} of shared memory for its phase of parity {parity}, "
        f"{site.where()}, where {lacks}"
    )


def _mbarrier_count(fault: Fault) -> str:
    if fault.site is not None and ".init" in fault.site.form:
        return f"an mbarrier cannot wait for {fault.size_bytes} arrivals; it takes 1 to {(1 << proxy.COUNT_BITS) - 1}"
    return (
        f"{fault.size_bytes} arrivals at an mbarrier whose phase waits for {fault.address - 1}; "
        "initialise it with the number of arrivals, or wait for the phase to complete before arriving again"
    )


def _bulk_copies_in_flight(fault: Fault) -> str:
    owner = "block" if len(fault.cluster.blocks) == 1 else "cluster"
    return f"the {owner} has {fault.size_bytes} bulk copies in flight; wait for some of them before issuing more"


def _waiting(warps: list[int], block: str, place: str) -> str:
    """What warps do, with a verb for one or for several: `place` begins with `wait` or `have`."""
    if len(warps) > 1:
        return f"warps {_ranges(warps)} {block}{place}"
    verb, _, rest = place.partition(" ")
    return f"warp {warps[0]} {block}{ {'wait': 'waits', 'have': 'has'}[verb] } {rest}"


def _ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _lanes(bits: int) -> str:
    return _ranges([lane for lane in range(at.LANES) if bits >> lane & 1])


def _divergent_warp(fault: Fault) -> str:
    instruction = fault.site
    assert instruction is not None
    if ".aligned" in instruction.form:
        return (
            f"'{instruction.form}' must be executed by all lanes of warp {fault.warp} together, but lanes "
            f"{_lanes(fault.lanes)} do not reach it (they took another path, have returned, or lie beyond the block's "
            "last thread)"
        )
    return (
        f"'{instruction.form}' names lanes {_lanes(fault.lanes)} of warp {fault.warp}, which are on another path; "
        "its mask may contain only lanes that reach the instruction together"
    )


def _outside(fault: Fault) -> str:
    instruction = fault.site
    assert instruction is not None
    return (
        f"'{instruction.form}' is executed by lanes {_lanes(fault.lanes)} of warp {fault.warp}, which are not in "
        f"its mask {fault.address:#010x}; the result is undefined"
    )


def _copy_size(fault: Fault) -> str:
    if fault.size_bytes == 0:
        return f"bulk copy of {fault.address} bytes; the size must be a multiple of 16"
    return (
        f"asynchronous copy of {fault.size_bytes} bytes that reads {fault.address} bytes of its source; "
        f"it may read at most {fault.size_bytes}, and fills the rest with zeros"
    )


_MOST_NAMED = 8
"""Number of places, and of blocks at each, that a message about a deadlock names."""


def _waits(fault: Fault, deadlock: Deadlock, owner: str) -> str:
    """Which blocks wait for each other, where, and for which others there is no room."""
    if deadlock.clusters == 1 and not deadlock.not_started:
        return f"the {owner} waits in a loop, and no other {owner} is left that could end the wait"
    who = "the {0} waits in a loop" if deadlock.clusters == 1 else f"{deadlock.clusters} {{0}}s wait in loops"
    where = []
    for place, blocks in [*deadlock.places.items()][:_MOST_NAMED]:
        named = ", ".join(str(at.coordinates(block, fault.grid)) for block in blocks[:_MOST_NAMED])
        more = f" and {len(blocks) - _MOST_NAMED} more" if len(blocks) > _MOST_NAMED else ""
        where.append(f"block{'s' * (len(blocks) > 1)} {named}{more} at {place}")
    more = f"; and at {len(deadlock.places) - _MOST_NAMED} more places" if len(deadlock.places) > _MOST_NAMED else ""
    rest = f"no other {owner} is left"
    if deadlock.not_started:
        rest = f"the other {deadlock.not_started:,} cannot start before one of them ends, because the GPU is full"
    return f"{who.format(owner)}, and none makes progress ({'; '.join(where)}{more}); {rest}"


def _step_limit(fault: Fault) -> str:
    """`size_bytes` is the instruction limit of the cluster's warps, if that limit was reached."""
    owner = "block" if len(fault.cluster.blocks) == 1 else "cluster"
    who = f"warp {fault.warp} was stopped after {fault.step_limit} instructions"
    if fault.size_bytes:
        who = f"the warps of the {owner} were stopped after {fault.size_bytes} instructions in total"
    if fault.deadlock is not None:
        who = _waits(fault, fault.deadlock, owner)
    return f"{who}; if this is not an endless loop, raise --step-limit (Device: step_limit)"
