"""The arithmetic of a Hopper tensor core for one element of D = A B + C, bit by bit.

1. Products are exact. The exponent of a product is the sum of its factors' exponents, with a significand in [1, 4); a
   subnormal has the exponent of the smallest normal number. Zeros have none.
2. The maximum of the exponents of all K products, of the element of C, and of -133 is determined.
3. Significands are aligned to it and truncated, towards zero, 25 bits below it. They are then summed exactly.
4. The sum is rounded once: towards zero to float32, or to nearest even to float16. Overflow gives infinity, bits below
   the smallest subnormal are truncated, and zero is always +0.

All K products of an instruction, 4 or 8 for tf32 and 8 or 16 for f16 and bf16, form one sum. Any NaN, 0 times infinity,
and infinities of both signs give NaN, with all bits set but the sign. The lower 13 bits of a tf32 register are ignored.

Alignment and truncation: Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (PeerJ
Computer Science, 2021), for Volta to Ampere; Li and others, "FTTN: Feature-targeted testing for numerical properties
of NVIDIA and AMD matrix accelerators" (CCGrid, 2024), and Xie and others, "MMA-Sim" (2025), for Hopper's additional
bits. The 25 bits, the single sum, and the treatment of zeros, subnormals and overflows were verified for all forms with
four million elements on an H200: all of them match, while with 24 or 26 bits, or sums of half of K, between 0.2 and
26 % of a form's elements differ. tests/emulator/tensor_core.py implements the same with integers, and an H200's results
for the tests are recorded.

Here, significands are integers held in float32; their products have 22 bits and are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.codegen.functions.prelude import double_to_float_odd, double_to_float_rz, float_to_half
from harness.emulator.codegen.matrix.fragments import MmaLayout, mma_layout
from harness.emulator.codegen.matrix.product_writer import ProductWriter, slice_ir
from harness.emulator.codegen.vector_ir_builder import (
    VectorIRBuilder,
    float_from_bits,
    module_ir,
    splat,
    splat_float,
    vector,
)

VF, VI, VD = vector("float"), vector("i32"), vector("double")
KEPT_BITS = 25
"""Number of bits below the largest exponent at which addends are truncated."""
NO_EXPONENT = -(1 << 12)
"""The exponent of zeros: below all others, even if two of them are added."""
_LOWEST_EXPONENT = -133
"""Smaller exponents are treated as equal to this: if all addends have such, they are truncated 25 bits below it."""


@dataclass(frozen=True)
class Format:
    """A floating-point format: sign, exponent, fraction, and trailing bits that are ignored."""

    exponent_bits: int
    fraction_bits: int
    ignored_bits: int = 0

    @property
    def bias(self) -> int:
        """The exponent bias."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def special_exponent(self) -> int:
        """The exponent field of infinities and NaN."""
        return (1 << self.exponent_bits) - 1


FORMATS = {"f16": Format(5, 10), "bf16": Format(8, 7), "tf32": Format(8, 10, ignored_bits=13), "f32": Format(8, 23)}


@dataclass(frozen=True)
class DotProduct:
    """One `mma.m16n8k*` as a function of the runtime.

    Its arguments are the warp and, for each register of D, A, B and C, the offset of its 32 lanes in the warp's state.
    """

    kind: str
    """Type of the factors."""
    depth: int
    """K."""
    accumulator: str
    """Type of C and D."""

    @property
    def name(self) -> str:
        """Name of the function in the runtime."""
        return f"mma_k{self.depth}_{self.kind}_{self.accumulator}"

    @property
    def slice_name(self) -> str:
        """Name of the function in the runtime for a slice of a warpgroup's product."""
        return f"slice_k{self.depth}_{self.kind}_{self.accumulator}"

    @property
    def flags(self) -> tuple[int, ...]:
        """Flags of the function: none."""
        return ()

    @property
    def layout(self) -> MmaLayout:
        """The layout of its fragments."""
        return mma_layout(self.depth, 32 if self.kind == "tf32" else 16, 16 if self.accumulator == "f16" else 32)

    def writer(self) -> FloatWriter:
        """The writer of its function."""
        return FloatWriter(self.layout, FORMATS[self.kind], FORMATS[self.accumulator])


_FORMS = (("f16", (8, 16), "f32"), ("f16", (8, 16), "f16"), ("bf16", (8, 16), "f32"), ("tf32", (4, 8), "f32"))
DOT_PRODUCTS = {
    (kind, depth, accumulator): DotProduct(kind, depth, accumulator)
    for kind, depths, accumulator in _FORMS
    for depth in depths
}
"""Products by type of the factors, K, and type of the accumulators."""


WARPGROUP_PRODUCTS = {
    (product.kind, product.depth, product.accumulator): product
    for product in DOT_PRODUCTS.values()
    if product.layout.a.registers == 4
}
"""Products of `wgmma`: slices of 8 columns of one warp's 16 rows, with the same registers and arithmetic."""


def runtime_ir() -> str:
    """All dot products as LLVM IR."""
    writers = ((product, product.writer()) for product in DOT_PRODUCTS.values())
    products = ((w.function(f"define i64 @sandbox_{product.name}"), w.declarations) for product, w in writers)
    slices = (slice_ir(p.slice_name, p.layout, f"@sandbox_{p.name}") for p in WARPGROUP_PRODUCTS.values())
    return module_ir((*products, *((each, set()) for each in slices)))


# Numbers --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """32 numbers, each with the value significand * 2^(exponent - bias - fraction bits)."""

    significand: str
    """Vector of float: a signed integer."""
    exponent: str
    """Vector of i32, biased."""


def decode(v: VectorIRBuilder, form: Format, bits: str) -> Number:
    """Decode bit patterns, i32. Infinities and NaN are decoded like numbers, with an exponent of their own."""
    sign = v.binary("shl", "i32", bits, splat("i32", 31 - form.exponent_bits - form.fraction_bits))
    sign = v.binary("and", "i32", sign, splat("i32", 1 << 31))
    fraction = v.binary("and", "i32", bits, splat("i32", (1 << form.fraction_bits) - 1))
    field = v.binary("lshr", "i32", bits, splat("i32", form.fraction_bits))
    field = v.binary("and", "i32", field, splat("i32", form.special_exponent))
    normal = v.compare("ne", "i32", field, splat("i32", 0))
    hidden = v.select("i32", normal, splat("i32", 1 << form.fraction_bits), splat("i32", 0))
    integer = v.binary("or", "i32", fraction, hidden)
    magnitude = v.cast("bitcast", "float", v.cast("sitofp", "i32", integer, "float"), "i32")
    significand = v.cast("bitcast", "i32", v.binary("or", "i32", magnitude, sign), "float")
    exponent = v.select("i32", normal, field, splat("i32", 1))
    zero = v.compare("eq", "i32", integer, splat("i32", 0))
    return Number(significand, v.select("i32", zero, splat("i32", NO_EXPONENT), exponent))


def has_special(v: VectorIRBuilder, form: Format, number: Number) -> str:
    """A scalar i32 that is nonzero if some lane holds infinity or NaN."""
    return v.bits_of(v.compare("eq", "i32", number.exponent, splat("i32", form.special_exponent)))


def _class_of(v: VectorIRBuilder, form: Format, number: Number) -> str:
    """Infinities and NaN unchanged, other numbers as -1, 0 or 1, so that sums of them stay finite; vector of float."""
    signed = v.cast("bitcast", "float", number.significand, "i32")
    magnitude = v.intrinsic("llvm.fabs.v32f32", VF, (VF, number.significand))
    infinite = v.compare("oeq", "float", magnitude, splat_float("float", 2.0**form.fraction_bits))
    special = v.select("i32", infinite, splat("i32", 0x7F800000), splat("i32", 0x7FC00000))
    zero = v.compare("eq", "i32", number.exponent, splat("i32", NO_EXPONENT))
    finite = v.select("i32", zero, splat("i32", 0), splat("i32", 0x3F800000))
    is_special = v.compare("eq", "i32", number.exponent, splat("i32", form.special_exponent))
    pattern = v.select("i32", is_special, special, finite)
    return v.cast(
        "bitcast", "i32", v.binary("or", "i32", pattern, v.binary("and", "i32", signed, splat("i32", 1 << 31))), "float"
    )


def _larger(v: VectorIRBuilder, x: str, y: str) -> str:
    return v.intrinsic("llvm.smax.v32i32", VI, (VI, x), (VI, y))


def _cut(v: VectorIRBuilder, integer: str, exponent: str, fraction_bits: int, integer_bits: int, kept_bits: int) -> str:
    """Compute integer * 2^(exponent - fraction bits) as i32, truncated `kept_bits` below 1. Exponents are at most 0."""
    # Shift amounts are limited, so that no factor is subnormal.
    nothing = 127 - fraction_bits - integer_bits - 1
    power = v.binary("add", "i32", exponent, splat("i32", 127 + kept_bits - fraction_bits))
    power = v.binary("shl", "i32", _larger(v, power, splat("i32", nothing)), splat("i32", 23))
    scaled = v.binary("fmul", "float", integer, v.cast("bitcast", "i32", power, "float"))
    return v.cast("fptosi", "float", scaled, "i32")


def _to_float(v: VectorIRBuilder, wide: str) -> str:
    """Round to float32 towards zero, but to infinity from 2^128 on; as i32."""
    near = v.cast("fptrunc", "double", wide, "float")
    magnitude = v.intrinsic("llvm.fabs.v32f64", VD, (VD, wide))
    beyond = v.compare("oge", "double", magnitude, splat_float("double", 2.0**128))
    rounded = v.select("float", beyond, near, double_to_float_rz(v, wide))
    # -0 becomes +0; nothing else changes.
    return v.cast("bitcast", "float", v.binary("fadd", "float", rounded, splat_float("float", 0.0)), "i32")


def _to_half(v: VectorIRBuilder, wide: str) -> str:
    """Round to float16, nearest even, never -0; as i32."""
    half = v.cast("zext", "i16", float_to_half(v, double_to_float_odd(v, wide)), "i32")
    return v.select("i32", v.compare("eq", "i32", half, splat("i32", 0x8000)), splat("i32", 0), half)


# The function ---------------------------------------------------------------------------------------------------------


class FloatWriter(ProductWriter):
    """Writes one function with factors of the format `form`, summed with `kept_bits`."""

    parts = (("significands", VF), ("exponents", VI))
    kept_bits = KEPT_BITS
    sum_length = 32
    """Number of truncated products whose sum fits in 32 bits."""
    product_bits = 2
    """Integer bits of the significand of a product."""

    def __init__(self, layout: MmaLayout, form: Format, accumulator: Format) -> None:
        super().__init__(layout)
        self._form, self._accumulator = form, accumulator

    def begin(self) -> None:
        """Initialize the record of infinities and NaN."""
        self.do("%special = alloca i32")
        self.do("store i32 0, ptr %special")

    def decode(self, side: str, bits: str) -> Number:
        """Decode a factor of A or B."""
        if self._form.ignored_bits:
            bits = self.binary("lshr", "i32", bits, splat("i32", self._form.ignored_bits))
        return decode(self, self._form, bits)

    def to_float(self, wide: str) -> str:
        """The sum as the bit pattern of a float32."""
        return _to_float(self, wide)

    def decode_factor(self, side: str, number: str) -> None:
        """Store significand and exponent."""
        decoded = self.decode(side, self.load(VI, "exponents", number))
        self.store(VF, decoded.significand, "significands", number)
        self.store(VI, decoded.exponent, "exponents", number)
        special = self.op("load i32, ptr %special")
        special = self.op(f"or i32 {special}, {has_special(self, self._form, decoded)}")
        self.do(f"store i32 {special}, ptr %special")

    # Elements of D --------------------------------------------------------------------------------------------------

    def element_of_d(self, number: str) -> str:
        """The bit pattern, i32."""
        of_a, of_b = self.factors_of(number)
        c = decode(self, self._accumulator, self.load(VI, "c", number))
        total = self._sum(of_a, of_b, c)
        finite = _to_half(self, total) if self.layout.c.packed == 2 else self.to_float(total)
        special = self.op("load i32, ptr %special")
        special = self.op(f"or i32 {special}, {has_special(self, self._accumulator, c)}")
        before, with_specials, done = (self.fresh_label(word) for word in ("finite", "with_specials", "done"))
        self.do(f"br label %{before}")
        self.label(before)
        self.do(f"br i1 {self.op(f'icmp eq i32 {special}, 0')}, label %{done}, label %{with_specials}")
        self.label(with_specials)
        corrected = self._with_specials(of_a, of_b, c, finite)
        last = self.fresh_label("corrected")
        self.do(f"br label %{last}")
        self.label(last)
        self.do(f"br label %{done}")
        self.label(done)
        return self.op(f"phi {VI} [ {finite}, %{before} ], [ {corrected}, %{last} ]")

    def _factor(self, side: str, index: str) -> Number:
        return Number(self.load(VF, f"{side}.significands", index), self.load(VI, f"{side}.exponents", index))

    def _sum(self, of_a: str, of_b: str, c: Number) -> str:
        """The exact sum of the truncated addends, as double."""
        form, accumulator = self._form, self._accumulator
        pairs = []
        for k in range(self.layout.depth):
            pairs.append([self._factor(n, self.op(f"add i64 {first}, {k}")) for n, first in (("a", of_a), ("b", of_b))])
        exponents = [self.binary("add", "i32", x.exponent, y.exponent) for x, y in pairs]
        # From here on, exponents have twice the bias of the factors.
        of_c = self.binary("add", "i32", c.exponent, splat("i32", 2 * form.bias - accumulator.bias))
        largest = _larger(self, of_c, splat("i32", 2 * form.bias + _LOWEST_EXPONENT))
        for exponent in exponents:
            largest = _larger(self, largest, exponent)
        total, totals = splat("i32", 0), []
        for number, ((x, y), exponent) in enumerate(zip(pairs, exponents)):
            if number and number % self.sum_length == 0:
                totals.append(total)
                total = splat("i32", 0)
            product = self.binary("fmul", "float", x.significand, y.significand)
            below = self.binary("sub", "i32", exponent, largest)
            # 16 products below 4, or 4 below 16, are below 2^31 here, since no significand reaches 2.
            bits = 2 * form.fraction_bits, self.product_bits, self.kept_bits
            total = self.binary("add", "i32", total, _cut(self, product, below, *bits))
        below = self.binary("sub", "i32", of_c, largest)
        kept = _cut(self, c.significand, below, accumulator.fraction_bits, 1, self.kept_bits)
        wide = self.binary("fadd", "double", *(self.cast("sitofp", "i32", part, "double") for part in (total, kept)))
        for part in totals:
            wide = self.binary("fadd", "double", wide, self.cast("sitofp", "i32", part, "double"))
        unit = self.binary("add", "i32", largest, splat("i32", 1023 - 2 * form.bias - self.kept_bits))
        power = self.binary("shl", "i64", self.cast("zext", "i32", unit, "i64"), splat("i64", 52))
        return self.binary("fmul", "double", wide, self.cast("bitcast", "i64", power, "double"))

    def _with_specials(self, of_a: str, of_b: str, c: Number, finite: str) -> str:
        """The result for infinities and NaN; `finite` if there are none."""
        self.store(VF, _class_of(self, self._accumulator, c), "significands", "0")
        with self.loop(self.layout.depth) as k:
            factors = [self._factor(n, self.op(f"add i64 {first}, {k}")) for n, first in (("a", of_a), ("b", of_b))]
            product = self.binary("fmul", "float", *(_class_of(self, self._form, factor) for factor in factors))
            total = self.binary("fadd", "float", self.load(VF, "significands", "0"), product)
            self.store(VF, total, "significands", "0")
        total = self.load(VF, "significands", "0")
        if self.layout.c.packed == 2:
            special = self.cast("zext", "i16", float_to_half(self, total), "i32")
        else:
            nan = self.compare("uno", "float", total, total)
            special = self.select("i32", nan, splat("i32", 0x7FFFFFFF), self.cast("bitcast", "float", total, "i32"))
        magnitude = self.intrinsic("llvm.fabs.v32f32", VF, (VF, total))
        is_finite = self.compare("olt", "float", magnitude, float_from_bits("float", 0x7F800000))
        return self.select("i32", is_finite, finite, special)
