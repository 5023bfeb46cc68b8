"""Emits arithmetic on f32 and f64 (PTX ISA 9.7.3): IEEE, with the rounding and `.ftz` of the opcode.

Approximate opcodes are rounded correctly or nearly so, which is more precise than PTX requires, so only `.ftz` matters.
`.ftz` applies to the rounded result. An H200 applies it as if the exponent range were unlimited: it flushes the one
24-bit number just below the smallest normal one, which otherwise rounds up to that and is kept. The same holds for f16.
"""

from __future__ import annotations

import struct

from harness.emulator.codegen import literal_divisors, square_roots
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.flushed_registers import is_flushed
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.vector_ir_builder import FLOAT, INTEGER, float_from_bits, splat, splat_float, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Imm, Instruction, Operand
from harness.ptx.types import PtxType

ROUNDINGS = ("rn", "rz", "rm", "rp")
_NAN = 0x7FFFFFFF
"""The result of f32 min and max for NaN; those of f64 propagate the operand."""


class _FloatForm:
    """The modifiers that most opcodes of this family share; `allowed` names those that an opcode may have."""

    def __init__(self, instruction: Instruction, *allowed: str, types: str = "f32 f64") -> None:
        form = Form(instruction)
        self.kind: PtxType = form.type(types)
        self.element = FLOAT[self.kind.bits]
        self.ftz = form.flag("ftz")
        self.rounding = form.choice(*(word for word in ROUNDINGS if word in allowed))
        self.approximate = form.choice(*(word for word in ("approx", "full") if word in allowed))
        self.saturate = "sat" in allowed and form.flag("sat")
        self.nan = "NaN" in allowed and form.flag("NaN")
        form.end()
        if self.element == "double" and (self.saturate or self.nan or (self.ftz and not self.approximate)):
            raise instruction.unsupported("a modifier of f32 on f64")

    @property
    def is_directed(self) -> bool:
        """Whether the rounding mode is not to nearest."""
        return self.rounding not in (None, "rn")

    def use(self, lanes: WarpEmitter, operand: Operand) -> str:
        value = lanes.use(operand, self.element)
        if not self.ftz or self.element != "float" or (isinstance(operand, Imm) and is_flushed(operand)):
            return value
        return lanes.flush(value)

    def put(self, lanes: WarpEmitter, destination: Operand, value: str) -> None:
        if self.ftz and self.element == "float":
            value = lanes.flush(value)
        if self.saturate:
            value = saturate(lanes, self.element, value)
        lanes.put(destination, value, self.element)


def saturate(lanes: WarpEmitter, element: str, value: str) -> str:
    """Clamp to [0, 1]; NaN becomes 0."""
    zero, one = splat_float(element, 0.0), splat_float(element, 1.0)
    value = lanes.select(element, lanes.compare("ogt", element, value, zero), value, zero)
    return lanes.select(element, lanes.compare("ogt", element, value, one), one, value)


def negate(lanes: WarpEmitter, element: str, value: str) -> str:
    """Flip the sign bit, also of NaN."""
    return lanes.op(f"fneg {vector(element)} {value}")


def _directed(lanes: WarpEmitter, element: str, rounding: str, a: str, b: str | None, c: str | None) -> str:
    """Emit a * b + c, a * b, or a + c with directed rounding. For f32, computed in double and rounded to odd first."""
    if element == "double":
        name = "fma" if b is not None and c is not None else "fadd" if b is None else "fmul"
        return lanes.prelude(f"{name}_double_{rounding}", *(value for value in (a, b, c) if value is not None))
    wide_a = lanes.cast("fpext", "float", a, "double")
    if b is not None:
        wide_a = lanes.binary("fmul", "double", wide_a, lanes.cast("fpext", "float", b, "double"))
    total = wide_a
    if c is not None:
        wide_c = lanes.cast("fpext", "float", c, "double")
        total = lanes.prelude("add_odd", wide_a, wide_c)
        if rounding == "rm":
            total = _negative_zero_downwards(lanes, total, wide_a, wide_c)
    return lanes.prelude(f"double_to_float_{rounding}", total)


def _negative_zero_downwards(lanes: WarpEmitter, total: str, a: str, b: str) -> str:
    """When rounding down, x - x is -0, and only 0 + 0 is +0."""
    zero = lanes.compare("oeq", "double", total, splat_float("double", 0.0))
    bits = [lanes.cast("bitcast", "double", value, "i64") for value in (a, b)]
    sign = lanes.binary("and", "i64", lanes.binary("or", "i64", *bits), splat("i64", 1 << 63))
    return lanes.select("double", zero, lanes.cast("bitcast", "i64", sign, "double"), total)


def rounded(lanes: WarpEmitter, opcode: str, element: str, rounding: str | None, values: list[str]) -> str:
    """The sum, difference, product or a * b + c (`add`, `sub`, `mul`, `fma`, `mad`); None rounds to nearest."""
    if rounding in (None, "rn"):
        if opcode in ("fma", "mad"):
            return lanes.fma(element, *values)
        return lanes.binary("f" + opcode, element, *values)
    if opcode in ("add", "sub"):
        a, c = values
        return _directed(lanes, element, rounding, a, None, negate(lanes, element, c) if opcode == "sub" else c)
    a, b, *rest = values
    return _directed(lanes, element, rounding, a, b, rest[0] if rest else None)


@emits("add.float", "sub.float", "mul.float", "fma.float", "mad.float")
def arithmetic(lanes: WarpEmitter, instruction: Instruction) -> None:
    """add, sub, mul, fma; `mad` is fma on every emulated GPU."""
    form = _FloatForm(instruction, *ROUNDINGS, "sat")
    destination, *operands = instruction.operands
    values = [form.use(lanes, operand) for operand in operands]
    form.put(lanes, destination, rounded(lanes, instruction.opcode, form.element, form.rounding, values))


@emits("div.float")
@emits("rcp.float", "sqrt.float")
def div_rcp_sqrt(lanes: WarpEmitter, instruction: Instruction) -> None:
    """div, rcp, sqrt with the rounding of the opcode; approximate ones to nearest.

    An inexact quotient or root of floats is so far from every float that its double lies on the same side of it.
    """
    form = _FloatForm(instruction, *ROUNDINGS, "approx", "full")
    if not (form.rounding or form.approximate):
        raise instruction.unsupported("its rounding")
    if form.approximate and form.element == "double":
        _approximate_double(lanes, instruction, form)
        return
    element = "double" if form.is_directed else form.element
    values = [lanes.cast("fpext", form.element, form.use(lanes, o), element) for o in instruction.operands[1:]]
    if instruction.opcode == "rcp":
        values.insert(0, splat_float(element, 1.0))
    if form.is_directed and form.element == "double":
        name = "sqrt" if instruction.opcode == "sqrt" else "fdiv"
        result = lanes.prelude(f"{name}_double_{form.rounding}", *values)
    elif instruction.opcode == "sqrt":
        result = _square_root(lanes, element, values[0])
    elif (divisor := _literal_divisor(lanes, instruction, form)) is not None:
        result = literal_divisors.divide(lanes, values[0], divisor)
    else:
        result = lanes.binary("fdiv", element, values[0], values[1])
        if form.approximate == "approx" and instruction.opcode == "div":
            result = _divide_by_huge(lanes, values[0], values[1], result)
    if form.is_directed and form.element == "float":
        result = lanes.prelude(f"double_to_float_{form.rounding}", result)
    form.put(lanes, instruction.operands[0], result)


def _literal_divisor(lanes: WarpEmitter, instruction: Instruction, form: _FloatForm) -> float | None:
    """The divisor of a double, if it is a literal that need not be divided by."""
    divisor = instruction.operands[-1]
    if instruction.opcode != "div" or form.element != "double" or not lanes.cpu.multiplies_quotients:
        return None
    if not isinstance(divisor, Imm) or divisor.float_bits != 64:
        return None
    (value,) = struct.unpack("<d", divisor.value.to_bytes(8, "little"))
    return value if literal_divisors.is_suitable(value) else None


def _divide_by_huge(lanes: WarpEmitter, a: str, b: str, quotient: str) -> str:
    """div.approx is a * (1 / b), with 1 / b being 0 for |b| above 2**126."""
    kind = vector("float")
    magnitude = lanes.intrinsic("llvm.fabs.v32f32", kind, (kind, b))
    huge = lanes.compare("ogt", "float", magnitude, splat_float("float", 2.0**126))
    zero = lanes.intrinsic("llvm.copysign.v32f32", kind, (kind, splat_float("float", 0.0)), (kind, b))
    return lanes.select("float", huge, lanes.binary("fmul", "float", a, zero), quotient)


def _square_root(lanes: WarpEmitter, element: str, value: str) -> str:
    if element == "double" and lanes.cpu.multiplies_roots:
        return square_roots.square_root(lanes, value)
    kind = vector(element)
    return lanes.intrinsic(f"llvm.sqrt.v32f{64 if element == 'double' else 32}", kind, (kind, value))


def _approximate_double(lanes: WarpEmitter, instruction: Instruction, form: _FloatForm) -> None:
    """Emit rcp and rsqrt.approx.ftz.f64: computed from the upper word, result in the upper word."""
    if not form.ftz or instruction.opcode not in ("rcp", "rsqrt"):
        raise instruction.unsupported()
    upper = splat("i64", 0xFFFFFFFF << 32)
    bits = lanes.prelude("flush_double", lanes.use(instruction.operands[1], "double"))
    bits = lanes.binary("and", "i64", lanes.cast("bitcast", "double", bits, "i64"), upper)
    value = lanes.cast("bitcast", "i64", bits, "double")
    if instruction.opcode == "rsqrt":
        value = _square_root(lanes, "double", value)
    value = lanes.prelude("flush_double", lanes.binary("fdiv", "double", splat_float("double", 1.0), value))
    result = lanes.binary("and", "i64", lanes.cast("bitcast", "double", value, "i64"), upper)
    nan = lanes.compare("uno", "double", value, value)
    result = lanes.select("i64", nan, splat("i64", 0x7FFFFFFF << 32), result)
    lanes.put(instruction.operands[0], result, "i64")


_FUNCTIONS = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh", "rsqrt": "rsqrt"}


@emits("ex2.float", "lg2.float", "sin.float", "cos.float", "tanh.float", "rsqrt.float")
def transcendental(lanes: WarpEmitter, instruction: Instruction) -> None:
    """ex2, lg2, sin, cos, tanh, rsqrt: all `.approx`."""
    form = _FloatForm(instruction, "approx", types="f32 f64" if instruction.opcode == "rsqrt" else "f32")
    if form.approximate is None or (form.ftz and instruction.opcode == "tanh"):
        raise instruction.unsupported()
    if form.element == "double" and form.ftz:
        _approximate_double(lanes, instruction, form)
        return
    x = form.use(lanes, instruction.operands[1])
    if form.element == "float":
        result = lanes.prelude(f"{_FUNCTIONS[instruction.opcode]}_float", x)
    else:
        result = lanes.binary("fdiv", "double", splat_float("double", 1.0), _square_root(lanes, "double", x))
    form.put(lanes, instruction.operands[0], result)


@emits("neg.float", "abs.float")
def neg_abs(lanes: WarpEmitter, instruction: Instruction) -> None:
    """neg, abs."""
    form = _FloatForm(instruction)
    x = form.use(lanes, instruction.operands[1])
    if instruction.opcode == "neg":
        result = negate(lanes, form.element, x)
    else:
        kind = vector(form.element)
        result = lanes.intrinsic(f"llvm.fabs.v32f{form.kind.bits}", kind, (kind, x))
    form.put(lanes, instruction.operands[0], result)


def extreme(lanes: WarpEmitter, opcode: str, element: str, x: str, y: str, nan: bool) -> str:
    """The min or max: numbers take precedence over NaN (with `nan`, NaN over numbers), and -0 is less than +0."""
    integer = INTEGER[32 if element == "float" else 64]
    x_bits = lanes.cast("bitcast", element, x, integer)
    # Equal values differ only in the sign of zeros, and their bit patterns compare like signed integers.
    smaller_bits = lanes.compare("slt", integer, x_bits, lanes.cast("bitcast", element, y, integer))
    equal = lanes.compare("oeq", element, x, y)
    less = lanes.compare("olt", element, x, y)
    first = lanes.select("i1", equal, smaller_bits, less)
    if opcode == "max":
        greater = lanes.compare("ogt", element, x, y)
        first = lanes.select("i1", equal, lanes.binary("xor", "i1", smaller_bits, splat("i1", 1)), greater)
    result = lanes.select(element, first, x, y)
    x_nan, y_nan = lanes.compare("uno", element, x, x), lanes.compare("uno", element, y, y)
    if not nan:
        result = lanes.select(element, y_nan, x, lanes.select(element, x_nan, y, result))
    if element == "double":
        return result
    canonical = lanes.binary("or" if nan else "and", "i1", x_nan, y_nan)
    return lanes.select(element, canonical, float_from_bits(element, _NAN), result)


@emits("min.float", "max.float")
def min_max(lanes: WarpEmitter, instruction: Instruction) -> None:
    """min, max, of two or three operands."""
    form = _FloatForm(instruction, "NaN")
    values = [form.use(lanes, o) for o in instruction.operands[1:]]
    if len(values) > 2 and form.element == "double":
        raise instruction.unsupported("three operands of f64")
    result = values[0]
    for value in values[1:]:
        result = extreme(lanes, instruction.opcode, form.element, result, value, form.nan)
    form.put(lanes, instruction.operands[0], result)


@emits("copysign")
def copysign(lanes: WarpEmitter, instruction: Instruction) -> None:
    """copysign: the magnitude of b with the sign of a."""
    form = _FloatForm(instruction)
    if form.ftz:
        raise instruction.unsupported("modifier '.ftz'")
    integer = INTEGER[form.kind.bits]
    top = 1 << (form.kind.bits - 1)
    sign = lanes.binary("and", integer, lanes.use(instruction.operands[1], integer), splat(integer, top))
    rest = lanes.binary("and", integer, lanes.use(instruction.operands[2], integer), splat(integer, top - 1))
    lanes.put(instruction.operands[0], lanes.binary("or", integer, sign, rest), integer)


@emits("testp")
def testp(lanes: WarpEmitter, instruction: Instruction) -> None:
    """testp: the class of a float; zeros count as normal."""
    form = Form(instruction)
    test = form.choice("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind = form.type("f32 f64")
    form.end()
    integer, fraction = INTEGER[kind.bits], 23 if kind.bits == 32 else 52
    bits = lanes.use(instruction.operands[1], integer)
    magnitude = lanes.binary("and", integer, bits, splat(integer, (1 << (kind.bits - 1)) - 1))
    infinity = splat(integer, ((1 << (kind.bits - 1 - fraction)) - 1) << fraction)
    orders = {"finite": "ult", "infinite": "eq", "number": "ule", "notanumber": "ugt"}
    if test in orders:
        result = lanes.compare(orders[test], integer, magnitude, infinity)
    elif test is not None:
        # 0 - 1 is the largest unsigned integer, so one comparison identifies subnormals.
        less_one = lanes.binary("sub", integer, magnitude, splat(integer, 1))
        result = lanes.compare("ult", integer, less_one, splat(integer, (1 << fraction) - 1))
        if test == "normal":
            finite = lanes.compare("ult", integer, magnitude, infinity)
            result = lanes.select("i1", result, splat("i1", 0), finite)
    else:
        raise instruction.unsupported()
    lanes.put(instruction.operands[0], result, "i1")
