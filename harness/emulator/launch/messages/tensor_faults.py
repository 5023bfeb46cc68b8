"""Explains faults of tensor maps, of tensor memory and of Blackwell's products, whose reasons the runtime defines."""

from __future__ import annotations

from collections.abc import Sequence

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.codegen.kernel_facts import Site
from harness.emulator.memory.tensor_memory import allocation
from harness.emulator.memory.tensor_memory import cells as memory
from harness.emulator.memory.tensor_memory import descriptors as products
from harness.model.tensor_map import PIECE_BYTES


def explain_allocation(detail: int, reason: int, sites: Sequence[Site]) -> str:
    """A bad `tcgen05.alloc`, `.dealloc`, or end of a block; `detail` depends on the reason."""
    if reason == allocation.IN_FLIGHT:
        return (
            f"tensor memory is freed while '{sites[detail].form}' at {sites[detail].where()} may still write there; "
            "commit it (tcgen05.commit) and wait for it at the mbarrier before"
        )
    if reason == allocation.NOT_A_SIZE:
        return f"an allocation of {detail} columns of tensor memory; it takes 32, 64, 128, 256 or 512"
    if reason == allocation.NO_PERMIT:
        return (
            "an allocation of tensor memory after the block gave up its right to allocate "
            "(tcgen05.relinquish_alloc_permit); allocate before"
        )
    if reason == allocation.NOT_ALLOCATED_HERE:
        return (
            f"no allocation of {detail >> 32} columns of tensor memory begins at address "
            f"{detail & 0xFFFFFFFF:#x}; free what tcgen05.alloc returned, with the same number of columns, once"
        )
    return (
        f"the block ends without freeing the {detail} columns of tensor memory allocated here; "
        "free them before it ends (tcgen05.dealloc)"
    )


def explain_address(address: int, reason: int) -> str:
    """A bad address in tensor memory."""
    where = f"lane {address >> tensor.LANE_SHIFT & 0xFFFF}, column {address & 0xFFFF} of tensor memory"
    if reason == memory.FOREIGN_LANES:
        return (
            f"an access at {where}; a warp reaches a quarter of the lanes, from lane 32 * (warp % 4) on, and the "
            "address has to begin there (shapes of 16 lanes: also 16 lanes later)"
        )
    if reason == memory.OUTSIDE:
        return f"an access from {where} reaches beyond the last of {tensor.COLUMNS} columns"
    if reason == memory.NOT_ALLOCATED:
        return f"an access from {where} reaches columns that are not allocated (tcgen05.alloc)"
    return (
        f"an operand at {where}; it has to begin in lane 0 (with M = 64: 0 or 16, the same for D and A; "
        "tcgen05.shift: a multiple of 32)"
    )


def explain_instruction(word: int, flaw: int) -> str:
    """A bad instruction descriptor (PTX ISA 9.7.16.4.2)."""
    rows, columns = (word >> 24 & 0x1F) << 4, (word >> 17 & 0x3F) << 3
    reasons = {
        products.SPARSE: "describes a sparse product, which is not emulated",
        products.TYPES: (
            f"has types {word >> 7 & 7} of A, {word >> 10 & 7} of B and {word >> 4 & 3} of D, which the kind of the "
            "product does not have"
        ),
        products.SHAPE: f"has M = {rows} and N = {columns}, which the kind of the product does not have",
        products.RESERVED: "sets bits that have to be 0 for the kind of the product",
        products.TRANSPOSED: f"transposes B of 8 bits; N = {columns} has to be a multiple of 16, in two blocks 32",
        products.SHIFTS_B: "has a maximum shift of B, which only '.ws' has",
        products.NARROW_TRANSPOSED: "transposes elements of less than 8 bits",
        products.SCALE_PLACE: (
            f"begins scales of A at byte {word >> 29 & 3} and of B at byte {word >> 4 & 3} of their words; with two "
            "scales a row it has to be 0 or 2, with four 0"
        ),
        products.SCALE_TYPE: "has scales of type ue4m3, which only '.kind::mxf4nvf4' with '.scale_vec::4X' has",
        products.LONG_K: "has K = 96, which sm_100 does not have",
        products.PAIR_OF_64: (
            "has M = 128 in two blocks with block scaling, which is not emulated: it is not documented where the "
            "scales of B are"
        ),
    }
    return f"the instruction descriptor {word & 0xFFFFFFFF:#010x} {reasons[flaw]}"


def explain_descriptor(descriptor: int, flaw: int) -> str:
    """A bad descriptor of an operand in shared memory (PTX ISA 9.7.16.4.1)."""
    reasons = {
        products.BEYOND: "reaches beyond shared memory",
        products.CONSTANT_BITS: "needs 0b001 in bits 46 to 48, and zeros in bits 53 to 60",
        products.SWIZZLE_MODE: (
            f"has swizzling mode {descriptor >> 61 & 7}; valid are 0, 2, 4 and 6, or for transposed operands of "
            "32 bits 1"
        ),
        products.ABSOLUTE: "has an absolute address as leading dimension, which sm_100 does not have",
    }
    return f"the descriptor {descriptor & (1 << 64) - 1:#018x} {reasons[flaw]}"


def waits_for_tensor_memory(request: int) -> str:
    """Describe what a warp waits for at `tcgen05.alloc`."""
    columns = request & (allocation.PAIR - 1)
    if request & allocation.PAIR:
        return f"wait for {columns} columns of tensor memory, and for an allocation of as many by the peer block"
    return f"wait for {columns} columns of tensor memory to be free"


def explain_coordinate(coordinate: int, divisor: int) -> str:
    """A box that begins where none may; `divisor` has to divide the coordinate, or is 0 if it may not be negative."""
    if not divisor:
        return (
            f"a stored box begins at coordinate {coordinate}; only loaded boxes may begin before the start of the "
            "tensor (on a GPU: an illegal instruction)"
        )
    requirement = f"the element must be a multiple of {divisor} for this type"
    if divisor <= PIECE_BYTES:
        byte = coordinate * PIECE_BYTES // divisor
        requirement = f"which is byte {byte}; the byte must be a multiple of {PIECE_BYTES}"
    begins = f"the box begins at element {coordinate} of the innermost dimension"
    return f"{begins}, {requirement} (on a GPU: an illegal instruction)"


def explain_field(value: int, number: int) -> str:
    """A field of a tensor map, `async_proxy_layout.MAP_FIELDS[number]`, that a kernel has written."""
    field = proxy.MAP_FIELDS[number]
    if field == "element_stride":
        return f"the tensor map has an element_stride of {value}; the emulator supports only 1"
    if field == "elemtype" and value:
        return f"a store to a tensor of type .{proxy.MAP_TYPES[value]}, which only loads have"
    return f"the kernel wrote a {field} into its tensor map that no GPU accepts (on a GPU: an illegal instruction)"
