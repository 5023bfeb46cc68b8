"""`mma` of e4m3 and e5m2, which Hopper lacks: ptxas converts both to f16, exactly, and multiplies those.

A register of four elements becomes two of two, and one `mma` two of half its depth: the first of the lower halves and
zeros, the second of the upper halves and what that gave. C is added last, by an ordinary addition, rounded to nearest.
This is what ptxas 12.9 makes of it for sm_90a (F2FP, HMMA twice, FADD or HADD2), and so it is emulated; on the bits of
`mma` of f16 see `dot_product.py`. Other versions of ptxas may go another way.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.codegen.functions.prelude import float_to_half, half_to_float
from harness.emulator.codegen.matrix.dot_product import DOT_PRODUCTS, DotProduct
from harness.emulator.codegen.matrix.eight_bit_products import FLOATS
from harness.emulator.codegen.matrix.fragments import MmaLayout, mma_layout
from harness.emulator.codegen.matrix.product_writer import VI
from harness.emulator.codegen.vector_ir_builder import VectorIRBuilder, module_ir, splat, splat_float


@dataclass(frozen=True)
class ConvertedProduct:
    """One `mma.m16n8k*`. Its function has the flags of `EightBitProduct`."""

    a: str
    b: str
    """Types of the elements of A and B."""
    depth: int
    """K."""
    accumulator: str
    """Type of C and D."""

    @property
    def name(self) -> str:
        """Name in the runtime, where one function serves all types of A and B."""
        return f"mma_k{self.depth}_fp8_{self.accumulator}"

    @property
    def flags(self) -> tuple[int, ...]:
        """Flags: whether A and B are e4m3."""
        return int(self.a == "e4m3"), int(self.b == "e4m3")

    @property
    def layout(self) -> MmaLayout:
        """The layout of its fragments."""
        return mma_layout(self.depth, 8, 16 if self.accumulator == "f16" else 32)

    @property
    def half(self) -> DotProduct:
        """The product that computes half of it."""
        return DOT_PRODUCTS["f16", self.depth // 2, self.accumulator]


CONVERTED_PRODUCTS = {
    (a, b, depth, accumulator): ConvertedProduct(a, b, depth, accumulator)
    for a in FLOATS
    for b in FLOATS
    for depth in (16, 32)
    for accumulator in ("f32", "f16")
}
"""Products by types of A and B, K, and type of D."""


def converted_ir() -> str:
    """The functions as LLVM IR, with copies of those that they call."""
    functions: list[tuple[list[str], set[str]]] = []
    for product in {product.name: product for product in CONVERTED_PRODUCTS.values()}.values():
        half, writer = product.half.writer(), _Writer(product)
        functions.append((half.function(f"define internal i64 @{product.half.name}"), half.declarations))
        functions.append((writer.function(), writer.declarations))
    return module_ir(functions)


class _Writer(VectorIRBuilder):
    """Writes one function; its arguments are those of `ProductWriter`."""

    def __init__(self, product: ConvertedProduct) -> None:
        super().__init__()
        self._product = product

    def function(self) -> list[str]:
        """The text of the function."""
        a, b, c = self._product.layout.a, self._product.layout.b, self._product.layout.c
        for side, fragment in (("a", a), ("b", b)):
            self.do(f"%{side}.low = alloca [{fragment.registers} x {VI}], align 64")
            self.do(f"%{side}.high = alloca [{fragment.registers} x {VI}], align 64")
            for register in range(fragment.registers):
                word = self._load(side, register)
                for part, shift in (("low", 0), ("high", 16)):
                    pair = self._pair(side, self.binary("lshr", "i32", word, splat("i32", shift)))
                    self.do(f"store {VI} {pair}, ptr {self._row(f'{side}.{part}', register)}, align 64")
        self.do(f"%sum = alloca [{c.registers} x {VI}], align 64")
        for register in range(c.registers):
            self.do(f"store {VI} zeroinitializer, ptr {self._row('sum', register)}, align 64")
        total = self._addresses("sum", c.registers)
        for part in ("low", "high"):
            places = [*total, *self._addresses(f"a.{part}", a.registers), *self._addresses(f"b.{part}", b.registers)]
            arguments = ", ".join(f"i64 {place}" for place in (*places, *total))
            self.op(f"call i64 @{self._product.half.name}(i64 0, {arguments})")
        for register in range(c.registers):
            found = self.op(f"load {VI}, ptr {self._row('sum', register)}, align 64")
            found = self._add(self._load("c", register), found)
            self.do(f"store {VI} {found}, ptr {self._register('d', register)}, align 64")
        self.do("ret i64 0")
        operands = [f"i64 %{n}{i}" for n, f in (("d", c), ("a", a), ("b", b), ("c", c)) for i in range(f.registers)]
        operands += ["i64 %a_is_e4m3", "i64 %b_is_e4m3"]
        head = f"define i64 @sandbox_{self._product.name}(i64 %warp, {', '.join(operands)}) {{"
        return [head, "entry:", *self.lines, "}"]

    def _register(self, operand: str, index: int) -> str:
        return self.op(f"inttoptr i64 {self.op(f'add i64 %warp, %{operand}{index}')} to ptr")

    def _load(self, operand: str, index: int) -> str:
        return self.op(f"load {VI}, ptr {self._register(operand, index)}, align 64")

    def _row(self, array: str, index: int) -> str:
        return self.op(f"getelementptr {VI}, ptr %{array}, i64 {index}")

    def _addresses(self, array: str, count: int) -> list[str]:
        return [self.op(f"ptrtoint ptr {self._row(array, index)} to i64") for index in range(count)]

    def _pair(self, side: str, word: str) -> str:
        """Convert the two lowest bytes to two f16."""
        low = self.binary("and", "i32", word, splat("i32", 0xFF))
        high = self.binary("and", "i32", self.binary("lshr", "i32", word, splat("i32", 8)), splat("i32", 0xFF))
        low, high = (self._half(side, byte) for byte in (low, high))
        return self.binary("or", "i32", low, self.binary("shl", "i32", high, splat("i32", 16)))

    def _half(self, side: str, byte: str) -> str:
        """Convert one byte to f16, as i32. e5m2 is the upper byte of f16."""
        narrow = self.binary("shl", "i32", byte, splat("i32", 8))
        magnitude = self.binary("and", "i32", byte, splat("i32", 0x7F))
        # As float32 its exponent is too small by the difference of the biases.
        small = self.cast("bitcast", "i32", self.binary("shl", "i32", magnitude, splat("i32", 20)), "float")
        value = self.binary("fmul", "float", small, splat_float("float", 2.0**120))
        wide = self.cast("zext", "i16", float_to_half(self, value), "i32")
        nan = self.compare("eq", "i32", magnitude, splat("i32", 0x7F))
        wide = self.select("i32", nan, splat("i32", 0x7FFF), wide)
        sign = self.binary("shl", "i32", self.binary("and", "i32", byte, splat("i32", 0x80)), splat("i32", 8))
        flag = self.op(f"trunc i64 %{side}_is_e4m3 to i1")
        return self.op(f"select i1 {flag}, {VI} {self.binary('or', 'i32', wide, sign)}, {VI} {narrow}")

    def _add(self, c: str, found: str) -> str:
        """The sum of C and the products, as bit patterns."""
        if self._product.accumulator == "f32":
            x, y = (self.cast("bitcast", "i32", bits, "float") for bits in (c, found))
            total = self.binary("fadd", "float", x, y)
            nan = self.compare("uno", "float", total, total)
            return self.select("i32", nan, splat("i32", 0x7FFFFFFF), self.cast("bitcast", "float", total, "i32"))
        parts = []
        for shift in (0, 16):
            x, y = (half_to_float(self, self._upper(bits, shift)) for bits in (c, found))
            parts.append(self.cast("zext", "i16", float_to_half(self, self.binary("fadd", "float", x, y)), "i32"))
        return self.binary("or", "i32", parts[0], self.binary("shl", "i32", parts[1], splat("i32", 16)))

    def _upper(self, word: str, shift: int) -> str:
        return self.cast("trunc", "i32", self.binary("lshr", "i32", word, splat("i32", shift)), "i16")
