"""LLVM functions that many opcodes share; a kernel includes those that it uses.

Rounding to a narrower format in two steps is exact if the first step rounds to odd: the last bit is set if the result
is inexact (Boldo and Melquiond, 'When double rounding is odd', 2005). Directed rounding and fused operations on 16-bit
floats are based on that, on every CPU alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from harness.emulator.codegen.functions.lane_atomics import LANE_ATOMICS
from harness.emulator.codegen.vector_ir_builder import (
    BITS,
    INTEGER,
    Prelude,
    VectorIRBuilder,
    splat,
    splat_float,
    vector,
)

V16, V32, VF, VD = (vector(t) for t in ("i16", "i32", "float", "double"))


def half_to_float(v: VectorIRBuilder, half: str) -> str:
    """Exact: rebiases the exponent by a multiplication, which handles subnormals as well."""
    wide = v.cast("zext", "i16", half, "i32")
    sign = v.binary("shl", "i32", v.binary("and", "i32", wide, splat("i32", 0x8000)), splat("i32", 16))
    shifted = v.binary("shl", "i32", v.binary("and", "i32", wide, splat("i32", 0x7FFF)), splat("i32", 13))
    scaled = v.binary("fmul", "float", v.cast("bitcast", "i32", shifted, "float"), splat_float("float", 2.0**112))
    bits = v.cast("bitcast", "float", scaled, "i32")
    special = v.compare("uge", "i32", shifted, splat("i32", 0x7C00 << 13))
    bits = v.select("i32", special, v.binary("or", "i32", shifted, splat("i32", 0x7F800000)), bits)
    return v.cast("bitcast", "i32", v.binary("or", "i32", bits, sign), "float")


def float_to_half(v: VectorIRBuilder, x: str) -> str:
    """Round to nearest even; NaN becomes 0x7FFF, as on a GPU."""
    bits = v.cast("bitcast", "float", x, "i32")
    sign = v.binary("and", "i32", v.binary("lshr", "i32", bits, splat("i32", 16)), splat("i32", 0x8000))
    magnitude = v.binary("and", "i32", bits, splat("i32", 0x7FFFFFFF))
    # Normal results: drop 13 bits with a carry that may extend into the exponent, up to infinity.
    odd = v.binary("and", "i32", v.binary("lshr", "i32", magnitude, splat("i32", 13)), splat("i32", 1))
    rounded = v.binary("add", "i32", v.binary("add", "i32", magnitude, splat("i32", 0xFFF)), odd)
    normal = v.binary("sub", "i32", v.binary("lshr", "i32", rounded, splat("i32", 13)), splat("i32", 112 << 10))
    # Subnormal results: the float adder itself rounds at 2^-24 when 0.5 is added.
    sum_bits = v.cast(
        "bitcast",
        "float",
        v.binary("fadd", "float", v.cast("bitcast", "i32", magnitude, "float"), splat_float("float", 0.5)),
        "i32",
    )
    subnormal = v.binary("sub", "i32", sum_bits, splat("i32", 0x3F000000))
    half = v.select("i32", v.compare("ult", "i32", magnitude, splat("i32", 0x38800000)), subnormal, normal)
    half = v.select("i32", v.compare("uge", "i32", magnitude, splat("i32", 0x477FF000)), splat("i32", 0x7C00), half)
    half = v.binary("or", "i32", half, sign)
    half = v.select("i32", v.compare("ugt", "i32", magnitude, splat("i32", 0x7F800000)), splat("i32", 0x7FFF), half)
    return v.cast("trunc", "i32", half, "i16")


def bfloat_to_float(v: VectorIRBuilder, x: str) -> str:
    """Exact: bfloat16 is the upper half of a float."""
    wide = v.binary("shl", "i32", v.cast("zext", "i16", x, "i32"), splat("i32", 16))
    return v.cast("bitcast", "i32", wide, "float")


def float_to_bfloat(v: VectorIRBuilder, x: str) -> str:
    """Round to nearest even; NaN becomes 0x7FFF, as on a GPU."""
    bits = v.cast("bitcast", "float", x, "i32")
    odd = v.binary("and", "i32", v.binary("lshr", "i32", bits, splat("i32", 16)), splat("i32", 1))
    rounded = v.binary("add", "i32", v.binary("add", "i32", bits, splat("i32", 0x7FFF)), odd)
    result = v.binary("lshr", "i32", rounded, splat("i32", 16))
    return v.cast("trunc", "i32", v.select("i32", _is_nan(v, "float", x), splat("i32", 0x7FFF), result), "i16")


def _is_nan(v: VectorIRBuilder, element: str, x: str) -> str:
    return v.compare("uno", element, x, x)


def _towards_zero_bits(v: VectorIRBuilder, wide: str) -> tuple[str, str, str]:
    """Bits of the float nearest to a double, that float as a double, and where it is exact."""
    near = v.cast("fptrunc", "double", wide, "float")
    back = v.cast("fpext", "float", near, "double")
    exact = v.compare("ueq", "double", back, wide)
    return v.cast("bitcast", "float", near, "i32"), back, exact


def _magnitude(v: VectorIRBuilder, x: str) -> str:
    return v.intrinsic("llvm.fabs.v32f64", VD, (VD, x))


def double_to_float_odd(v: VectorIRBuilder, wide: str) -> str:
    """Round to odd."""
    bits, back, exact = _towards_zero_bits(v, wide)
    beyond = v.compare("ogt", "double", _magnitude(v, back), _magnitude(v, wide))
    cut = v.select("i32", beyond, v.binary("sub", "i32", bits, splat("i32", 1)), bits)
    odd = v.binary("or", "i32", cut, splat("i32", 1))
    return v.cast("bitcast", "i32", v.select("i32", exact, bits, odd), "float")


def double_to_float_rz(v: VectorIRBuilder, wide: str) -> str:
    """Round towards zero."""
    bits, back, _ = _towards_zero_bits(v, wide)
    beyond = v.compare("ogt", "double", _magnitude(v, back), _magnitude(v, wide))
    return v.cast(
        "bitcast", "i32", v.select("i32", beyond, v.binary("sub", "i32", bits, splat("i32", 1)), bits), "float"
    )


def _step(v: VectorIRBuilder, bits: str, up: bool) -> str:
    """The next float above or below; zero steps to the smallest subnormal of that sign."""
    negative = v.compare("slt", "i32", bits, splat("i32", 0))
    zero = v.compare("eq", "i32", v.binary("shl", "i32", bits, splat("i32", 1)), splat("i32", 0))
    more, less = v.binary("add", "i32", bits, splat("i32", 1)), v.binary("sub", "i32", bits, splat("i32", 1))
    stepped = v.select("i32", negative, *((less, more) if up else (more, less)))
    return v.select("i32", zero, splat("i32", 1 if up else 0x80000001), stepped)


def _double_to_float_rm(v: VectorIRBuilder, wide: str) -> str:
    bits, back, _ = _towards_zero_bits(v, wide)
    above = v.compare("ogt", "double", back, wide)
    return v.cast("bitcast", "i32", v.select("i32", above, _step(v, bits, up=False), bits), "float")


def _double_to_float_rp(v: VectorIRBuilder, wide: str) -> str:
    bits, back, _ = _towards_zero_bits(v, wide)
    below = v.compare("olt", "double", back, wide)
    return v.cast("bitcast", "i32", v.select("i32", below, _step(v, bits, up=True), bits), "float")


_MODES = {"rz": 0, "rp": 2, "rm": 3}
"""Numbers of the rounding modes in `llvm.set.rounding`; 1 is to nearest."""
_OPERATIONS = {"fadd": 2, "fmul": 2, "fdiv": 2, "sqrt": 1, "fma": 3}


def _directed(operation: str, mode: str) -> Prelude:
    """An operation on double under another rounding mode of the CPU, since there is no wider format to compute in."""
    operands = _OPERATIONS[operation]

    def build(v: VectorIRBuilder, *values: str) -> str:
        name = f"llvm.experimental.constrained.{operation}.v32f64"
        v.declarations |= {
            "declare void @llvm.set.rounding(i32)",
            f"declare {VD} @{name}({', '.join([VD] * operands)}, metadata, metadata)",
        }
        v.do(f"call void @llvm.set.rounding(i32 {_MODES[mode]}) strictfp")
        arguments = ", ".join(f"{VD} {value}" for value in values)
        words = 'metadata !"round.dynamic", metadata !"fpexcept.strict"'
        result = v.op(f"call {VD} @{name}({arguments}, {words}) strictfp")
        v.do("call void @llvm.set.rounding(i32 1) strictfp")
        return result

    return Prelude((VD,) * operands, VD, build, "noinline strictfp")


def _add_odd(v: VectorIRBuilder, a: str, b: str) -> str:
    """A + b in double, rounded to odd: Knuth's TwoSum gives the error's sign."""
    total = v.binary("fadd", "double", a, b)
    of_b = v.binary("fsub", "double", total, a)
    of_a = v.binary("fsub", "double", total, of_b)
    error = v.binary("fadd", "double", v.binary("fsub", "double", a, of_a), v.binary("fsub", "double", b, of_b))
    bits = v.cast("bitcast", "double", total, "i64")
    even = v.compare("eq", "i64", v.binary("and", "i64", bits, splat("i64", 1)), splat("i64", 0))
    inexact = v.compare("one", "double", error, splat_float("double", 0.0))
    signs = v.binary("xor", "i64", bits, v.cast("bitcast", "double", error, "i64"))
    outward = v.compare("sge", "i64", signs, splat("i64", 0))
    moved = v.select(
        "i64",
        outward,
        v.binary("add", "i64", bits, splat("i64", 1)),
        v.binary("sub", "i64", bits, splat("i64", 1)),
    )
    fix = v.binary("and", "i1", even, inexact)
    return v.cast("bitcast", "i64", v.select("i64", fix, moved, bits), "double")


def _exp2(v: VectorIRBuilder, x: str) -> str:
    """2^x, correctly rounded except within 2^-50 of a tie: reduced to [-1/2, 1/2], Taylor series in double."""
    wide = v.cast("fpext", "float", x, "double")
    low, high = splat_float("double", -200.0), splat_float("double", 200.0)
    clamped = v.select("double", v.compare("olt", "double", wide, low), low, wide)
    clamped = v.select("double", v.compare("ogt", "double", clamped, high), high, clamped)
    clamped = v.select("double", _is_nan(v, "double", clamped), splat_float("double", 0.0), clamped)
    whole = v.intrinsic("llvm.rint.v32f64", VD, (VD, clamped))
    part = v.binary("fsub", "double", clamped, whole)
    result = splat_float("double", math.log(2.0) ** 13 / math.factorial(13))
    for power in range(12, -1, -1):
        coefficient = splat_float("double", math.log(2.0) ** power / math.factorial(power))
        result = v.intrinsic("llvm.fmuladd.v32f64", VD, (VD, result), (VD, part), (VD, coefficient))
    exponent = v.cast("fptosi", "double", whole, "i64")
    biased = v.binary("shl", "i64", v.binary("add", "i64", exponent, splat("i64", 1023)), splat("i64", 52))
    scaled = v.binary("fmul", "double", result, v.cast("bitcast", "i64", biased, "double"))
    near = v.cast("fptrunc", "double", scaled, "float")
    return v.select("float", _is_nan(v, "float", x), x, near)


def _through_double(function: str) -> Callable[[VectorIRBuilder, str], str]:
    """A C library function evaluated in double and rounded once: within 2^-28 ulp of the correctly rounded float."""

    def build(v: VectorIRBuilder, x: str) -> str:
        wide = v.cast("fpext", "float", x, "double")
        return v.cast("fptrunc", "double", v.intrinsic(f"llvm.{function}.v32f64", VD, (VD, wide)), "float")

    return build


def _rsqrt(v: VectorIRBuilder, x: str) -> str:
    wide = v.cast("fpext", "float", x, "double")
    root = v.intrinsic("llvm.sqrt.v32f64", VD, (VD, wide))
    return v.cast("fptrunc", "double", v.binary("fdiv", "double", splat_float("double", 1.0), root), "float")


def _flush(element: str, exponent_mask: int) -> Callable[[VectorIRBuilder, str], str]:
    """Subnormals become zeros of the same sign. For float see `WarpEmitter.flush`."""
    integer = INTEGER[BITS[element]]

    def build(v: VectorIRBuilder, x: str) -> str:
        bits = v.cast("bitcast", element, x, integer)
        exponent = v.binary("and", integer, bits, splat(integer, exponent_mask))
        sign = v.binary("and", integer, bits, splat(integer, 1 << (BITS[element] - 1)))
        tiny = v.compare("eq", integer, exponent, splat(integer, 0))
        return v.cast("bitcast", integer, v.select(integer, tiny, sign, bits), element)

    return build


def _permute_bytes(v: VectorIRBuilder, low: str, high: str, selector: str) -> str:
    """`prmt.b32` in its default mode: selects four bytes of eight, each optionally replaced by its sign."""
    both = v.binary(
        "or",
        "i64",
        v.cast("zext", "i32", low, "i64"),
        v.binary("shl", "i64", v.cast("zext", "i32", high, "i64"), splat("i64", 32)),
    )
    result = splat("i32", 0)
    for byte in range(4):
        nibble = v.binary("lshr", "i32", selector, splat("i32", 4 * byte))
        shift = v.binary("shl", "i32", v.binary("and", "i32", nibble, splat("i32", 7)), splat("i32", 3))
        picked = v.binary("lshr", "i64", both, v.cast("zext", "i32", shift, "i64"))
        picked = v.binary("and", "i32", v.cast("trunc", "i64", picked, "i32"), splat("i32", 0xFF))
        sign = v.compare("ne", "i32", v.binary("and", "i32", picked, splat("i32", 0x80)), splat("i32", 0))
        spread = v.compare("ne", "i32", v.binary("and", "i32", nibble, splat("i32", 8)), splat("i32", 0))
        replicated = v.select("i32", sign, splat("i32", 0xFF), splat("i32", 0))
        picked = v.select("i32", spread, replicated, picked)
        result = v.binary("or", "i32", result, v.binary("shl", "i32", picked, splat("i32", 8 * byte)))
    return result


def _transpose_matrix(v: VectorIRBuilder, matrix: str) -> str:
    """8 x 8 elements of 16 bits; lane 4 i + j holds elements 2 j and 2 j + 1 of row i."""
    halves = v.op(f"bitcast {V32} {matrix} to <64 x i16>")
    order = ", ".join(f"i32 {8 * (place % 8) + place // 8}" for place in range(64))
    turned = v.op(f"shufflevector <64 x i16> {halves}, <64 x i16> poison, <64 x i32> <{order}>")
    return v.op(f"bitcast <64 x i16> {turned} to {V32}")


PRELUDE: dict[str, Prelude] = {
    "half_to_float": Prelude((V16,), VF, half_to_float),
    "float_to_half": Prelude((VF,), V16, float_to_half),
    "bfloat_to_float": Prelude((V16,), VF, bfloat_to_float),
    "float_to_bfloat": Prelude((VF,), V16, float_to_bfloat),
    "double_to_float_odd": Prelude((VD,), VF, double_to_float_odd),
    "double_to_float_rz": Prelude((VD,), VF, double_to_float_rz),
    "double_to_float_rm": Prelude((VD,), VF, _double_to_float_rm),
    "double_to_float_rp": Prelude((VD,), VF, _double_to_float_rp),
    "add_odd": Prelude((VD, VD), VD, _add_odd),
    **{f"{name}_double_{mode}": _directed(name, mode) for name in _OPERATIONS for mode in _MODES},
    "exp2_float": Prelude((VF,), VF, _exp2),
    "log2_float": Prelude((VF,), VF, _through_double("log2")),
    "sin_float": Prelude((VF,), VF, _through_double("sin")),
    "cos_float": Prelude((VF,), VF, _through_double("cos")),
    "tanh_float": Prelude((VF,), VF, _through_double("tanh")),
    "rsqrt_float": Prelude((VF,), VF, _rsqrt),
    "flush_double": Prelude((VD,), VD, _flush("double", 0x7FF0000000000000)),
    "flush_half": Prelude((V16,), V16, _flush("i16", 0x7C00)),
    "flush_bfloat": Prelude((V16,), V16, _flush("i16", 0x7F80)),
    "transpose_matrix": Prelude((V32,), V32, _transpose_matrix),
    "permute_bytes": Prelude((V32, V32, V32), V32, _permute_bytes),
    **LANE_ATOMICS,
}
