"""Writes products of floats of 8, 6 and 4 bits, with and without block scaling (`tcgen05.mma`).

Types differ in the bits of their exponent alone, once the sign is shifted to bit 7: one rule decodes all of them. A
scale is multiplied into the factors that share it. A product of two factors and two scales is exact; its exponent,
which determines where addends are truncated, is the sum of those of all four. As in `dot_product.py`, a subnormal has
the exponent of its type's smallest normal number. No GPU has been compared with products that have scales.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.codegen.matrix.column_writers import FloatColumns
from harness.emulator.codegen.matrix.dot_product import NO_EXPONENT, Format, Number
from harness.emulator.codegen.matrix.fragments import MmaLayout
from harness.emulator.codegen.matrix.product_writer import VI
from harness.emulator.codegen.vector_ir_builder import splat, splat_float, vector

NARROW = Format(5, 5)
"""Represents all numbers of e5m2, e4m3, e3m2, e2m3 and e2m1."""
_E4M3_NAN = 0x7F
_SCALE_BITS = 3
"""Fraction bits of a ue4m3 scale; a ue8m0 scale has none."""


@dataclass(frozen=True)
class ScaledFormat(Format):
    """A format whose exponents are not bounded by its exponent field."""

    @property
    def special_exponent(self) -> int:
        """The exponent of infinities and NaN, above that of every scaled number."""
        return 1 << 11


SCALED = ScaledFormat(5, NARROW.fraction_bits + _SCALE_BITS)
"""A number of `NARROW` times a scale."""


def _lanes(values: Iterable[int]) -> str:
    """A constant of i32 for each lane."""
    return f"<{', '.join(f'i32 {value}' for value in values)}>"


class NarrowColumns(FloatColumns):
    """Writes the function of elements that have a byte each."""

    form = NARROW

    def __init__(self, layout: MmaLayout, accumulator: Format) -> None:
        super().__init__(layout, self.form, accumulator)

    def name_flags(self) -> None:
        """Prepare shifts and masks from the types of A and B, see `FLAG_*`."""
        self._fields = {side: self._fields_of(side) for side in "ab"}

    def _fields_of(self, side: str) -> dict[str, str]:
        word = self.op(f"trunc i64 %{side}_flag to i32")
        exponent, shift, mask = (
            self.op(f"and i32 {self.op(f'lshr i32 {word}, {at}')}, 255")
            for at in (tensor.FLAG_EXPONENT, tensor.FLAG_SHIFT, tensor.FLAG_MASK)
        )
        half = self.op(f"shl i32 1, {self.op(f'sub i32 {exponent}, 1')}")
        gap = self.op(f"sub i32 16, {half}")
        # Of e4m3 only, all bits but the sign are NaN.
        is_e4m3 = self.op(f"icmp eq i32 {exponent}, 4")
        nan = self.op(f"select i1 {is_e4m3}, i32 {_E4M3_NAN}, i32 -1")
        scalars = {
            "shift": shift, "mask": mask, "below": self.op(f"sub i32 7, {exponent}"), "gap": gap, "nan": nan,
            "up": self.op(f"sub i32 {exponent}, 2"),
        }  # fmt: skip
        return {name: self.spread("i32", scalar) for name, scalar in scalars.items()}

    def decode(self, side: str, bits: str) -> Number:
        """Decode an element."""
        fields = self._fields[side]
        pattern = self.binary("and", "i32", self.binary("shl", "i32", bits, fields["shift"]), fields["mask"])
        magnitude = self.binary("and", "i32", pattern, splat("i32", 0x7F))
        field = self.binary("lshr", "i32", magnitude, fields["below"])
        fraction = self.binary("shl", "i32", magnitude, fields["up"])
        fraction = self.binary("and", "i32", fraction, splat("i32", (1 << NARROW.fraction_bits) - 1))
        exponent = self.intrinsic("llvm.smax.v32i32", VI, (VI, field), (VI, splat("i32", 1)))
        exponent = self.binary("add", "i32", exponent, fields["gap"])
        nan = self.compare("eq", "i32", magnitude, fields["nan"])
        exponent = self.select("i32", nan, splat("i32", NARROW.special_exponent), exponent)
        normal = self.compare("ne", "i32", field, splat("i32", 0))
        hidden = self.select("i32", normal, splat("i32", 1 << NARROW.fraction_bits), splat("i32", 0))
        integer = self.binary("or", "i32", fraction, hidden)
        sign = self.binary("shl", "i32", self.binary("and", "i32", pattern, splat("i32", 0x80)), splat("i32", 24))
        size = self.cast("bitcast", "float", self.cast("sitofp", "i32", integer, "float"), "i32")
        significand = self.cast("bitcast", "i32", self.binary("or", "i32", size, sign), "float")
        zero = self.compare("eq", "i32", integer, splat("i32", 0))
        return Number(significand, self.select("i32", zero, splat("i32", NO_EXPONENT), exponent))


class ScaledColumns(NarrowColumns):
    """Writes the function of elements that have a byte each, with block scaling."""

    form = SCALED
    sum_length = 4
    product_bits = 4

    def begin_lanes(self, offset: str) -> None:
        """Load the scales of the lanes' rows."""
        address = self.op(f"add i64 {self.op(f'add i64 %argument, {tensor.SCALE_WORDS_A}')}, {offset}")
        self._scales_of_a = self.op(f"load {VI}, ptr {self.pointer_to(address)}, align 64")

    def begin_row_of_a(self, k: str) -> None:
        """Select the scale of element `k`."""
        block = self.op(f"trunc i64 {self.op(f'lshr i64 {k}, %block_shift')} to i32")
        amounts = self.spread("i32", self.op(f"mul i32 {block}, 8"))
        self._scale = self._byte(self._scales_of_a, amounts)

    def begin_row_of_b(self, number: str) -> None:
        """Select the scales of 32 elements of one column."""
        first = self.op(f"mul i64 {number}, 32")
        column = self.op(f"udiv i64 {first}, {self.layout.depth}")
        k = self.op(f"trunc i64 {self.op(f'urem i64 {first}, {self.layout.depth}')} to i32")
        place = self.op(f"add i64 {self.op(f'mul i64 {column}, 4')}, {tensor.SCALE_WORDS_B}")
        word = self.op(f"load i32, ptr {self.pointer_to(self.op(f'add i64 %argument, {place}'))}")
        elements = self.binary("add", "i32", self.spread("i32", k), _lanes(range(32)))
        shift = self.spread("i32", self.op("trunc i64 %block_shift to i32"))
        blocks = self.binary("lshr", "i32", elements, shift)
        self._scale = self._byte(self.spread("i32", word), self.binary("shl", "i32", blocks, splat("i32", 3)))

    def _byte(self, words: str, amounts: str) -> str:
        return self.binary("and", "i32", self.binary("lshr", "i32", words, amounts), splat("i32", 0xFF))

    def decode(self, side: str, bits: str) -> Number:
        """Decode an element, and multiply it by its scale. A scale of NaN gives NaN, even of zero."""
        number = super().decode(side, bits)
        integer, exponent, nan = self._decoded_scale()
        significand = self.binary("fmul", "float", number.significand, self.cast("sitofp", "i32", integer, "float"))
        zero = self.compare("oeq", "float", significand, splat_float("float", 0.0))
        special = self.compare("eq", "i32", number.exponent, splat("i32", NARROW.special_exponent))
        exponent = self.binary("add", "i32", number.exponent, exponent)
        exponent = self.select("i32", zero, splat("i32", NO_EXPONENT), exponent)
        special = self.binary("or", "i1", special, nan)
        significand = self.select("float", nan, splat_float("float", 1.0), significand)
        return Number(significand, self.select("i32", special, splat("i32", SCALED.special_exponent), exponent))

    def _decoded_scale(self) -> tuple[str, str, str]:
        """Significand with `_SCALE_BITS` fraction bits, exponent, and whether the scale is NaN."""
        byte = self._scale
        wide = self.spread("i1", self.op("icmp ne i64 %wide_scales, 0"))
        field = self.binary("and", "i32", self.binary("lshr", "i32", byte, splat("i32", 3)), splat("i32", 15))
        normal = self.compare("ne", "i32", field, splat("i32", 0))
        hidden = self.select("i32", normal, splat("i32", 8), splat("i32", 0))
        narrow_integer = self.binary("or", "i32", self.binary("and", "i32", byte, splat("i32", 7)), hidden)
        narrow_exponent = self.intrinsic("llvm.smax.v32i32", VI, (VI, field), (VI, splat("i32", 1)))
        integer = self.select("i32", wide, splat("i32", 8), narrow_integer)
        exponent = self.select("i32", wide, byte, narrow_exponent)
        bias = self.select("i32", wide, splat("i32", 127), splat("i32", 7))
        mask = self.select("i32", wide, splat("i32", 0xFF), splat("i32", _E4M3_NAN))
        nan = self.compare("eq", "i32", self.binary("and", "i32", byte, mask), mask)
        return integer, self.binary("sub", "i32", exponent, bias), nan


class PackedScaledColumns(ScaledColumns):
    """Writes the function of e2m1, two in a byte, with block scaling."""

    def elements_of_b(self, address: str) -> str:
        """The patterns of 32 elements in 16 bytes."""
        packed = self.op(f"load <16 x i8>, ptr {self.pointer_to(address)}, align 1")
        twice = ", ".join(f"i32 {element // 2}" for element in range(32))
        halves = self.op(f"shufflevector <16 x i8> {packed}, <16 x i8> poison, <32 x i32> <{twice}>")
        amounts = _lanes([4 * (element % 2) for element in range(32)])
        patterns = self.binary("lshr", "i32", self.op(f"zext <32 x i8> {halves} to {vector('i32')}"), amounts)
        return self.binary("and", "i32", patterns, splat("i32", 15))
