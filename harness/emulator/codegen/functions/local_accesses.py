"""Emits accesses of local memory as runtime functions, for requests whose lanes all have the same offset.

Spills and arrays whose index is the same in all lanes are like this. Anything else, faults included, is left to
`memory.translation.translate_lanes`. Each lane's address is in ADDRESSES, and its data in DATA.
"""

from __future__ import annotations

from functools import partial

from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.codegen.functions.memory_requests import (
    SHAPES,
    add_counts,
    data,
    functions_ir,
    gathered,
    handled,
    pointer,
    population,
    scatter,
    slot,
)
from harness.emulator.codegen.vector_ir_builder import BITS, VectorIRBuilder, vector

LOCAL_LOADS = {(element, count): f"load_local_{element}x{count}" for element, count in SHAPES}
"""Function by element type and number of elements per lane. It takes context, warp, site, code of the state space and
mask, and returns 1 on a fault, else 0."""
LOCAL_STORES = {(element, count): f"store_local_{element}x{count}" for element, count in SHAPES}


def local_accesses_ir() -> str:
    """All functions as LLVM IR."""
    arguments = "i64 %ctx, i64 %warp, i64 %site, i64 %space, i64 %mask"
    return functions_ir(
        {
            f"i64 @sandbox_{name}({arguments})": partial(emit, shape=shape)
            for names, emit in ((LOCAL_LOADS, _load), (LOCAL_STORES, _store))
            for shape, name in names.items()
        }
    )


def _located(v: VectorIRBuilder, size_bytes: int) -> tuple[str, str]:
    """Check and count. Returns the address of lane 0's bytes, and the distances of the lanes' bytes from it.

    Continues at the label `otherwise`, and nothing is counted, if the request is not handled here.
    """
    mask = v.op("trunc i64 %mask to i32")
    words = v.op(f"load <64 x i32>, ptr {pointer(v, '%warp', at.ADDRESSES)}, align 64")
    order = ", ".join(f"i32 {2 * lane}" for lane in range(at.LANES))
    offsets = v.op(f"shufflevector <64 x i32> {words}, <64 x i32> poison, <32 x i32> <{order}>")
    first = v.op(f"getelementptr i64, ptr {pointer(v, '%warp', at.ADDRESSES)}, i32 {v.first_lane(mask)}")
    offset = v.op(f"load i32, ptr {first}")
    differ = v.op(f"and i32 {v.bits_of(v.compare('ne', 'i32', offsets, v.spread('i32', offset)))}, {mask}")
    is_uniform = v.op(f"and i1 {v.op(f'icmp ne i32 {mask}, 0')}, {v.op(f'icmp eq i32 {differ}, 0')}")
    size = slot(v, context.LOCAL_SIZE)
    end_of = v.op(f"add i64 {v.widen(offset)}, {size_bytes}")
    aligned = v.op(f"icmp eq i32 {v.op(f'and i32 {offset}, {size_bytes - 1}')}, 0")
    valid = v.op(f"and i1 {v.op(f'icmp sle i64 {end_of}, {size}')}, {aligned}")
    v.do(f"br i1 {v.op(f'and i1 {is_uniform}, {valid}')}, label %found, label %otherwise")
    v.label("found")
    requested = v.op(f"mul i64 {population(v, mask)}, {size_bytes}")
    # The same word of eight lanes is a sector.
    groups = v.op(f"icmp ne <4 x i8> {v.op(f'bitcast i32 {mask} to <4 x i8>')}, zeroinitializer")
    group_bits = v.op(f"zext i4 {v.op(f'bitcast <4 x i1> {groups} to i4')} to i32")
    sectors = v.op(f"mul i64 {population(v, group_bits)}, {max(1, size_bytes // 4)}")
    add_counts(v, slot(v, context.BUFFER_COUNT), requested, sectors, requested)
    numbers = ", ".join(f"i32 {lane}" for lane in range(at.LANES))
    pitch = v.spread("i32", v.op(f"trunc i64 {size} to i32"))
    return v.op(f"add i64 {slot(v, context.LOCAL_BASE)}, {v.widen(offset)}"), v.binary(
        "mul", "i32", f"<{numbers}>", pitch
    )


def _load(v: VectorIRBuilder, shape: tuple[str, int]) -> None:
    element, count = shape
    item_bytes = BITS[element] // 8
    base, distances = _located(v, item_bytes * count)
    for item in range(count):
        row = gathered(v, element, pointer(v, base, item * item_bytes), distances)
        v.do(f"store {vector(element)} {row}, ptr {data(v, element, item)}, align 32")
    v.do("ret i64 0")
    v.label("otherwise")
    v.do(f"ret i64 {handled(v, 'gather', element, count)}")


def _store(v: VectorIRBuilder, shape: tuple[str, int]) -> None:
    element, count = shape
    item_bytes = BITS[element] // 8
    base, distances = _located(v, item_bytes * count)
    active = v.lanes_of(v.op("trunc i64 %mask to i32"))
    for item in range(count):
        row = v.op(f"load {vector(element)}, ptr {data(v, element, item)}, align 32")
        scatter(v, element, row, pointer(v, base, item * item_bytes), distances, active)
    v.do("ret i64 0")
    v.label("otherwise")
    v.do(f"ret i64 {handled(v, 'scatter', element, count)}")
