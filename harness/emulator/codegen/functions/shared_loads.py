"""Emits loads of shared memory as runtime functions, optimized since inner loops use them.

Each lane's offset is in ADDRESSES, and the loaded value goes to DATA, in whole vectors. DATA is then read in whole
vectors, and a CPU forwards pending stores only to loads of data that was stored at once.
"""

from __future__ import annotations

from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.codegen.functions.memory_requests import data, pointer, slot
from harness.emulator.codegen.vector_ir_builder import BITS, VectorIRBuilder, module_ir, splat, vector

_SHAPES = (("i8", 1), ("i16", 1), ("i32", 1), ("i64", 1), ("i32", 2), ("i32", 4))
SHARED_LOADS = {(element, count): f"load_shared_{element}x{count}" for element, count in _SHAPES}
"""Function by element type and number of elements per lane. It takes context, warp, site and mask, and returns 1 on a
fault, else 0. Other shapes use `memory.copies.shared_load`."""


def shared_loads_ir() -> str:
    """All functions as LLVM IR."""
    functions: list[tuple[list[str], set[str]]] = []
    for (element, count), name in SHARED_LOADS.items():
        v = VectorIRBuilder()
        v.declarations.add("declare i64 @sandbox_shared_load(i64, i64, i64, i64, i64, i64)")
        _load(v, element, count)
        head = f"define i64 @sandbox_{name}(i64 %ctx, i64 %warp, i64 %site, i64 %mask) {{"
        functions.append(([head, *v.lines, "}"], v.declarations))
    return module_ir(functions)


def _load(v: VectorIRBuilder, element: str, count: int) -> None:
    item_bytes = BITS[element] // 8
    log_size = (count * item_bytes).bit_length() - 1
    mask = v.op("trunc i64 %mask to i32")
    addresses = pointer(v, "%warp", at.ADDRESSES)
    offsets = v.op(f"load <32 x i32>, ptr {addresses}, align 64")
    first = v.op(f"load i32, ptr {v.op(f'getelementptr i32, ptr {addresses}, i32 {v.first_lane(mask)}')}")
    differ = v.compare("ne", "i32", offsets, v.spread("i32", first))
    differ = v.op(f"and i32 {v.bits_of(differ)}, {mask}")
    size = slot(v, context.SHARED_SIZE)
    places = v.op(f"trunc i64 {v.op(f'lshr i64 {size}, {log_size}')} to i32")
    base = slot(v, context.SHARED_BASE)
    start = v.op(f"inttoptr i64 {base} to ptr")
    v.do(f"br i1 {v.op(f'icmp eq i32 {differ}, 0')}, label %uniform, label %apart")

    v.label("uniform")
    place = v.intrinsic("llvm.fshr.i32", "i32", ("i32", first), ("i32", first), ("i32", str(log_size)))
    v.do(f"br i1 {v.op(f'icmp ult i32 {place}, {places}')}, label %once, label %otherwise")
    v.label("once")
    for item in range(count):
        scalar = v.op(f"load {element}, ptr {_element(v, start, first, item * item_bytes)}, align {item_bytes}")
        v.do(f"store {vector(element)} {v.spread(element, scalar)}, ptr {data(v, element, item)}, align 32")
    v.do("ret i64 0")

    v.label("apart")
    own = v.select("i32", v.lanes_of(mask), offsets, v.spread("i32", first))
    v32, shift = vector("i32"), splat("i32", log_size)
    # After a rotation, misaligned offsets exceed the size of shared memory.
    rotated = v.intrinsic("llvm.fshr.v32i32", v32, (v32, own), (v32, own), (v32, shift))
    beyond = v.bits_of(v.compare("uge", "i32", rotated, v.spread("i32", places)))
    v.do(f"br i1 {v.op(f'icmp eq i32 {beyond}, 0')}, label %each, label %otherwise")
    v.label("each")
    scalars = [v.op(f"extractelement {v32} {own}, i32 {number}") for number in range(at.LANES)]
    for item in range(count):
        values = "poison"
        for number, offset in enumerate(scalars):
            place = _element(v, start, offset, item * item_bytes)
            scalar = v.op(f"load {element}, ptr {place}, align {item_bytes}")
            values = v.op(f"insertelement {vector(element)} {values}, {element} {scalar}, i32 {number}")
        v.do(f"store {vector(element)} {values}, ptr {data(v, element, item)}, align 32")
    v.do("ret i64 0")

    v.label("otherwise")
    call = f"call i64 @sandbox_shared_load(i64 %ctx, i64 %warp, i64 %site, i64 %mask, i64 {item_bytes}, i64 {count})"
    v.do(f"ret i64 {v.op(call)}")


def _element(v: VectorIRBuilder, start: str, offset: str, within: int) -> str:
    place = v.op(f"getelementptr i8, ptr {start}, i64 {v.widen(offset)}")
    return v.op(f"getelementptr i8, ptr {place}, i64 {within}") if within else place
