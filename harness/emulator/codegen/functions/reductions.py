"""Emits the element operations of `cp.reduce.async.bulk` as runtime functions (PTX ISA 9.7.9.25.4.2).

A function's argument is the address of two rows of 32 elements: the old values, then the new ones. The result replaces
the old values. The contents of unused lanes do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.emulator.abi.async_proxy_layout import MAP_TYPES, REDUCTION_ROW
from harness.emulator.codegen.functions.prelude import bfloat_to_float, float_to_bfloat, float_to_half, half_to_float
from harness.emulator.codegen.vector_ir_builder import VectorIRBuilder, module_ir, splat, splat_float, vector

_ELEMENTS = {"b32": "i32", "b64": "i64", "f32": "float", "f64": "double", "f16": "i16", "bf16": "i16"}
"""LLVM types in which values are combined; 16-bit floats are converted."""
_HALVES = {"f16": (half_to_float, float_to_half), "bf16": (bfloat_to_float, float_to_bfloat)}
_NANS = {"float": ("i32", 0x7FFFFFFF), "double": ("i64", 0xFFF8 << 48)}
"""Bit pattern of a sum that is NaN; in f64 only if neither summand is NaN."""
TYPES = {
    "add": "u32 s32 u64 f32 f64 f16 bf16",
    "min": "u32 s32 u64 s64 f16 bf16",
    "max": "u32 s32 u64 s64 f16 bf16",
    "inc": "u32",
    "dec": "u32",
    "and": "b32 b64",
    "or": "b32 b64",
    "xor": "b32 b64",
}
"""Supported types by operation."""
BETWEEN_BLOCKS = {
    "add": "u32 s32 u64", "min": "u32 s32", "max": "u32 s32", "inc": "u32", "dec": "u32", "and": "b32", "or": "b32",
    "xor": "b32",
}  # fmt: skip
"""Supported types by operation, for another block's shared memory."""
_TENSOR_TYPES = {
    "float32": ("f32",), "float16": ("f16",), "bfloat16": ("bf16",), "float64": ("f64",), "int32": ("s32", "b32"),
    "int64": ("s64",), "uint8": (), "uint16": (), "uint32": ("u32", "b32"), "uint64": ("u64", "b64"),
    "b4x16": (), "b4x16_p64": (), "b6x16_p32": (),
}  # fmt: skip
"""Names in `TYPES` for a tensor map's element type, in order of preference.  An H200 stops with an illegal instruction
at reductions of int64 other than min and max, though it supports them for int32."""


def function_of(operation: str, kind: str) -> str:
    """Name of a reduction function in the runtime."""
    return f"reduce_{operation}_{kind}"


def functions_by_tensor_type(operation: str) -> list[str | None]:
    """The function for each of `MAP_TYPES`; None if the operation does not support the type."""
    allowed = TYPES[operation].split()
    kinds = (next((kind for kind in _TENSOR_TYPES[name] if kind in allowed), None) for name in MAP_TYPES)
    return [None if kind is None else function_of(operation, kind) for kind in kinds]


REDUCTIONS = [function_of(operation, kind) for operation, kinds in TYPES.items() for kind in kinds.split()]


def reductions_ir() -> str:
    """All reduction functions as LLVM IR."""
    return module_ir(_function(operation, kind) for operation, kinds in TYPES.items() for kind in kinds.split())


def _function(operation: str, kind: str) -> tuple[Sequence[str], set[str]]:
    v = VectorIRBuilder()
    untyped = kind if kind in _ELEMENTS else f"b{kind[1:]}"
    element = _ELEMENTS[untyped]
    rows = []
    for place in (0, REDUCTION_ROW):
        address = v.op(f"inttoptr i64 {v.op(f'add i64 %argument, {place}')} to ptr")
        rows.append(v.op(f"load {vector(element)}, ptr {address}, align 16"))
    result = _combined(v, operation, kind, element, *rows)
    v.do(f"%target = inttoptr i64 %argument to ptr\n  store {vector(element)} {result}, ptr %target, align 16")
    head = f"define void @sandbox_{function_of(operation, kind)}(i64 %argument) {{"
    return [head, *v.lines, "  ret void", "}"], v.declarations


def _combined(v: VectorIRBuilder, operation: str, kind: str, element: str, old: str, new: str) -> str:
    if kind in _HALVES:
        widen, narrow = _HALVES[kind]
        x, y = widen(v, old), widen(v, new)
        if operation == "add":
            return narrow(v, v.binary("fadd", "float", x, y))
        return _extreme(v, operation, (old, new), (x, y))
    if operation == "add":
        if element in _NANS:
            return _sum(v, element, old, new)
        return v.binary("add", element, old, new)
    if operation in ("min", "max"):
        return v.intrinsic(
            f"llvm.{kind[0]}{operation}.v32{element}", vector(element), (vector(element), old), (vector(element), new)
        )
    zero, one = splat(element, 0), splat(element, 1)
    if operation == "inc":
        wraps = v.compare("uge", element, old, new)
        return v.select(element, wraps, zero, v.binary("add", element, old, one))
    if operation == "dec":
        above = v.binary("or", "i1", v.compare("eq", element, old, zero), v.compare("ugt", element, old, new))
        return v.select(element, above, new, v.binary("sub", element, old, one))
    return v.binary(operation, element, old, new)


def _sum(v: VectorIRBuilder, element: str, old: str, new: str) -> str:
    """Sum as on an H200: subnormals are not flushed, despite PTX's description of f32; NaN is as in `_NANS`."""
    word, nan = _NANS[element]
    total = v.binary("fadd", element, old, new)
    result = v.cast("bitcast", element, total, word)
    result = v.select(word, v.compare("uno", element, total, total), splat(word, nan), result)
    if element == "double":
        for value in (old, new):  # a NaN is kept, the new value's before the old one's
            bits = v.cast("bitcast", element, value, word)
            result = v.select(word, v.compare("uno", element, value, value), bits, result)
    return v.cast("bitcast", word, result, element)


def _extreme(v: VectorIRBuilder, operation: str, bits: tuple[str, str], floats: tuple[str, str]) -> str:
    """Like `min.f16`: numbers take precedence over NaN, and -0 is less than +0."""
    old, new = bits
    x, y = floats
    equal = v.binary("or" if operation == "min" else "and", "i16", old, new)
    is_old = v.compare("olt" if operation == "min" else "ogt", "float", x, y)
    is_equal = v.compare("oeq", "float", x, y)
    result = v.select("i16", is_equal, equal, v.select("i16", is_old, old, new))
    for number, other in ((x, new), (y, old)):
        nan = v.compare("uno", "float", number, splat_float("float", 0.0))
        result = v.select("i16", nan, other, result)
    both = v.compare("uno", "float", x, x)
    neither = v.binary("and", "i1", both, v.compare("uno", "float", y, y))
    return v.select("i16", neither, splat("i16", 0x7FFF), result)
