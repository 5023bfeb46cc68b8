"""Emits atom and red (PTX ISA 9.7.13.10 ff.). Lanes with the same address take their turns in ascending order.

A kernel with atomics on global memory runs its blocks one after the other, so the result does not depend on the number
of CPU cores; within a block warps take turns. No host atomics are needed.
"""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.functions.atomic_rounds import FIRST_OF_EACH, GATHERS, SCATTERS
from harness.emulator.codegen.instructions.halves import from_float, to_float
from harness.emulator.codegen.instructions.memory import generic_addresses, translate
from harness.emulator.codegen.instrumentation.watched import watch_memory
from harness.emulator.codegen.vector_ir_builder import FLOAT, INTEGER, splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Address, Instruction, Operand, Vector
from harness.ptx.types import PtxType

_ORDERING = ("relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "noftz")
_WORDS = "b32 u32 s32 b64 u64 s64"
_TYPES = {
    "add": "u32 s32 u64 f32 f64 f16 f16x2 bf16 bf16x2",
    "min": "u32 s32 u64 s64",
    "max": "u32 s32 u64 s64",
    "and": _WORDS,
    "or": _WORDS,
    "xor": _WORDS,
    "exch": _WORDS,
    "cas": f"b16 {_WORDS}",
    "inc": "u32",
    "dec": "u32",
}
"""Supported types by operation."""
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_WIDEST = 16
"""Maximum bytes that a lane may access in one vector atomic: `.v4.f32`, `.v8.bf16`."""


@emits("atom")
@emits("red")
def atomic(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Emit atom, which returns the old value, or red, which returns nothing."""
    form = Form(instruction)
    for word in _ORDERING:
        form.flag(word)
    space = form.choice("global", "shared", "shared::cta", "shared::cluster") or "generic"
    operation = form.choice(*_TYPES)
    elements = _VECTORS.get(form.choice(*_VECTORS) or "", 1)
    kind = form.type(_TYPES.get(operation or "", ""))
    # Cache policies have no effect that a kernel can observe.
    has_policy = form.flag("L2::cache_hint")
    form.end()
    operands = list(instruction.operands[: len(instruction.operands) - has_policy])
    destination = operands.pop(0) if instruction.opcode == "atom" else None
    address, *values = operands
    no_such_form = (destination is None and operation in ("exch", "cas")) or (has_policy and operation == "cas")
    if operation is None or no_such_form or not isinstance(address, Address) or len(values) != 1 + (operation == "cas"):
        raise instruction.unsupported()
    if elements > 1 and not (operation == "add" and space in ("global", "generic") and _is_vector_of(kind, elements)):
        raise instruction.unsupported()
    items = [[item] for item in _elements(values[0])] if elements > 1 else [values]
    olds_to = _elements(destination) if elements > 1 and destination is not None else [destination]
    if len(items) != elements or (destination is not None and len(olds_to) != elements):
        raise instruction.unsupported("its operands do not fit its form")
    addresses = generic_addresses(lanes, address, space) if space == "shared::cluster" else lanes.address(address)
    space = "generic" if space == "shared::cluster" else space.removesuffix("::cta")
    olds = _in_rounds(lanes, instruction, space, operation, kind, addresses, items)
    for register, old in zip(olds_to, olds):
        if register is not None:
            lanes.put(register, old, INTEGER[kind.total_bits])


def _is_vector_of(kind: PtxType, elements: int) -> bool:
    """Whether a vector atomic may have this many elements of the type (PTX ISA: .vec_16_bit, .vec_32_bit)."""
    return kind.is_float and kind.size_bytes <= 4 and kind.size_bytes * elements <= _WIDEST


def _elements(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _in_rounds(
    lanes: WarpEmitter,
    instruction: Instruction,
    space: str,
    operation: str,
    kind: PtxType,
    addresses: str,
    items: list[list[Operand]],
) -> list[str]:
    """Loop until all active lanes are done: read, combine, write. Returns the old values of each element, by lane.

    Each iteration is for the lowest lane of each address.
    """
    element = INTEGER[kind.total_bits]
    shape = (str(kind.size_bytes), str(len(items)))
    operands = [[lanes.use(value, element) for value in values] for values in items]
    flushed = _flushed_lanes(lanes, space, addresses) if (operation, kind.name) == ("add", "f32") else None
    mask64 = translate(lanes, instruction, space, addresses, kind.size_bytes * len(items))
    watch_memory(lanes, instruction, space, mask64, shape)
    mask = lanes.op(f"trunc i64 {mask64} to i32")
    before, loop, after = (lanes.fresh_label(word) for word in ("before", "atomic", "after"))
    lanes.do(f"br label %{before}")
    lanes.label(before)
    lanes.do(f"br label %{loop}")
    lanes.label(loop)
    left, next_left = lanes.fresh_label("%left"), lanes.fresh_label("%left")
    olds = [(lanes.fresh_label("%olds"), lanes.fresh_label("%olds")) for _ in items]
    lanes.do(f"{left} = phi i32 [ {mask}, %{before} ], [ {next_left}, %{loop} ]")
    for so_far, with_lane in olds:
        lanes.do(f"{so_far} = phi {vector(element)} [ zeroinitializer, %{before} ], [ {with_lane}, %{loop} ]")
    chosen64 = lanes.runtime(FIRST_OF_EACH, "%warp", lanes.widen(left))
    chosen = lanes.op(f"trunc i64 {chosen64} to i32")
    if len(items) == 1:
        lanes.runtime(GATHERS[element], "%warp", chosen64)
    else:
        lanes.runtime("gather", "%warp", chosen64, *shape)
    for index, (values, (so_far, with_lane)) in enumerate(zip(operands, olds)):
        place = at.DATA + index * at.LANES * kind.size_bytes
        old = lanes.warp_load(vector(element), place)
        if kind.is_float and operation == "add":
            new = _float_add(lanes, kind, element, old, values[0], flushed)
        else:
            new = _combine(lanes, operation, kind, element, old, values)
        lanes.warp_store(vector(element), new, place)
        either = f"select <32 x i1> {lanes.lanes_of(chosen)}, {vector(element)} {old}, {vector(element)} {so_far}"
        lanes.do(f"{with_lane} = {either}")
    if len(items) == 1:
        lanes.runtime(SCATTERS[element], "%warp", chosen64)
    else:
        lanes.runtime("scatter", "%warp", chosen64, *shape)
    lanes.do(f"{next_left} = xor i32 {left}, {chosen}")
    again = lanes.op(f"icmp ne i32 {next_left}, 0")
    lanes.do(f"br i1 {again}, label %{loop}, label %{after}")
    lanes.label(after)
    return [with_lane for _, with_lane in olds]


def _combine(lanes: WarpEmitter, operation: str, kind: PtxType, element: str, old: str, values: list[str]) -> str:
    value = values[0]
    if operation == "exch":
        return value
    if operation == "cas":
        return lanes.select(element, lanes.compare("eq", element, old, value), values[1], old)
    if operation in ("add", "and", "or", "xor"):
        return lanes.binary(operation, element, old, value)
    if operation in ("min", "max"):
        order = ("s" if kind.kind == "s" else "u") + ("lt" if operation == "min" else "gt")
        return lanes.select(element, lanes.compare(order, element, old, value), old, value)
    if operation == "inc":
        wraps = lanes.compare("uge", element, old, value)
        return lanes.select(element, wraps, splat(element, 0), lanes.binary("add", element, old, splat(element, 1)))
    zero = lanes.compare("eq", element, old, splat(element, 0))
    above = lanes.compare("ugt", element, old, value)
    resets = lanes.binary("or", "i1", zero, above)
    return lanes.select(element, resets, value, lanes.binary("sub", element, old, splat(element, 1)))


def _flushed_lanes(lanes: WarpEmitter, space: str, addresses: str) -> str | None:
    """Mask of the lanes for which atom.add.f32 flushes subnormals: in global, not in shared memory (PTX ISA, atom)."""
    if space == "shared":
        return None
    window = lanes.binary("lshr", "i64", addresses, splat("i64", at.WINDOW_BITS))
    return lanes.compare("ne", "i64", window, splat("i64", at.SHARED_WINDOW))


def _float_add(lanes: WarpEmitter, kind: PtxType, element: str, old: str, value: str, flushed: str | None) -> str:
    if kind.bits >= 32:
        floating = FLOAT[kind.bits]
        x, y = (lanes.cast("bitcast", element, bits, floating) for bits in (old, value))
        total = lanes.binary("fadd", floating, x, y)
        if flushed is not None:
            without = lanes.flush(lanes.binary("fadd", floating, lanes.flush(x), lanes.flush(y)))
            total = lanes.select(floating, flushed, without, total)
        return lanes.cast("bitcast", floating, total, element)

    def half(index: int, bits: str) -> str:
        moved = lanes.binary("lshr", element, bits, splat(element, 16 * index)) if index else bits
        return to_float(lanes, kind, lanes.cast("trunc", element, moved, "i16"))

    result = splat(element, 0)
    for index in range(kind.packed):
        total = lanes.binary("fadd", "float", half(index, old), half(index, value))
        part = lanes.cast("zext", "i16", from_float(lanes, kind, total), element)
        part = lanes.binary("shl", element, part, splat(element, 16 * index)) if index else part
        result = lanes.binary("or", element, result, part)
    return result
