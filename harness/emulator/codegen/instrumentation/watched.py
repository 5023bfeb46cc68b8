"""Emits calls of the sanitizer, in kernels that are compiled for it; others contain no trace of it."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi import sanitizer_layout as sanitizer
from harness.emulator.codegen.vector_ir_builder import vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Address, Imm, Instruction, Operand, Reg, Symbol
from harness.ptx.opcodes import ATOMIC

_STRONG = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}
_CODES = {"load": sanitizer.LOAD, "store": sanitizer.STORE, "atomic": sanitizer.ATOMIC}
_NARROW_SCOPES = {"cta", "cluster"}


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
        where = str(at.SPACES[space])
        code = str(_access(instruction))
        _watch_array(lanes, instruction, mask, shape, is_wide=True)
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
    """Report `membar` or `fence`, which matters across blocks only."""
    if lanes.instruments.sanitizer and not _NARROW_SCOPES & set(instruction.modifiers):
        lanes.runtime("watch_fence", "%ctx")
    if lanes.instruments.sanitizer and lanes.knows_clusters and "cta" not in instruction.modifiers:
        lanes.runtime("watch_cluster_fence", "%ctx")


def watch_proxy_fence(lanes: WarpEmitter) -> None:
    """Report `fence.proxy.async` for shared memory."""
    if lanes.instruments.sanitizer:
        lanes.runtime("watch_proxy_fence", "%ctx", lanes.widen(lanes.active_bits()))


def _access(instruction: Instruction) -> int:
    words = set(instruction.modifiers)
    memory = instruction.facts.memory
    assert memory is not None
    code = _CODES[memory.in_shared]
    if memory is not ATOMIC and not words & _STRONG:
        return code
    code |= sanitizer.STRONG
    if instruction.facts.writes:
        code |= sanitizer.ACQUIRES
    if "exch" in words:
        code |= sanitizer.OVERWRITES
    if words & {"release", "acq_rel"} and not words & _NARROW_SCOPES:
        code |= sanitizer.RELEASES
    return code
