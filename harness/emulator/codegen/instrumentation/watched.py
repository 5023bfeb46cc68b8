"""Emits calls of the sanitizer, in kernels that are compiled for it; others contain no trace of it."""

from __future__ import annotations

from collections.abc import Set

from harness.emulator.abi import layout as at
from harness.emulator.abi import sanitizer_layout as sanitizer
from harness.emulator.codegen.vector_ir_builder import vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Address, Imm, Instruction, Operand, Reg, Symbol
from harness.ptx.opcodes import ATOMIC, COPY_MAP, MemoryAccess

_ORDERS = {"relaxed", "acquire", "release", "acq_rel"}
_STRONG_WORDS = {"volatile", "mmio", *_ORDERS}
_CODES = {"load": sanitizer.LOAD, "store": sanitizer.STORE, "atomic": sanitizer.ATOMIC}
_NARROW_SCOPES = {"cta": sanitizer.BLOCK_SCOPE, "cluster": sanitizer.CLUSTER_SCOPE}


def watch_shared(lanes: WarpEmitter, instruction: Instruction, mask: str, shape: tuple[str, str]) -> None:
    """Report a completed load or an upcoming store at 32-bit offsets in ADDRESSES.

    `mask` is i64; `shape` as in `Access`.
    """
    if lanes.instruments.sanitizer:
        code = str(_access(instruction))
        _watch_array(lanes, instruction, mask, shape, is_wide=False)
        lanes.runtime("watch_shared", "%ctx", "%warp", lanes.number(lanes.site(instruction)), mask, *shape, code)


def watch_memory(lanes: WarpEmitter, instruction: Instruction, space: str, mask: str, shape: tuple[str, str]) -> None:
    """Report a completed load or an upcoming store whose addresses were translated to host addresses."""
    if lanes.instruments.sanitizer and space != "const":
        _watch_array(lanes, instruction, mask, shape, is_wide=True)
        watch_accesses(lanes, instruction, space, mask, shape)


def watch_accesses(lanes: WarpEmitter, instruction: Instruction, space: str, mask: str, shape: tuple[str, str]) -> None:
    """As `watch_memory`, for accesses that belong to no array of shared memory."""
    if lanes.instruments.sanitizer:
        where = str(at.SPACES[space])
        code = str(_access(instruction, in_global=space == "global"))
        lanes.runtime("watch_memory", "%ctx", "%warp", lanes.number(lanes.site(instruction)), where, mask, *shape, code)


def watch_copy(lanes: WarpEmitter, instruction: Instruction, offsets: str, mask: str, size_bytes: int) -> None:
    """Report an asynchronous copy of `size_bytes` to 32-bit `offsets`, before its issue. Overwrites ADDRESSES."""
    if lanes.instruments.sanitizer:
        lanes.warp_store(vector("i32"), offsets, at.ADDRESSES)
        _watch_array(lanes, instruction, mask, (str(size_bytes), "1"), is_wide=False)


def _watch_array(
    lanes: WarpEmitter, instruction: Instruction, mask: str, shape: tuple[str, str], is_wide: bool
) -> None:
    """If the address provably belongs to an array, check that the access is within it.

    `is_wide`: addresses have 64 bits.
    """
    address = next(operand for operand in instruction.operands if isinstance(operand, Address))
    base, storage = address.base, lanes.storage
    named = storage.arrays_of_registers.get(base.name) if isinstance(base, Reg) else None
    array = storage.shared_arrays.get(base.name if isinstance(base, Symbol) else named or "")
    if array is not None:
        size = lanes.number(int(shape[0]) * int(shape[1]))
        site = lanes.number(lanes.site(instruction))
        wide = str(int(is_wide))
        lanes.runtime("watch_array", "%ctx", "%warp", site, mask, size, wide, lanes.number(array))


def watch_warp_barrier(lanes: WarpEmitter, members: Operand) -> None:
    """Report `bar.warp.sync`."""
    if lanes.instruments.sanitizer:
        lanes.warp_store(vector("i32"), lanes.use(members, "i32"), at.ADDRESSES)
        lanes.runtime("watch_lanes", "%ctx", "%warp", lanes.widen(lanes.active_bits()))


def watch_members(lanes: WarpEmitter, instruction: Instruction, members: Operand) -> None:
    """Report an operation with a member mask. A literal mask is the same for all lanes."""
    if lanes.instruments.sanitizer and not isinstance(members, Imm):
        lanes.warp_store(vector("i32"), lanes.use(members, "i32"), at.HOSTS)
        site, mask = lanes.number(lanes.site(instruction)), lanes.widen(lanes.active_bits())
        lanes.runtime("watch_members", "%ctx", "%warp", site, mask)


def watch_sources(lanes: WarpEmitter, instruction: Instruction, members: Operand, sources: str) -> None:
    """Report a shuffle; `sources` is a vector of i32, with the lane itself if the source is outside its segment."""
    if lanes.instruments.sanitizer:
        lanes.warp_store(vector("i32"), sources, at.ADDRESSES)
        lanes.warp_store(vector("i32"), lanes.use(members, "i32"), at.HOSTS)
        site, mask = lanes.number(lanes.site(instruction)), lanes.widen(lanes.active_bits())
        lanes.runtime("watch_sources", "%ctx", "%warp", site, mask)


def watch_fence(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Report `membar` or `fence`."""
    if lanes.instruments.sanitizer:
        lanes.runtime("watch_fence", "%ctx", str(_scope(instruction)))
    if lanes.instruments.sanitizer and lanes.knows_clusters and "cta" not in instruction.modifiers:
        lanes.runtime("watch_cluster_fence", "%ctx")


def watch_grid_wait(lanes: WarpEmitter) -> None:
    """Report `griddepcontrol.wait`."""
    if lanes.instruments.sanitizer:
        lanes.runtime("watch_grid_wait", "%ctx")


def watch_proxy_fence(lanes: WarpEmitter) -> None:
    """Report `fence.proxy.async` for shared memory."""
    if lanes.instruments.sanitizer:
        lanes.runtime("watch_proxy_fence", "%ctx", lanes.widen(lanes.active_bits()))


def watch_modified_map(lanes: WarpEmitter, instruction: Instruction, mask: str) -> None:
    """Report a modification of tensor maps in global memory, whose addresses are in ADDRESSES."""
    if lanes.instruments.sanitizer:
        lanes.runtime("watch_modified_map", "%ctx", "%warp", lanes.number(lanes.site(instruction)), mask)


def watch_map_fence(lanes: WarpEmitter, map_address: Operand) -> None:
    """Report `fence.proxy.tensormap::generic.acquire` of the map at an address."""
    if lanes.instruments.sanitizer:
        lanes.warp_store(vector("i64"), lanes.address(map_address), at.ADDRESSES)
        lanes.runtime("watch_map_fence", "%ctx", "%warp", lanes.widen(lanes.active_bits()))


def is_strong(memory: MemoryAccess, modifiers: Set[str]) -> bool:
    """Whether an access with these modifiers is atomic, volatile, or has an order (PTX ISA, strong operations)."""
    return memory is ATOMIC or not modifiers.isdisjoint(_STRONG_WORDS)


def _scope(instruction: Instruction) -> int:
    """The scope of a fence or a strong access. Without one, it is the GPU's."""
    return next((_NARROW_SCOPES[word] for word in instruction.modifiers if word in _NARROW_SCOPES), sanitizer.GPU_SCOPE)


def _access(instruction: Instruction, in_global: bool = False) -> int:
    """What the sanitizer needs to know of an access.

    `volatile` accesses and atomics without an order are in code that is older than the memory model, such as NVIDIA's
    samples, which has no fence after such a read. So of these only a `cas`, which takes a lock, needs that fence.
    """
    words = set(instruction.modifiers)
    memory = instruction.facts.memory
    assert memory is not None
    code = _CODES[(in_global and memory.in_global) or memory.in_shared]
    if memory is COPY_MAP and not in_global:  # only the store is a release
        return code
    if not is_strong(memory, words):
        return code
    code |= _scope(instruction) << sanitizer.STRENGTH_IN_ACCESS
    if instruction.facts.writes:
        code |= sanitizer.ACQUIRES
        if "relaxed" in words or ("cas" in words and not words & {"acquire", "acq_rel"}):
            code |= sanitizer.AWAITS_FENCE
    if "exch" in words:
        code |= sanitizer.OVERWRITES
    if words & {"release", "acq_rel"}:
        code |= sanitizer.RELEASES
    elif words & _ORDERS:
        code |= sanitizer.NEEDS_FENCE
    return code
