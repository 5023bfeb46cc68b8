"""Writes products of 32 rows of A and the columns of B, one after another, as functions in LLVM IR.

Lanes of tensor memory are rows of D, so a column of 32 lanes is one vector. A is decoded once for all columns, and B
once for all rows; an element of B is broadcast to the lanes.
"""

from __future__ import annotations

from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.codegen.functions.prelude import float_to_half
from harness.emulator.codegen.matrix.dot_product import VF, VI, FloatWriter, Number
from harness.emulator.codegen.matrix.eight_bit_products import IntegerWriter
from harness.emulator.codegen.matrix.product_writer import ProductWriter
from harness.emulator.codegen.vector_ir_builder import BITS, splat, vector

MOST_COLUMNS = 256
_SUM_LENGTH = 16
"""Number of products, below 4 and with 25 more bits, whose sum fits in 32 bits."""


class Columns(ProductWriter):
    """What the functions have in common: loops over groups of 32 lanes, and over columns.

    Arrays on the stack: `a.PART` has rows of 32 lanes, K of them; `b.PART` has K scalars for each column.
    """

    _first_of_b = "0"

    def columns_function(self, name: str) -> list[str]:
        """The text of the function."""
        depth, bits = self.layout.depth, self.layout.a.bits
        for part, kind in self.parts:
            self.do(f"%a.{part} = alloca [{depth} x {kind}], align 64")
            self.do(f"%b.{part} = alloca [{depth * MOST_COLUMNS} x {kind[6:-1]}], align 128")
            self.do(f"%{part} = alloca [1 x {kind}], align 64")
        self.do(f"%c = alloca [1 x {VI}], align 64")
        self.begin()
        for argument, field in (
            ("d", tensor.COLUMNS_D), ("a", tensor.WORDS_A), ("b", tensor.ROWS_B), ("count", tensor.COLUMN_COUNT),
            ("keeps", tensor.KEEPS), ("signs", tensor.SIGNS), ("scale", tensor.SCALE), ("a_flag", tensor.FLAG_A),
            ("b_flag", tensor.FLAG_B), ("saturates", tensor.SATURATES), ("block_shift", tensor.BLOCK_SHIFT),
            ("wide_scales", tensor.WIDE_SCALES),
        ):  # fmt: skip
            place = self.op(f"add i64 %argument, {field}")
            self.do(f"%{argument} = load i64, ptr {self.op(f'inttoptr i64 {place} to ptr')}")
        self.name_flags()
        vectors = self.op(f"udiv i64 {self.op(f'mul i64 %count, {depth}')}, 32")
        with self.loop(vectors) as number:
            self._decode_b(number, bits)
        with self.loop(tensor.LANES // 32) as group:
            self._group(group)
        self.do("ret void")
        return [f"define void @sandbox_{name}(i64 %argument) {{", "entry:", *self.lines, "}"]

    def name_flags(self) -> None:
        """Prepare what the decoder needs of the arguments, once."""
        return

    def begin_lanes(self, offset: str) -> None:
        """Called before rows of A in 32 lanes are decoded; `offset` is that of the lanes' words in an array."""
        return

    def begin_row_of_a(self, k: str) -> None:
        """Called before element `k` of each row of A is decoded."""
        return

    def begin_row_of_b(self, number: str) -> None:
        """Called before 32 elements of B are decoded, the `number`-th such ones."""
        return

    def elements_of_b(self, address: str) -> str:
        """The patterns of 32 elements of B, i32."""
        bits = self.layout.a.bits
        pattern = self.op(f"load {vector(f'i{bits}')}, ptr {self.pointer_to(address)}, align 1")
        return self.cast("zext", f"i{bits}", pattern, "i32")

    def function(self, head: str, more: object = ()) -> list[str]:
        """Not used: the function has another form, see `columns_function`."""
        raise NotImplementedError

    def factors_of(self, number: str) -> tuple[str, str]:
        """Index at which the factors of the current column begin."""
        return "0", self._first_of_b

    def pointer_to(self, address: str) -> str:
        """Convert an address to a pointer."""
        return self.op(f"inttoptr i64 {address} to ptr")

    def _decode_b(self, number: str, bits: int) -> None:
        """Decode 32 elements of B."""
        address = self.op(f"add i64 %b, {self.op(f'mul i64 {number}, {4 * bits}')}")
        self.begin_row_of_b(number)
        self.store(VI, self.elements_of_b(address), self.parts[-1][0], "0")
        self.decode_factor("b", "0")
        for part, kind in self.parts:
            row = self.op(f"getelementptr {kind}, ptr %b.{part}, i64 {number}")
            self.do(f"store {kind} {self.load(kind, part, '0')}, ptr {row}, align 128")

    def _group(self, group: str) -> None:
        """Compute 32 lanes of all columns, if any of them is to be computed."""
        place = self.op(f"add i64 {self.op(f'mul i64 {group}, 4')}, {tensor.LANE_MASKS}")
        place = self.op(f"add i64 %argument, {place}")
        bits = self.op(f"load i32, ptr {self.pointer_to(place)}")
        some, done = self.fresh_label("some"), self.fresh_label("skipped")
        self.do(f"br i1 {self.op(f'icmp eq i32 {bits}, 0')}, label %{done}, label %{some}")
        self.label(some)
        lanes = self.lanes_of(bits)
        offset = self.op(f"mul i64 {group}, 128")
        self.begin_lanes(offset)
        self._decode_a(self.op(f"add i64 %a, {offset}"), lanes)
        first = self.op(f"add i64 %d, {offset}")
        with self.loop("%count") as column:
            address = self.op(f"add i64 {first}, {self.op(f'mul i64 {column}, {tensor.COLUMN_BYTES}')}")
            pointer = self.pointer_to(address)
            old = self.op(f"load {VI}, ptr {pointer}, align 128")
            keeps = self.spread("i1", self.op("icmp ne i64 %keeps, 0"))
            uses = self.binary("and", "i1", lanes, keeps)
            self.store(VI, self.select("i32", uses, self.scaled(old), splat("i32", 0)), "c", "0")
            self._first_of_b = self.op(f"mul i64 {column}, {self.layout.depth}")
            result = self.select("i32", lanes, self.element_of_d("0"), old)
            self.do(f"store {VI} {result}, ptr {pointer}, align 128")
        self.do(f"br label %{done}")
        self.label(done)

    def scaled(self, c: str) -> str:
        """C times the factor of D."""
        return c

    def _decode_a(self, address: str, lanes: str) -> None:
        """Decode the rows of A in 32 lanes; the others become zeros."""
        packed, bits = self.layout.a.packed, self.layout.a.bits
        signs = self.spread("i32", self.op("trunc i64 %signs to i32"))
        with self.loop(self.layout.depth) as k:
            word = self.op(f"udiv i64 {k}, {packed}")
            place = self.op(f"add i64 {address}, {self.op(f'mul i64 {word}, {tensor.COLUMN_BYTES}')}")
            pattern = self.op(f"load {VI}, ptr {self.pointer_to(place)}, align 128")
            pattern = self.select("i32", lanes, self.binary("xor", "i32", pattern, signs), splat("i32", 0))
            if packed > 1:
                shift = self.op(f"mul i64 {self.op(f'urem i64 {k}, {packed}')}, {bits}")
                amount = self.spread("i32", self.op(f"trunc i64 {shift} to i32"))
                pattern = self.binary("lshr", "i32", pattern, amount)
                pattern = self.binary("and", "i32", pattern, splat("i32", (1 << bits) - 1))
            self.begin_row_of_a(k)
            self.store(VI, pattern, self.parts[-1][0], "0")
            self.decode_factor("a", "0")
            for part, kind in self.parts:
                self.store(kind, self.load(kind, part, "0"), f"a.{part}", k)

    def scalar(self, part: str, element: str, index: str) -> str:
        """An element of B in all lanes."""
        pointer = self.op(f"getelementptr {element}, ptr %b.{part}, i64 {index}")
        return self.spread(element, self.op(f"load {element}, ptr {pointer}, align {BITS[element] // 8}"))


class FloatColumns(Columns, FloatWriter):
    """Writes the function of 16-bit floats and of tf32."""

    sum_length = _SUM_LENGTH

    def scaled(self, c: str) -> str:
        """C times a power of two, in its own precision."""
        factor = self.cast("bitcast", "i32", self.spread("i32", self.op("trunc i64 %scale to i32")), "float")
        if self.layout.c.packed == 1:
            product = self.binary("fmul", "float", self.cast("bitcast", "i32", c, "float"), factor)
            return self.cast("bitcast", "float", product, "i32")
        half = self.op(f"bitcast {vector('i16')} {self.cast('trunc', 'i32', c, 'i16')} to <32 x half>")
        wide = self.op(f"fpext <32 x half> {half} to {VF}")
        return self.cast("zext", "i16", float_to_half(self, self.binary("fmul", "float", wide, factor)), "i32")

    def _factor(self, side: str, index: str) -> Number:
        if side == "a":
            return Number(self.load(VF, "a.significands", index), self.load(VI, "a.exponents", index))
        return Number(self.scalar("significands", "float", index), self.scalar("exponents", "i32", index))


class IntegerColumns(Columns, IntegerWriter):
    """Writes the function of 8-bit integers."""

    sign_flag = "flag"

    def is_set(self, flag: str) -> str:
        """Convert a word of the argument to i1."""
        return self.op(f"icmp ne i64 %{flag}, 0")

    def factor_of_b(self, place: str) -> str:
        """An element of B in all lanes."""
        return self.scalar("factors", "i32", place)
