"""Arithmetic on f32 and f64 (PTX ISA 9.7.3): IEEE, with the rounding and `.ftz` that the opcode says.

Approximate opcodes are computed correctly rounded, or within a hair of it; they promise less, so only `.ftz` matters.
"""

from __future__ import annotations

from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.lanes import Lanes
from harness.emulator.codegen.table import emits
from harness.emulator.codegen.vocabulary import FLOAT, splat, splat_float, vector
from harness.emulator.ptx.instructions import Instruction, Operand
from harness.emulator.ptx.types import PtxType

ROUNDINGS = ("rn", "rz", "rm", "rp")


class _FloatForm:
    """The modifiers that nearly all opcodes of this family share."""

    def __init__(self, instruction: Instruction) -> None:
        form = Form(instruction)
        self.kind: PtxType = form.type()
        if self.kind.bits not in FLOAT:
            raise instruction.unsupported(f"type '.{self.kind.name}'")
        self.element = FLOAT[self.kind.bits]
        self.ftz = form.flag("ftz")
        self.saturate = form.flag("sat")
        self.rounding = form.choice(*ROUNDINGS)
        self.approximate = form.choice("approx", "full")
        self.nan = form.flag("NaN")
        self.xorsign = form.flag("xorsign")
        self.absolute = form.flag("abs")
        form.end()

    def use(self, lanes: Lanes, operand: Operand) -> str:
        value = lanes.use(operand, self.element)
        return lanes.flush(value) if self.ftz and self.element == "float" else value

    def put(self, lanes: Lanes, destination: Operand, value: str) -> None:
        if self.ftz and self.element == "float":
            value = lanes.flush(value)
        if self.saturate:
            value = saturate(lanes, self.element, value)
        lanes.put(destination, value, self.element)


def saturate(lanes: Lanes, element: str, value: str) -> str:
    """Clamp to [0, 1]; NaN becomes 0."""
    zero, one = splat_float(element, 0.0), splat_float(element, 1.0)
    value = lanes.select(element, lanes.compare("ogt", element, value, zero), value, zero)
    return lanes.select(element, lanes.compare("ogt", element, value, one), one, value)


def negate(lanes: Lanes, element: str, value: str) -> str:
    """Flip the sign bit, of a NaN too."""
    return lanes.op(f"fneg {vector(element)} {value}")


def _fma(lanes: Lanes, element: str, a: str, b: str, c: str) -> str:
    kind = vector(element)
    name = "llvm.fma.v32f32" if element == "float" else "llvm.fma.v32f64"
    return lanes.intrinsic(name, kind, (kind, a), (kind, b), (kind, c))


def _directed(lanes: Lanes, instruction: Instruction, form: _FloatForm, a: str, b: str | None, c: str | None) -> str:
    """A * b + c, a * b, or a + c, in f32 with a directed rounding: rounded to odd in double first."""
    if form.element != "float":
        raise instruction.unsupported("directed rounding of f64")
    wide_a = lanes.cast("fpext", "float", a, "double")
    if b is not None:
        wide_a = lanes.binary("fmul", "double", wide_a, lanes.cast("fpext", "float", b, "double"))
    total = wide_a
    if c is not None:
        wide_c = lanes.cast("fpext", "float", c, "double")
        total = lanes.prelude("add_odd", wide_a, wide_c)
        if form.rounding == "rm":
            total = _negative_zero_downwards(lanes, total, wide_a, wide_c)
    return lanes.prelude(f"double_to_float_{form.rounding}", total)


def _negative_zero_downwards(lanes: Lanes, total: str, a: str, b: str) -> str:
    """Rounding down, x - x is -0 and only 0 + 0 is +0."""
    zero = lanes.compare("oeq", "double", total, splat_float("double", 0.0))
    bits = [lanes.cast("bitcast", "double", value, "i64") for value in (a, b)]
    sign = lanes.binary("and", "i64", lanes.binary("or", "i64", *bits), splat("i64", 1 << 63))
    return lanes.select("double", zero, lanes.cast("bitcast", "i64", sign, "double"), total)


@emits("add.float", "sub.float")
def add_sub(lanes: Lanes, instruction: Instruction) -> None:
    """add, sub."""
    form = _FloatForm(instruction)
    destination, a, b = instruction.operands
    x, y = form.use(lanes, a), form.use(lanes, b)
    if form.rounding in (None, "rn"):
        result = lanes.binary("f" + instruction.opcode, form.element, x, y)
    else:
        y = negate(lanes, form.element, y) if instruction.opcode == "sub" else y
        result = _directed(lanes, instruction, form, x, None, y)
    form.put(lanes, destination, result)


@emits("mul.float")
def mul(lanes: Lanes, instruction: Instruction) -> None:
    """Mul."""
    form = _FloatForm(instruction)
    destination, a, b = instruction.operands
    x, y = form.use(lanes, a), form.use(lanes, b)
    if form.rounding in (None, "rn"):
        result = lanes.binary("fmul", form.element, x, y)
    else:
        result = _directed(lanes, instruction, form, x, y, None)
    form.put(lanes, destination, result)


@emits("fma.float", "mad.float")
def fma(lanes: Lanes, instruction: Instruction) -> None:
    """fma; `mad` is the same on every GPU that we emulate."""
    form = _FloatForm(instruction)
    destination, a, b, c = instruction.operands
    x, y, z = (form.use(lanes, o) for o in (a, b, c))
    if form.rounding in (None, "rn"):
        result = _fma(lanes, form.element, x, y, z)
    else:
        result = _directed(lanes, instruction, form, x, y, z)
    form.put(lanes, destination, result)


def _nearest_only(instruction: Instruction, form: _FloatForm) -> None:
    if form.rounding not in (None, "rn"):
        raise instruction.unsupported("directed rounding")


@emits("div.float", "rcp.float", "sqrt.float")
def div_rcp_sqrt(lanes: Lanes, instruction: Instruction) -> None:
    """div, rcp, sqrt: rounded to nearest, approximate or not."""
    form = _FloatForm(instruction)
    _nearest_only(instruction, form)
    x = form.use(lanes, instruction.operands[1])
    kind = vector(form.element)
    if instruction.opcode == "sqrt":
        result = lanes.intrinsic(f"llvm.sqrt.v32f{form.kind.bits}", kind, (kind, x))
    elif instruction.opcode == "rcp":
        result = lanes.binary("fdiv", form.element, splat_float(form.element, 1.0), x)
    else:
        result = lanes.binary("fdiv", form.element, x, form.use(lanes, instruction.operands[2]))
    form.put(lanes, instruction.operands[0], result)


_FUNCTIONS = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh", "rsqrt": "rsqrt"}


@emits("ex2.float", "lg2.float", "sin.float", "cos.float", "tanh.float", "rsqrt.float")
def transcendental(lanes: Lanes, instruction: Instruction) -> None:
    """ex2, lg2, sin, cos, tanh, rsqrt: all `.approx`."""
    form = _FloatForm(instruction)
    x = form.use(lanes, instruction.operands[1])
    if form.element == "float":
        result = lanes.prelude(f"{_FUNCTIONS[instruction.opcode]}_float", x)
    elif instruction.opcode == "rsqrt":
        root = lanes.intrinsic("llvm.sqrt.v32f64", "<32 x double>", ("<32 x double>", x))
        result = lanes.binary("fdiv", "double", splat_float("double", 1.0), root)
    else:
        raise instruction.unsupported()
    form.put(lanes, instruction.operands[0], result)


@emits("neg.float", "abs.float")
def neg_abs(lanes: Lanes, instruction: Instruction) -> None:
    """neg, abs."""
    form = _FloatForm(instruction)
    x = form.use(lanes, instruction.operands[1])
    if instruction.opcode == "neg":
        result = negate(lanes, form.element, x)
    else:
        kind = vector(form.element)
        result = lanes.intrinsic(f"llvm.fabs.v32f{form.kind.bits}", kind, (kind, x))
    form.put(lanes, instruction.operands[0], result)


def extreme(lanes: Lanes, opcode: str, element: str, x: str, y: str, nan: bool) -> str:
    """Min or max: a NaN loses against a number (with `nan` it wins), and -0 is less than +0."""
    integer = "i32" if element == "float" else "i64"
    x_bits = lanes.cast("bitcast", element, x, integer)
    # With equal values only the zeros' signs differ, and their bits compare like signed integers.
    smaller_bits = lanes.compare("slt", integer, x_bits, lanes.cast("bitcast", element, y, integer))
    equal = lanes.compare("oeq", element, x, y)
    less = lanes.compare("olt", element, x, y)
    first = lanes.select("i1", equal, smaller_bits, less)
    if opcode == "max":
        greater = lanes.compare("ogt", element, x, y)
        first = lanes.select("i1", equal, lanes.binary("xor", "i1", smaller_bits, splat("i1", 1)), greater)
    result = lanes.select(element, first, x, y)
    x_nan, y_nan = lanes.compare("uno", element, x, x), lanes.compare("uno", element, y, y)
    if nan:
        return lanes.select(element, x_nan, x, lanes.select(element, y_nan, y, result))
    return lanes.select(element, y_nan, x, lanes.select(element, x_nan, y, result))


@emits("min.float", "max.float")
def min_max(lanes: Lanes, instruction: Instruction) -> None:
    """min, max, of two or three operands."""
    form = _FloatForm(instruction)
    if form.xorsign:
        raise instruction.unsupported("modifier '.xorsign'")
    values = [form.use(lanes, o) for o in instruction.operands[1:]]
    result = values[0]
    for value in values[1:]:
        result = extreme(lanes, instruction.opcode, form.element, result, value, form.nan)
    form.put(lanes, instruction.operands[0], result)


@emits("copysign")
def copysign(lanes: Lanes, instruction: Instruction) -> None:
    """The magnitude of b with the sign of a."""
    form = _FloatForm(instruction)
    integer = "i32" if form.element == "float" else "i64"
    top = 1 << (form.kind.bits - 1)
    sign = lanes.binary("and", integer, lanes.use(instruction.operands[1], integer), splat(integer, top))
    rest = lanes.binary("and", integer, lanes.use(instruction.operands[2], integer), splat(integer, top - 1))
    lanes.put(instruction.operands[0], lanes.binary("or", integer, sign, rest), integer)


@emits("testp")
def testp(lanes: Lanes, instruction: Instruction) -> None:
    """Which kind of float it is."""
    form = Form(instruction)
    test = form.choice("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind = form.type()
    form.end()
    element, integer = FLOAT[kind.bits], f"i{kind.bits}"
    fraction = 23 if kind.bits == 32 else 52
    magnitude = lanes.binary(
        "and", integer, lanes.use(instruction.operands[1], integer), splat(integer, (1 << (kind.bits - 1)) - 1)
    )
    infinity, smallest = ((1 << (kind.bits - 1 - fraction)) - 1) << fraction, 1 << fraction
    below = lanes.compare("ult", integer, magnitude, splat(integer, infinity))
    normal = lanes.compare("uge", integer, magnitude, splat(integer, smallest))
    value = lanes.use(instruction.operands[1], element)
    if test == "finite":
        result = below
    elif test == "infinite":
        result = lanes.compare("eq", integer, magnitude, splat(integer, infinity))
    elif test in ("number", "notanumber"):
        result = lanes.compare("ord" if test == "number" else "uno", element, value, value)
    elif test == "normal":
        result = lanes.binary("and", "i1", below, normal)
    elif test == "subnormal":
        nonzero = lanes.compare("ne", integer, magnitude, splat(integer, 0))
        result = lanes.binary("and", "i1", nonzero, lanes.binary("xor", "i1", normal, splat("i1", 1)))
    else:
        raise instruction.unsupported()
    lanes.put(instruction.operands[0], result, "i1")
