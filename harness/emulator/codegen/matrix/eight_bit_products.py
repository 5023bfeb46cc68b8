"""Products of 8-bit elements: integers (`mma` and `wgmma`), and e4m3 and e5m2 as `wgmma` multiplies them.

Integers are summed exactly; the sum wraps or, with `.satfinite`, is clamped once.

A Hopper tensor core sums 32 products of e4m3 or e5m2 as `dot_product.py` describes, but with fewer bits: addends,
including the element of C, are truncated 13 bits below the largest exponent. A float32 sum is truncated to 13 fraction
bits; a float16 sum is rounded to nearest even. A subnormal e4m3 has the exponent of e4m3's smallest normal number. This
follows Xie and others, "MMA-Sim" (2025), whose model of `wgmma` reproduces an H100 bit for bit; the 13 bits correspond
to the "around 14 bits" in DeepSeek-V3's report (2024). An H200 has the same bits in 1,048,576 elements of each pair of
formats (`tests/gpu/native/test_native_hopper.py`).

For `mma` of e4m3 and e5m2 see `converted_products.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.codegen.matrix.dot_product import FORMATS, NO_EXPONENT, FloatWriter, Format, Number
from harness.emulator.codegen.matrix.fragments import MmaLayout, mma_layout
from harness.emulator.codegen.matrix.product_writer import VI, ProductWriter, slice_ir
from harness.emulator.codegen.vector_ir_builder import module_ir, splat

KEPT_BITS = 13
INTEGERS, FLOATS = ("s8", "u8"), ("e4m3", "e5m2")
EITHER_FORMAT = Format(5, 3)
"""e5m2 with one more bit, or e4m3 with exponents increased by 8: represents every number of both."""
_EXPONENT_GAP = 8


@dataclass(frozen=True)
class EightBitProduct:
    """One `mma` or slice of a `wgmma` of 8-bit elements; floating-point elements occur in `wgmma` only."""

    a: str
    """Type of the elements of A."""
    b: str
    """Type of the elements of B."""
    depth: int
    """K."""
    accumulator: str
    """Type of C and D."""
    rows: int = 16
    saturates: bool = False

    @property
    def kind(self) -> str:
        """`int8` or `fp8`, for both types."""
        return "int8" if self.a in INTEGERS else "fp8"

    @property
    def name(self) -> str:
        """Name in the runtime, where one function serves all types of A and B; its last arguments are `flags`."""
        if self.kind == "fp8":
            return f"fp8_k{self.depth}_{self.accumulator}"
        return f"mma_m{self.rows}k{self.depth}_int8"

    @property
    def slice_name(self) -> str:
        """Name in the runtime for a slice of a warpgroup's product."""
        return f"slice_k{self.depth}_{self.a}_{self.b}_{self.accumulator}{'_satfinite' * self.saturates}"

    @property
    def flags(self) -> tuple[int, ...]:
        """Flags: whether integers A and B are signed and the sum saturates, or whether floats A and B are e4m3."""
        if self.kind == "int8":
            return int(self.a == "s8"), int(self.b == "s8"), int(self.saturates)
        return int(self.a == "e4m3"), int(self.b == "e4m3")

    @property
    def layout(self) -> MmaLayout:
        """The layout of its fragments."""
        return mma_layout(self.depth, 8, 16 if self.accumulator == "f16" else 32, self.rows)


def _each(kinds: tuple[str, ...], depth: int, accumulator: str, rows: int = 16) -> list[EightBitProduct]:
    return [EightBitProduct(a, b, depth, accumulator, rows) for a in kinds for b in kinds]


INTEGER_PRODUCTS = {
    (rows, depth, product.a, product.b): product
    for rows, depth in ((8, 16), (16, 16), (16, 32))
    for product in _each(INTEGERS, depth, "s32", rows)
}
"""Products of `mma`, by rows, K, and types of A and B."""
WARPGROUP_INTEGERS = [
    EightBitProduct(a, b, 32, "s32", saturates=clamps) for a in INTEGERS for b in INTEGERS for clamps in (False, True)
]
WARPGROUP_FLOATS = [*_each(FLOATS, 32, "f32"), *_each(FLOATS, 32, "f16")]
WARPGROUP_PRODUCTS = {
    (product.a, product.b, product.depth, product.accumulator, product.saturates): product
    for product in (*WARPGROUP_INTEGERS, *WARPGROUP_FLOATS)
}
"""Slices of `wgmma`, 8 columns of one warp's 16 rows, by types of A and B, K, type of D, and saturation."""


def integers_ir() -> str:
    """The functions of integer products, as LLVM IR."""
    flags = ("i64 %a_has_sign", "i64 %b_has_sign", "i64 %saturates")
    layouts = {product.name: product.layout for product in INTEGER_PRODUCTS.values()}
    writers = ((name, IntegerWriter(layout)) for name, layout in layouts.items())
    products = ((w.function(f"define i64 @sandbox_{name}", flags), w.declarations) for name, w in writers)
    slices = (slice_ir(p.slice_name, p.layout, f"@sandbox_{p.name}", _words(p)) for p in WARPGROUP_INTEGERS)
    return module_ir((*products, *((each, set()) for each in slices)))


def floats_ir() -> str:
    """The functions of e4m3 and e5m2 products, as LLVM IR."""
    flags = ("i64 %a_is_e4m3", "i64 %b_is_e4m3")
    forms = {
        product.name: (product.layout, EITHER_FORMAT, FORMATS[product.accumulator]) for product in WARPGROUP_FLOATS
    }
    writers = ((name, EightBitFloatWriter(*form)) for name, form in forms.items())
    products = ((w.function(f"define internal i64 @{name}", flags), w.declarations) for name, w in writers)
    slices = (slice_ir(p.slice_name, p.layout, f"@{p.name}", _words(p)) for p in WARPGROUP_FLOATS)
    return module_ir((*products, *((each, set()) for each in slices)))


def _words(product: EightBitProduct) -> list[str]:
    return [str(flag) for flag in product.flags]


class IntegerWriter(ProductWriter):
    """Writes the function of one shape of integer product."""

    parts = (("factors", VI),)
    sign_flag = "has_sign"
    """End of the name of the argument that says whether bytes of A, or of B, have a sign."""

    def is_set(self, flag: str) -> str:
        """Convert an argument to i1."""
        return self.op(f"trunc i64 %{flag} to i1")

    def factor_of_b(self, place: str) -> str:
        """An element of B in all lanes that it is a factor of."""
        return self.load(VI, "b.factors", place)

    def decode_factor(self, side: str, number: str) -> None:
        """Extend a byte by its sign bit, or by zeros."""
        flag = self.is_set(f"{side}_{self.sign_flag}")
        sign = self.op(f"select i1 {flag}, {VI} {splat('i32', 0x80)}, {VI} zeroinitializer")
        flipped = self.binary("xor", "i32", self.load(VI, "factors", number), sign)
        self.store(VI, self.binary("sub", "i32", flipped, sign), "factors", number)

    def element_of_d(self, number: str) -> str:
        """The sum of C and the products, of which 32 are far below 2^31. The sum wraps or is clamped."""
        of_a, of_b = self.factors_of(number)
        total = splat("i32", 0)
        for k in range(self.layout.depth):
            x = self.load(VI, "a.factors", self.op(f"add i64 {of_a}, {k}"))
            y = self.factor_of_b(self.op(f"add i64 {of_b}, {k}"))
            total = self.binary("add", "i32", total, self.binary("mul", "i32", x, y))
        c = self.load(VI, "c", number)
        clamped = self.intrinsic("llvm.sadd.sat.v32i32", VI, (VI, c), (VI, total))
        flag = self.is_set("saturates")
        return self.op(f"select i1 {flag}, {VI} {clamped}, {VI} {self.binary('add', 'i32', c, total)}")


class EightBitFloatWriter(FloatWriter):
    """Writes the function for one type of D."""

    kept_bits = KEPT_BITS

    def decode(self, side: str, bits: str) -> Number:
        """Decode a byte as e4m3 or as e5m2."""
        flag = self.op(f"trunc i64 %{side}_is_e4m3 to i1")
        wide, narrow = self._e4m3(bits), self._e5m2(bits)
        fraction, field, exponent = (
            self.op(f"select i1 {flag}, {VI} {x}, {VI} {y}") for x, y in zip(wide, narrow, strict=True)
        )
        normal = self.compare("ne", "i32", field, splat("i32", 0))
        hidden = self.select("i32", normal, splat("i32", 1 << EITHER_FORMAT.fraction_bits), splat("i32", 0))
        integer = self.binary("or", "i32", fraction, hidden)
        sign = self.binary("shl", "i32", self.binary("and", "i32", bits, splat("i32", 0x80)), splat("i32", 24))
        magnitude = self.cast("bitcast", "float", self.cast("sitofp", "i32", integer, "float"), "i32")
        significand = self.cast("bitcast", "i32", self.binary("or", "i32", magnitude, sign), "float")
        zero = self.compare("eq", "i32", integer, splat("i32", 0))
        return Number(significand, self.select("i32", zero, splat("i32", NO_EXPONENT), exponent))

    def _e4m3(self, bits: str) -> tuple[str, str, str]:
        """Fraction, exponent field, and effective exponent; NaN has that of `EITHER_FORMAT`."""
        fraction = self.binary("and", "i32", bits, splat("i32", 7))
        field = self._field(bits, 3, 15)
        exponent = self.binary("add", "i32", self._at_least_one(field), splat("i32", _EXPONENT_GAP))
        magnitude = self.binary("and", "i32", bits, splat("i32", 0x7F))
        nan = self.compare("eq", "i32", magnitude, splat("i32", 0x7F))
        return fraction, field, self.select("i32", nan, splat("i32", EITHER_FORMAT.special_exponent), exponent)

    def _e5m2(self, bits: str) -> tuple[str, str, str]:
        fraction = self.binary("shl", "i32", self.binary("and", "i32", bits, splat("i32", 3)), splat("i32", 1))
        field = self._field(bits, 2, 31)
        return fraction, field, self._at_least_one(field)

    def _field(self, bits: str, fraction_bits: int, mask: int) -> str:
        return self.binary(
            "and", "i32", self.binary("lshr", "i32", bits, splat("i32", fraction_bits)), splat("i32", mask)
        )

    def _at_least_one(self, field: str) -> str:
        return self.intrinsic("llvm.smax.v32i32", VI, (VI, field), (VI, splat("i32", 1)))

    def to_float(self, wide: str) -> str:
        """The sum as the bit pattern of a float32 with zeros as its last bits."""
        cut = -(1 << (FORMATS["f32"].fraction_bits - KEPT_BITS))
        return self.binary("and", "i32", super().to_float(wide), splat("i32", cut))
