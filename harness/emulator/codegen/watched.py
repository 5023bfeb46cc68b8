"""Calls of the sanitizer, in kernels that are compiled for it; in others they leave no trace."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi import sanitizer_layout as sanitizer
from harness.emulator.codegen.lanes import Lanes
from harness.emulator.codegen.vocabulary import vector
from harness.ptx.instructions import Address, Imm, Instruction, Operand, Reg, Symbol
from harness.ptx.opcodes import ATOMIC

_STRONG = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}
_CODES = {"load": sanitizer.LOAD, "store": sanitizer.STORE, "atomic": sanitizer.ATOMIC}
_NARROW_SCOPES = {"cta", "cluster"}


def watch_shared(lanes: Lanes, instruction: Instruction, mask: str, shape: tuple[str, str]) -> None:
    """A load that ran, or a store that will, by 32-bit offsets in ADDRESSES. `mask` is i64; `shape`: see `Access`."""
    if lanes.instruments.sanitizer:
        code = str(_access(instruction))
        _watch_array(lanes, instruction, mask, shape, is_wide=False)
        lanes.runtime("watch_shared", "%ctx", "%warp", lanes.number(lanes.site(instruction)), mask, *shape, code)


def watch_memory(lanes: Lanes, instruction: Instruction, space: str, mask: str, shape: tuple[str, str]) -> None:
    """The same for addresses that were translated."""
    if lanes.instruments.sanitizer and space != "const":
        where = str(at.SPACES[space])
        code = str(_access(instruction))
        _watch_array(lanes, instruction, mask, shape, is_wide=True)
        lanes.runtime("watch_memory", "%ctx", "%warp", lanes.number(lanes.site(instruction)), where, mask, *shape, code)


def watch_copy(lanes: Lanes, instruction: Instruction, offsets: str, mask: str, size_bytes: int) -> None:
    """An asynchronous copy of so many bytes to 32-bit `offsets`, before it is issued; ADDRESSES is free for it."""
    if lanes.instruments.sanitizer:
        lanes.warp_store(vector("i32"), offsets, at.ADDRESSES)
        _watch_array(lanes, instruction, mask, (str(size_bytes), "1"), is_wide=False)


def _watch_array(lanes: Lanes, instruction: Instruction, mask: str, shape: tuple[str, str], is_wide: bool) -> None:
    """Where its address is proven to belong to an array, an access stays within that. `is_wide`: it is 64 bits."""
    address = next(operand for operand in instruction.operands if isinstance(operand, Address))
    base, storage = address.base, lanes.storage
    named = storage.arrays_of_registers.get(base.name) if isinstance(base, Reg) else None
    array = storage.shared_arrays.get(base.name if isinstance(base, Symbol) else named or "")
    if array is not None:
        size = lanes.number(int(shape[0]) * int(shape[1]))
        site = lanes.number(lanes.site(instruction))
        wide = str(int(is_wide))
        lanes.runtime("watch_array", "%ctx", "%warp", site, mask, size, wide, lanes.number(array))


def watch_warp_barrier(lanes: Lanes, members: Operand) -> None:
    """`bar.warp.sync`."""
    if lanes.instruments.sanitizer:
        lanes.warp_store(vector("i32"), lanes.use(members, "i32"), at.ADDRESSES)
        lanes.runtime("watch_lanes", "%ctx", "%warp", lanes.widen(lanes.active_bits()))


def watch_members(lanes: Lanes, instruction: Instruction, members: Operand) -> None:
    """An operation of lanes that name each other. A literal mask is the same for all."""
    if lanes.instruments.sanitizer and not isinstance(members, Imm):
        lanes.warp_store(vector("i32"), lanes.use(members, "i32"), at.HOSTS)
        site, mask = lanes.number(lanes.site(instruction)), lanes.widen(lanes.active_bits())
        lanes.runtime("watch_members", "%ctx", "%warp", site, mask)


def watch_sources(lanes: Lanes, instruction: Instruction, members: Operand, sources: str) -> None:
    """A shuffle; `sources` are 32 times i32, the lane itself where it is out of its segment."""
    if lanes.instruments.sanitizer:
        lanes.warp_store(vector("i32"), sources, at.ADDRESSES)
        lanes.warp_store(vector("i32"), lanes.use(members, "i32"), at.HOSTS)
        site, mask = lanes.number(lanes.site(instruction)), lanes.widen(lanes.active_bits())
        lanes.runtime("watch_sources", "%ctx", "%warp", site, mask)


def watch_fence(lanes: Lanes, instruction: Instruction) -> None:
    """`membar`, `fence`: what they order within a block is ordered anyway."""
    if lanes.instruments.sanitizer and not _NARROW_SCOPES & set(instruction.modifiers):
        lanes.runtime("watch_fence", "%ctx")
    if lanes.instruments.sanitizer and lanes.knows_clusters and "cta" not in instruction.modifiers:
        lanes.runtime("watch_cluster_fence", "%ctx")


def watch_proxy_fence(lanes: Lanes) -> None:
    """`fence.proxy.async`, of shared memory."""
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
