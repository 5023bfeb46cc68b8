"""What a tensor core of Hopper computes for one element of D = A B + C, bit by bit.

    1. Products are exact. A product has the exponent that its factors' exponents add up to, whatever its significand,
       which lies in [1, 4); a subnormal has the exponent of the smallest normal number. Zeros have none.
    2. The largest exponent among all K products and the element of C is found.
    3. Significands are shifted to it and cut off, towards zero, 25 bits below it. What is left is added up exactly.
    4. The sum is rounded once: towards zero to float32, or to nearest even to float16. Beyond the largest exponent it is
       infinite, below the smallest subnormal it is cut off, and a zero is always +0.

K is the instruction's own: 4 or 8 for tf32, 8 or 16 for f16 and bf16 are one sum, not several. Any NaN, 0 times infinity,
and infinities of both signs give NaN, with all bits set but the sign.

Aligning and cutting off: Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer
Science 2021, for Volta to Ampere; Li et al., "FTTN: Feature-targeted testing for numerical properties of NVIDIA and AMD
matrix accelerators", CCGrid 2024, and Xie et al., "MMA-Sim", 2025, for Hopper's two more bits. That it is 25 bits and one
sum, how zeros, subnormals and overflows are treated, and that it holds for all forms, was found on an H200 with four
million elements: with 24 or 26 bits, or two sums of K / 2, between a tenth and four tenths of them are other numbers.
`tests/emulator/tensor_core.py` says the same in plain integers.

Here, an element of D has a lane, and `fragments.py` tells which lanes hold its factors. Significands are integers held in
float32; their products have 22 bits and are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.emulator.codegen.fragments import Fragment, MmaLayout, mma_layout
from harness.emulator.codegen.prelude import (
    PRELUDE,
    Prelude,
    double_to_float_odd,
    double_to_float_rz,
    float_to_half,
)
from harness.emulator.codegen.vocabulary import Vocabulary, float_from_bits, splat, splat_float, vector

VF, VI, VD = vector("float"), vector("i32"), vector("double")
KEPT_BITS = 25
"""How far below the largest exponent the addends are cut off."""
_NO_EXPONENT = -(1 << 12)
"""Of zeros: below all others, also where two of them are added."""
_LOWEST_EXPONENT = -200
"""Of a sum of zeros alone."""


@dataclass(frozen=True)
class Format:
    """A floating-point format: sign, exponent, fraction, and bits below them that are ignored."""

    exponent_bits: int
    fraction_bits: int
    ignored_bits: int = 0

    @property
    def bias(self) -> int:
        """Of the exponent."""
        return (1 << (self.exponent_bits - 1)) - 1


F16, BF16, TF32, F32 = Format(5, 10), Format(8, 7), Format(8, 10, ignored_bits=13), Format(8, 23)
FORMATS = {"f16": F16, "bf16": BF16, "tf32": TF32, "f32": F32}


@dataclass(frozen=True)
class _Number:
    """32 decoded numbers: significand * 2^(exponent - bias - fraction bits)."""

    significand: str
    """Float: an integer with the number's sign."""
    exponent: str
    """I32, biased."""
    bits: str
    """I32: the pattern, from bit 0 on."""
    special: str
    """I1: infinity or NaN."""


def _decode(v: Vocabulary, form: Format, bits: str) -> _Number:
    sign = v.binary("shl", "i32", bits, splat("i32", 31 - form.exponent_bits - form.fraction_bits))
    sign = v.binary("and", "i32", sign, splat("i32", 1 << 31))
    fraction = v.binary("and", "i32", bits, splat("i32", (1 << form.fraction_bits) - 1))
    largest = (1 << form.exponent_bits) - 1
    field = v.binary(
        "and", "i32", v.binary("lshr", "i32", bits, splat("i32", form.fraction_bits)), splat("i32", largest)
    )
    normal = v.compare("ne", "i32", field, splat("i32", 0))
    hidden = v.select("i32", normal, splat("i32", 1 << form.fraction_bits), splat("i32", 0))
    integer = v.binary("or", "i32", fraction, hidden)
    magnitude = v.cast("bitcast", "float", v.cast("sitofp", "i32", integer, "float"), "i32")
    significand = v.cast("bitcast", "i32", v.binary("or", "i32", magnitude, sign), "float")
    exponent = v.select("i32", normal, field, splat("i32", 1))
    zero = v.compare("eq", "i32", integer, splat("i32", 0))
    exponent = v.select("i32", zero, splat("i32", _NO_EXPONENT), exponent)
    return _Number(significand, exponent, bits, v.compare("eq", "i32", field, splat("i32", largest)))


def _class_of(v: Vocabulary, form: Format, number: _Number) -> str:
    """Float: infinities and NaN themselves, other numbers as -1, 0 or 1, so that sums of them stay finite."""
    fraction = v.binary("and", "i32", number.bits, splat("i32", (1 << form.fraction_bits) - 1))
    nan = v.compare("ne", "i32", fraction, splat("i32", 0))
    magnitude = v.select("i32", nan, splat("i32", 0x7FC00000), splat("i32", 0x7F800000))
    signed = v.cast("bitcast", "float", number.significand, "i32")
    zero = v.compare("eq", "i32", number.exponent, splat("i32", _NO_EXPONENT))
    finite = v.select("i32", zero, splat("i32", 0), splat("i32", 0x3F800000))
    magnitude = v.select("i32", number.special, magnitude, finite)
    sign = v.binary("and", "i32", signed, splat("i32", 1 << 31))
    return v.cast("bitcast", "i32", v.binary("or", "i32", magnitude, sign), "float")


def _elements(
    v: Vocabulary, fragment: Fragment, form: Format, registers: Sequence[str]
) -> dict[tuple[int, int], _Number]:
    """Decode all registers; by register and half."""
    found = {}
    for register, word in enumerate(registers):
        if fragment.packed == 1:
            found[register, 0] = _decode(v, form, _without_ignored(v, form, word))
        else:
            found[register, 0] = _decode(v, form, v.binary("and", "i32", word, splat("i32", 0xFFFF)))
            found[register, 1] = _decode(v, form, v.binary("lshr", "i32", word, splat("i32", 16)))
    return found


def _without_ignored(v: Vocabulary, form: Format, word: str) -> str:
    return v.binary("lshr", "i32", word, splat("i32", form.ignored_bits)) if form.ignored_bits else word


class _Operand:
    """A or B as the lanes that compute elements of D want it."""

    def __init__(
        self, v: Vocabulary, fragment: Fragment, values: dict[tuple[int, int], tuple[str, ...]], kinds: Sequence[str]
    ):
        self._v, self._fragment, self._values, self._kinds = v, fragment, values, kinds
        self._known: dict[tuple[object, ...], tuple[str, ...]] = {}

    def at(self, elements: Sequence[tuple[int, int]]) -> tuple[str, ...]:
        """For each lane one element, by row and column."""
        places = [self._fragment.place(*element) for element in elements]
        ((register, half),) = {(place.register, place.half) for place in places}
        lanes = tuple(place.lane for place in places)
        key = (register, half, lanes)
        if key not in self._known:
            order = ", ".join(f"i32 {lane}" for lane in lanes)
            self._known[key] = tuple(
                self._v.op(f"shufflevector {kind} {value}, {kind} poison, <32 x i32> <{order}>")
                for kind, value in zip(self._kinds, self._values[register, half])
            )
        return self._known[key]


def _places(layout: MmaLayout) -> list[tuple[int, int]]:
    """Registers and halves of D."""
    return [(register, half) for register in range(layout.c.registers) for half in range(layout.c.packed)]


def _addends(
    v: Vocabulary, layout: MmaLayout, a: _Operand, b: _Operand, register: int, half: int
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The K pairs of factors of the elements of D in one register."""
    elements = [layout.c.element(register, lane, half) for lane in range(32)]
    return [
        (a.at([(row, k) for row, _ in elements]), b.at([(k, column) for _, column in elements]))
        for k in range(layout.depth)
    ]


def _sum(
    v: Vocabulary, form: Format, accumulator: Format, factors: list[tuple[tuple[str, ...], tuple[str, ...]]], c: _Number
) -> str:
    """The exact sum of what is kept, as double."""
    exponents = [v.binary("add", "i32", x[1], y[1]) for x, y in factors]
    # From here on, exponents have twice the bias of the multiplicands.
    of_c = v.binary("add", "i32", c.exponent, splat("i32", 2 * form.bias - accumulator.bias))
    largest = _larger(v, of_c, splat("i32", _LOWEST_EXPONENT))
    for exponent in exponents:
        largest = _larger(v, largest, exponent)
    total = ""
    for (x, y), exponent in zip(factors, exponents):
        product = v.binary("fmul", "float", x[0], y[0])
        kept = _cut(v, product, v.binary("sub", "i32", exponent, largest), 2 * form.fraction_bits, 2)
        # K products below 4 stay below 2^31: significands end below 2.
        total = v.binary("add", "i32", total, kept) if total else kept
    kept = _cut(v, c.significand, v.binary("sub", "i32", of_c, largest), accumulator.fraction_bits, 1)
    wide = v.binary("fadd", "double", *(v.cast("sitofp", "i32", part, "double") for part in (total, kept)))
    unit = v.binary("add", "i32", largest, splat("i32", 1023 - 2 * form.bias - KEPT_BITS))
    power = v.binary("shl", "i64", v.cast("zext", "i32", unit, "i64"), splat("i64", 52))
    return v.binary("fmul", "double", wide, v.cast("bitcast", "i64", power, "double"))


def _larger(v: Vocabulary, x: str, y: str) -> str:
    return v.intrinsic("llvm.smax.v32i32", VI, (VI, x), (VI, y))


def _cut(v: Vocabulary, integer: str, exponent: str, fraction_bits: int, integer_bits: int) -> str:
    """I32: integer * 2^(exponent - fraction bits), cut off `KEPT_BITS` below 1. Exponents are 0 at most."""
    # What is shifted out as a whole is shifted no further, so that no factor is subnormal.
    nothing = 127 - fraction_bits - integer_bits - 1
    power = v.binary("add", "i32", exponent, splat("i32", 127 + KEPT_BITS - fraction_bits))
    power = v.binary("shl", "i32", _larger(v, power, splat("i32", nothing)), splat("i32", 23))
    scaled = v.binary("fmul", "float", integer, v.cast("bitcast", "i32", power, "float"))
    return v.cast("fptosi", "float", scaled, "i32")


def _to_float(v: Vocabulary, wide: str) -> str:
    """Towards zero, but infinite from 2^128 on; as i32."""
    near = v.cast("fptrunc", "double", wide, "float")
    beyond = v.compare(
        "oge", "double", v.intrinsic("llvm.fabs.v32f64", VD, (VD, wide)), splat_float("double", 2.0**128)
    )
    rounded = v.select("float", beyond, near, double_to_float_rz(v, wide))
    # -0 becomes +0, and nothing else changes.
    return v.cast("bitcast", "float", v.binary("fadd", "float", rounded, splat_float("float", 0.0)), "i32")


def _to_half(v: Vocabulary, wide: str) -> str:
    """To nearest even, never -0; as i32."""
    half = v.cast("zext", "i16", float_to_half(v, double_to_float_odd(v, wide)), "i32")
    return v.select("i32", v.compare("eq", "i32", half, splat("i32", 0x8000)), splat("i32", 0), half)


def _special_result(v: Vocabulary, accumulator: Format, total: str, finite: str) -> str:
    """The element of D where `total`, a sum of `_class_of`, is not finite; else `finite`."""
    if accumulator is F16:
        special = v.cast("zext", "i16", float_to_half(v, total), "i32")
    else:
        nan = v.compare("uno", "float", total, total)
        special = v.select("i32", nan, splat("i32", 0x7FFFFFFF), v.cast("bitcast", "float", total, "i32"))
    magnitude = v.intrinsic("llvm.fabs.v32f32", VF, (VF, total))
    is_finite = v.compare("olt", "float", magnitude, float_from_bits("float", 0x7F800000))
    return v.select("i32", is_finite, finite, special)


def _results_type(registers: int) -> str:
    return "{" + ", ".join([VI] * registers) + "}"


def _builder(form: Format, accumulator: Format, layout: MmaLayout) -> Callable[..., str]:
    def build(v: Vocabulary, *words: str) -> str:
        split = layout.a.registers, layout.a.registers + layout.b.registers
        a = _elements(v, layout.a, form, words[: split[0]])
        b = _elements(v, layout.b, form, words[split[0] : split[1]])
        c = _elements(v, layout.c, accumulator, words[split[1] :])
        kinds = (VF, VI)
        left, right = (
            _Operand(v, fragment, {key: (n.significand, n.exponent) for key, n in numbers.items()}, kinds)
            for fragment, numbers in ((layout.a, a), (layout.b, b))
        )
        rounded = _to_half if accumulator is F16 else _to_float
        finite = []
        for place in _places(layout):
            factors = _addends(v, layout, left, right, *place)
            finite.append(rounded(v, _sum(v, form, accumulator, factors, c[place])))
        return _with_specials(v, (form, accumulator, layout), (a, b, c), finite)

    return build


Numbers = dict[tuple[int, int], _Number]


def _with_specials(
    v: Vocabulary,
    shape: tuple[Format, Format, MmaLayout],
    operands: tuple[Numbers, Numbers, Numbers],
    finite: list[str],
) -> str:
    """The registers of D. Where an operand holds infinity or NaN, a branch finds the elements that they reach."""
    form, accumulator, layout = shape
    a, b, c = operands
    special = ""
    for number in (*a.values(), *b.values(), *c.values()):
        special = v.binary("or", "i1", special, number.special) if special else number.special
    before, mend, done = (v.fresh_label(word) for word in ("before", "special", "done"))
    v.do(f"br label %{before}")
    v.label(before)
    some = v.op(f"icmp ne i32 {v.bits_of(special)}, 0")
    v.do(f"br i1 {some}, label %{mend}, label %{done}")
    v.label(mend)
    left, right = (
        _Operand(v, fragment, {key: (_class_of(v, form, n),) for key, n in numbers.items()}, (VF,))
        for fragment, numbers in ((layout.a, a), (layout.b, b))
    )
    mended = []
    for place, result in zip(_places(layout), finite):
        total = _class_of(v, accumulator, c[place])
        for (x,), (y,) in _addends(v, layout, left, right, *place):
            total = v.binary("fadd", "float", total, v.binary("fmul", "float", x, y))
        mended.append(_special_result(v, accumulator, total, result))
    v.do(f"br label %{done}")
    v.label(done)
    results = [v.op(f"phi {VI} [ {x}, %{before} ], [ {y}, %{mend} ]") for x, y in zip(finite, mended)]
    if layout.c.packed == 2:
        pairs = zip(results[::2], results[1::2])
        results = [v.binary("or", "i32", low, v.binary("shl", "i32", high, splat("i32", 16))) for low, high in pairs]
    kind = _results_type(len(results))
    whole = "poison"
    for index, result in enumerate(results):
        whole = v.op(f"insertvalue {kind} {whole}, {VI} {result}, {index}")
    return whole


@dataclass(frozen=True)
class DotProduct:
    """One `mma.m16n8k*` as a function of registers."""

    name: str
    layout: MmaLayout
    prelude: Prelude

    @property
    def result(self) -> str:
        """LLVM type of D: a struct of registers."""
        return self.prelude.result


def _dot_product(kind: str, depth: int, accumulator: str) -> DotProduct:
    layout = mma_layout(depth, 32 if kind == "tf32" else 16, 16 if accumulator == "f16" else 32)
    registers = layout.a.registers + layout.b.registers + layout.c.registers
    build = _builder(FORMATS[kind], FORMATS[accumulator], layout)
    prelude = Prelude((VI,) * registers, _results_type(layout.c.registers), build)
    return DotProduct(f"mma_k{depth}_{kind}_{accumulator}", layout, prelude)


DOT_PRODUCTS = {
    (kind, depth, accumulator): _dot_product(kind, depth, accumulator)
    for kind, depths, accumulators in (
        ("f16", (8, 16), ("f32", "f16")),
        ("bf16", (8, 16), ("f32",)),
        ("tf32", (4, 8), ("f32",)),
    )
    for depth in depths
    for accumulator in accumulators
}
"""By type of the multiplicands, K, and type of the accumulators."""
PRELUDE.update({product.name: product.prelude for product in DOT_PRODUCTS.values()})
