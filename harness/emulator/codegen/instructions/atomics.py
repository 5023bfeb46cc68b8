"""Emits atom and red (PTX ISA 9.7.13.10 ff.). Lanes with the same address take their turns in ascending order.

A kernel with atomics on global memory runs its blocks one after the other, so the result does not depend on the number
of CPU cores; within a block warps take turns. No host atomics are needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.functions.atomic_rounds import FIRST_OF_EACH, GATHERS, SCATTERS
from harness.emulator.codegen.functions.lane_atomics import COMPARED
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
    items = _elements(values[0])
    olds_to = _elements(destination) if destination is not None else ()
    if len(items) != elements or (destination is not None and len(olds_to) != elements):
        raise instruction.unsupported("its operands do not fit its form")
    addresses = generic_addresses(lanes, address, space) if space == "shared::cluster" else lanes.address(address)
    space = "generic" if space == "shared::cluster" else space.removesuffix("::cta")
    if elements > 1 or (kind.is_float and kind.bits == 16):
        olds = _in_rounds(lanes, instruction, space, kind, addresses, items)
    else:
        olds = [_one_by_one(lanes, instruction, space, operation, kind, addresses, values)]
    for register, old in zip(olds_to, olds):
        lanes.put(register, old, INTEGER[kind.total_bits])


def _is_vector_of(kind: PtxType, elements: int) -> bool:
    """Whether a vector atomic may have this many elements of the type (PTX ISA: .vec_16_bit, .vec_32_bit)."""
    return kind.is_float and kind.size_bytes <= 4 and kind.size_bytes * elements <= _WIDEST


def _elements(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _one_by_one(
    lanes: WarpEmitter,
    instruction: Instruction,
    space: str,
    operation: str,
    kind: PtxType,
    addresses: str,
    values: list[Operand],
) -> str:
    """Call one of `LANE_ATOMICS`. Returns the old values."""
    element = INTEGER[kind.total_bits]
    rows = [lanes.use(value, element) for value in values]
    flushes = "0"
    if operation in ("min", "max"):
        operation += ".s" if kind.kind == "s" else ".u"
    elif kind.is_float:
        operation += ".f"
        flushed = _flushed_lanes(lanes, space, addresses) if kind.bits == 32 else None
        if flushed is not None:
            operation, flushes = operation + ".ftz", lanes.bits_of(flushed)
    mask64 = translate(lanes, instruction, space, addresses, kind.size_bytes)
    watch_memory(lanes, instruction, space, mask64, (str(kind.size_bytes), "1"))
    for row, place in zip(reversed(rows), (at.DATA, COMPARED)):
        lanes.warp_store(vector(element), row, place)
    mask = lanes.op(f"trunc i64 {mask64} to i32")
    lanes.prelude(f"atomic.{operation}{kind.total_bits}", "%warp", mask, flushes)
    return lanes.warp_load(vector(element), at.DATA)


def _in_rounds(
    lanes: WarpEmitter, instruction: Instruction, space: str, kind: PtxType, addresses: str, items: Sequence[Operand]
) -> list[str]:
    """Add to floats of 16 bits, or vectors of floats. Returns the old values of each element, by lane.

    Loops until all active lanes are done: read, add, write. Each iteration is for the lowest lane of each address.
    """
    element = INTEGER[kind.total_bits]
    shape = (str(kind.size_bytes), str(len(items)))
    operands = [lanes.use(value, element) for value in items]
    flushed = _flushed_lanes(lanes, space, addresses) if kind.bits == 32 else None
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
    for index, (value, (so_far, with_lane)) in enumerate(zip(operands, olds)):
        place = at.DATA + index * at.LANES * kind.size_bytes
        old = lanes.warp_load(vector(element), place)
        lanes.warp_store(vector(element), _float_add(lanes, kind, element, old, value, flushed), place)
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
