"""What a tensor core of Hopper computes for one element of D = A B + C, bit by bit.

1. Products are exact. A product has the exponent that its factors' exponents add up to, whatever its significand,
   which lies in [1, 4); a subnormal has the exponent of the smallest normal number. Zeros have none.
2. The largest exponent among all K products, the element of C, and -133 is found.
3. Significands are shifted to it and cut off, towards zero, 25 bits below it. What is left is added up exactly.
4. The sum is rounded once: towards zero to float32, or to nearest even to float16. Beyond the largest exponent it is
   infinite, below the smallest subnormal it is cut off, and a zero is always +0.

K is the instruction's own: 4 or 8 for tf32, 8 or 16 for f16 and bf16 are one sum, not several. Any NaN, 0 times
infinity, and infinities of both signs give NaN, with all bits set but the sign. The lower 13 bits of a tf32 register
are ignored.

Aligning and cutting off: Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (PeerJ
Computer Science, 2021), for Volta to Ampere; Li and others, "FTTN: Feature-targeted testing for numerical properties
of NVIDIA and AMD matrix accelerators" (CCGrid, 2024), and Xie and others, "MMA-Sim" (2025), for Hopper's additional
bits. That it is 25 bits and one sum, how zeros, subnormals and overflows are treated, and that this holds for all
forms, was found with four million elements on an H200: all of them are as described, and with 24 or 26 bits, or sums
of half of K, between 0.2 and 26 % of a form's elements are not. tests/emulator/tensor_core.py says the same in plain
integers, and what an H200 answers to the tests is on record.

Here, an element of D has a lane, and `fragments.py` tells which lanes hold its factors. Significands are integers
held in float32; their products have 22 bits and are exact. The functions are part of the runtime, not of each kernel:
they are compiled once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.emulator.codegen.fragments import Fragment, MmaLayout, mma_layout
from harness.emulator.codegen.prelude import double_to_float_odd, double_to_float_rz, float_to_half
from harness.emulator.codegen.vocabulary import Vocabulary, float_from_bits, splat, splat_float, vector

VF, VI, VD = vector("float"), vector("i32"), vector("double")
KEPT_BITS = 25
"""How far below the largest exponent the addends are cut off."""
_NO_EXPONENT = -(1 << 12)
"""Of zeros: below all others, also where two of them are added."""
_LOWEST_EXPONENT = -133
"""Smaller exponents are not told apart: where all addends have such, they are cut off 25 bits below this one."""


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

    @property
    def special_exponent(self) -> int:
        """Of infinities and NaN."""
        return (1 << self.exponent_bits) - 1


FORMATS = {"f16": Format(5, 10), "bf16": Format(8, 7), "tf32": Format(8, 10, ignored_bits=13), "f32": Format(8, 23)}


@dataclass(frozen=True)
class DotProduct:
    """One `mma.m16n8k*` as a function of the runtime.

    Its arguments are the warp and, for each register of D, A, B and C, where in the warp's state its 32 lanes are.
    """

    kind: str
    """Type of the multiplicands."""
    depth: int
    """K."""
    accumulator: str
    """Type of C and D."""

    @property
    def name(self) -> str:
        """In the runtime."""
        return f"mma_k{self.depth}_{self.kind}_{self.accumulator}"

    @property
    def slice_name(self) -> str:
        """In the runtime, as a slice of a warpgroup's product."""
        return f"slice_k{self.depth}_{self.kind}_{self.accumulator}"

    @property
    def layout(self) -> MmaLayout:
        """Its fragments."""
        return mma_layout(self.depth, 32 if self.kind == "tf32" else 16, 16 if self.accumulator == "f16" else 32)


_FORMS = (("f16", (8, 16), "f32"), ("f16", (8, 16), "f16"), ("bf16", (8, 16), "f32"), ("tf32", (4, 8), "f32"))
DOT_PRODUCTS = {
    (kind, depth, accumulator): DotProduct(kind, depth, accumulator)
    for kind, depths, accumulator in _FORMS
    for depth in depths
}
"""By type of the multiplicands, K, and type of the accumulators."""


WARPGROUP_PRODUCTS = {
    (product.kind, product.depth, product.accumulator): product
    for product in DOT_PRODUCTS.values()
    if product.layout.a.registers == 4
}
"""Those that `wgmma` has, a slice of 8 columns of one warp's 16 rows: the same registers and the same arithmetic."""


def runtime_ir() -> str:
    """All dot products as LLVM IR."""
    functions, declarations = [], set()
    for product in DOT_PRODUCTS.values():
        writer = _Writer(product)
        functions += writer.function()
        declarations |= writer.declarations
    for product in WARPGROUP_PRODUCTS.values():
        functions += _slice(product)
    return "\n".join([*sorted(declarations), *functions, ""])


def _slice(product: DotProduct) -> list[str]:
    """D += A B; the argument is the address of ten words: where D's registers are, from the fifth A's, then B's."""
    v = Vocabulary()
    v.do("%places = inttoptr i64 %argument to ptr")
    words = []
    for first, fragment in ((0, product.layout.c), (4, product.layout.a), (8, product.layout.b)):
        for register in range(fragment.registers):
            place = v.op(f"getelementptr i64, ptr %places, i64 {first + register}")
            words.append(v.op(f"load i64, ptr {place}"))
    arguments = (*words, *words[: product.layout.c.registers])
    v.do(f"%done = call i64 @sandbox_{product.name}(i64 0, {', '.join(f'i64 {word}' for word in arguments)})")
    return [f"define void @sandbox_{product.slice_name}(i64 %argument) {{", *v.lines, "  ret void", "}"]


# Numbers --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Number:
    """32 numbers, each significand * 2^(exponent - bias - fraction bits)."""

    significand: str
    """Float: an integer with the number's sign."""
    exponent: str
    """I32, biased."""


def _decode(v: Vocabulary, form: Format, bits: str) -> _Number:
    """From patterns, i32. Infinities and NaN have an exponent of their own, and are else as numbers are."""
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
    return _Number(significand, v.select("i32", zero, splat("i32", _NO_EXPONENT), exponent))


def _has_special(v: Vocabulary, form: Format, number: _Number) -> str:
    """A scalar i32 that is not 0 where a lane holds infinity or NaN."""
    return v.bits_of(v.compare("eq", "i32", number.exponent, splat("i32", form.special_exponent)))


def _class_of(v: Vocabulary, form: Format, number: _Number) -> str:
    """Float: infinities and NaN themselves, other numbers as -1, 0 or 1, so that sums of them stay finite."""
    signed = v.cast("bitcast", "float", number.significand, "i32")
    magnitude = v.intrinsic("llvm.fabs.v32f32", VF, (VF, number.significand))
    infinite = v.compare("oeq", "float", magnitude, splat_float("float", 2.0**form.fraction_bits))
    special = v.select("i32", infinite, splat("i32", 0x7F800000), splat("i32", 0x7FC00000))
    zero = v.compare("eq", "i32", number.exponent, splat("i32", _NO_EXPONENT))
    finite = v.select("i32", zero, splat("i32", 0), splat("i32", 0x3F800000))
    is_special = v.compare("eq", "i32", number.exponent, splat("i32", form.special_exponent))
    pattern = v.select("i32", is_special, special, finite)
    return v.cast(
        "bitcast", "i32", v.binary("or", "i32", pattern, v.binary("and", "i32", signed, splat("i32", 1 << 31))), "float"
    )


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
    magnitude = v.intrinsic("llvm.fabs.v32f64", VD, (VD, wide))
    beyond = v.compare("oge", "double", magnitude, splat_float("double", 2.0**128))
    rounded = v.select("float", beyond, near, double_to_float_rz(v, wide))
    # -0 becomes +0, and nothing else changes.
    return v.cast("bitcast", "float", v.binary("fadd", "float", rounded, splat_float("float", 0.0)), "i32")


def _to_half(v: Vocabulary, wide: str) -> str:
    """To nearest even, never -0; as i32."""
    half = v.cast("zext", "i16", float_to_half(v, double_to_float_odd(v, wide)), "i32")
    return v.select("i32", v.compare("eq", "i32", half, splat("i32", 0x8000)), splat("i32", 0), half)


# The function ---------------------------------------------------------------------------------------------------------


class _Writer(Vocabulary):
    """Writes one function.

    Arrays on its stack hold rows of 32 lanes:

    - `significands`, `exponents`: the elements of A, then those of B, in the lanes that hold them;
    - `a.significands`, ..., `b.exponents`: the same in the lanes of the elements of D that they are factors of, K rows
      for each of the two rows of A, or columns of B, that a lane needs;
    - `c`, `d`: patterns, an element to a row.

    Element `n` of D belongs to row `n >> 1` of A and column `n & 1` of B among those.
    """

    def __init__(self, product: DotProduct) -> None:
        super().__init__()
        self._product = product
        self._layout = product.layout
        self._form, self._accumulator = FORMATS[product.kind], FORMATS[product.accumulator]

    def function(self) -> list[str]:
        """Its text."""
        a, b, c = self._layout.a, self._layout.b, self._layout.c
        of_a, of_b, of_c = (fragment.registers * fragment.packed for fragment in (a, b, c))
        for name, element, rows in (
            ("significands", VF, of_a + of_b),
            ("exponents", VI, of_a + of_b),
            *((f"{side}.{part}", kind, 2 * a.columns) for side in "ab" for part, kind in _PARTS),
            ("c", VI, of_c),
            ("d", VI, of_c),
            ("special", "i32", 1),
        ):
            self.do(f"%{name} = alloca [{rows} x {element}], align 64")
        self.do("store i32 0, ptr %special")
        # The patterns of A and B wait where their exponents will be.
        self._split("a", a, "exponents", 0)
        self._split("b", b, "exponents", of_a)
        self._split("c", c, "c", 0)
        with self._loop(of_a + of_b) as number:
            self._decode_factor(number)
        self._spread("a", a, 0)
        self._spread("b", b, of_a)
        with self._loop(of_c) as number:
            self._store(VI, self._element_of_d(number), "d", number)
        self._join()
        self.do("ret i64 0")
        operands = [f"i64 %{n}{i}" for n, f in (("d", c), ("a", a), ("b", b), ("c", c)) for i in range(f.registers)]
        head = f"define i64 @sandbox_{self._product.name}(i64 %warp, {', '.join(operands)}) {{"
        return [head, "entry:", *self.lines, "}"]

    # Memory ---------------------------------------------------------------------------------------------------------

    def _row(self, kind: str, array: str, index: str) -> str:
        return self.op(f"getelementptr {kind}, ptr %{array}, i64 {index}")

    def _load(self, kind: str, array: str, index: str) -> str:
        return self.op(f"load {kind}, ptr {self._row(kind, array, index)}, align 64")

    def _store(self, kind: str, value: str, array: str, index: str) -> None:
        self.do(f"store {kind} {value}, ptr {self._row(kind, array, index)}, align 64")

    def _register(self, operand: str, index: int) -> str:
        """Pointer to a register's lanes."""
        address = self.op(f"add i64 %warp, %{operand}{index}")
        return self.op(f"inttoptr i64 {address} to ptr")

    def _split(self, operand: str, fragment: Fragment, array: str, first: int) -> None:
        """Registers -> one pattern to a row, in the order of registers and halves."""
        for register in range(fragment.registers):
            word = self.op(f"load {VI}, ptr {self._register(operand, register)}, align 64")
            if fragment.packed == 1:
                self._store(VI, word, array, str(first + register))
                continue
            low = self.binary("and", "i32", word, splat("i32", 0xFFFF))
            self._store(VI, low, array, str(first + 2 * register))
            high = self.binary("lshr", "i32", word, splat("i32", 16))
            self._store(VI, high, array, str(first + 2 * register + 1))

    def _join(self) -> None:
        """`d` -> registers."""
        fragment = self._layout.c
        for register in range(fragment.registers):
            word = self._load(VI, "d", str(fragment.packed * register))
            if fragment.packed == 2:
                high = self._load(VI, "d", str(2 * register + 1))
                word = self.binary("or", "i32", word, self.binary("shl", "i32", high, splat("i32", 16)))
            self.do(f"store {VI} {word}, ptr {self._register('d', register)}, align 64")

    @contextmanager
    def _loop(self, count: int) -> Iterator[str]:
        """The body is emitted once, for the number that it is given; loops keep the function small."""
        before, head, tail, after = (self.fresh_label(word) for word in ("before", "head", "tail", "after"))
        number, following = self.fresh_label("%number"), self.fresh_label("%following")
        self.do(f"br label %{before}")
        self.label(before)
        self.do(f"br label %{head}")
        self.label(head)
        self.do(f"{number} = phi i64 [ 0, %{before} ], [ {following}, %{tail} ]")
        yield number
        self.do(f"br label %{tail}")
        self.label(tail)
        self.do(f"{following} = add i64 {number}, 1")
        self.do(f"br i1 {self.op(f'icmp eq i64 {following}, {count}')}, label %{after}, label %{head}")
        self.label(after)

    # Factors --------------------------------------------------------------------------------------------------------

    def _decode_factor(self, number: str) -> None:
        bits = self._load(VI, "exponents", number)
        if self._form.ignored_bits:
            bits = self.binary("lshr", "i32", bits, splat("i32", self._form.ignored_bits))
        decoded = _decode(self, self._form, bits)
        self._store(VF, decoded.significand, "significands", number)
        self._store(VI, decoded.exponent, "exponents", number)
        special = self.op("load i32, ptr %special")
        special = self.op(f"or i32 {special}, {_has_special(self, self._form, decoded)}")
        self.do(f"store i32 {special}, ptr %special")

    def _spread(self, side: str, fragment: Fragment, first: int) -> None:
        """The elements of A or B, of which the first has the number `first`, go to the lanes that multiply them."""
        for which in (0, 1):
            elements = self._elements_of_d(2 * which if side == "a" else which)
            for k in range(self._layout.depth):
                places = [fragment.place(*((row, k) if side == "a" else (k, column))) for row, column in elements]
                # All lanes find theirs in the same register and half.
                ((register, half),) = {(place.register, place.half) for place in places}
                order = ", ".join(f"i32 {place.lane}" for place in places)
                source = str(first + fragment.packed * register + half)
                for part, kind in _PARTS:
                    row = self._load(kind, part, source)
                    row = self.op(f"shufflevector {kind} {row}, {kind} poison, <32 x i32> <{order}>")
                    self._store(kind, row, f"{side}.{part}", str(self._layout.depth * which + k))

    def _elements_of_d(self, number: int) -> list[tuple[int, int]]:
        """Row and column, of each lane."""
        register, half = divmod(number, self._layout.c.packed)
        return [self._layout.c.element(register, lane, half) for lane in range(32)]

    # Elements of D --------------------------------------------------------------------------------------------------

    def _element_of_d(self, number: str) -> str:
        """The pattern, i32."""
        depth = self._layout.depth
        of_a = self.op(f"mul i64 {self.op(f'lshr i64 {number}, 1')}, {depth}")
        of_b = self.op(f"mul i64 {self.op(f'and i64 {number}, 1')}, {depth}")
        c = _decode(self, self._accumulator, self._load(VI, "c", number))
        total = self._sum(of_a, of_b, c)
        finite = (_to_half if self._layout.c.packed == 2 else _to_float)(self, total)
        special = self.op("load i32, ptr %special")
        special = self.op(f"or i32 {special}, {_has_special(self, self._accumulator, c)}")
        before, mend, done = (self.fresh_label(word) for word in ("finite", "mend", "done"))
        self.do(f"br label %{before}")
        self.label(before)
        self.do(f"br i1 {self.op(f'icmp eq i32 {special}, 0')}, label %{done}, label %{mend}")
        self.label(mend)
        mended = self._with_specials(of_a, of_b, c, finite)
        last = self.fresh_label("mended")
        self.do(f"br label %{last}")
        self.label(last)
        self.do(f"br label %{done}")
        self.label(done)
        return self.op(f"phi {VI} [ {finite}, %{before} ], [ {mended}, %{last} ]")

    def _factor(self, side: str, index: str) -> _Number:
        return _Number(self._load(VF, f"{side}.significands", index), self._load(VI, f"{side}.exponents", index))

    def _sum(self, of_a: str, of_b: str, c: _Number) -> str:
        """The exact sum of what is kept, as double."""
        form, accumulator = self._form, self._accumulator
        pairs = []
        for k in range(self._layout.depth):
            pairs.append([self._factor(n, self.op(f"add i64 {first}, {k}")) for n, first in (("a", of_a), ("b", of_b))])
        exponents = [self.binary("add", "i32", x.exponent, y.exponent) for x, y in pairs]
        # From here on, exponents have twice the bias of the multiplicands.
        of_c = self.binary("add", "i32", c.exponent, splat("i32", 2 * form.bias - accumulator.bias))
        largest = _larger(self, of_c, splat("i32", 2 * form.bias + _LOWEST_EXPONENT))
        for exponent in exponents:
            largest = _larger(self, largest, exponent)
        total = splat("i32", 0)
        for (x, y), exponent in zip(pairs, exponents):
            product = self.binary("fmul", "float", x.significand, y.significand)
            below = self.binary("sub", "i32", exponent, largest)
            # 16 products below 4 are below 2^31 here: no significand is quite 2.
            total = self.binary("add", "i32", total, _cut(self, product, below, 2 * form.fraction_bits, 2))
        below = self.binary("sub", "i32", of_c, largest)
        kept = _cut(self, c.significand, below, accumulator.fraction_bits, 1)
        wide = self.binary("fadd", "double", *(self.cast("sitofp", "i32", part, "double") for part in (total, kept)))
        unit = self.binary("add", "i32", largest, splat("i32", 1023 - 2 * form.bias - KEPT_BITS))
        power = self.binary("shl", "i64", self.cast("zext", "i32", unit, "i64"), splat("i64", 52))
        return self.binary("fmul", "double", wide, self.cast("bitcast", "i64", power, "double"))

    def _with_specials(self, of_a: str, of_b: str, c: _Number, finite: str) -> str:
        """What infinities and NaN make of an element; `finite` where none reach it."""
        self._store(VF, _class_of(self, self._accumulator, c), "significands", "0")
        with self._loop(self._layout.depth) as k:
            factors = [self._factor(n, self.op(f"add i64 {first}, {k}")) for n, first in (("a", of_a), ("b", of_b))]
            product = self.binary("fmul", "float", *(_class_of(self, self._form, factor) for factor in factors))
            total = self.binary("fadd", "float", self._load(VF, "significands", "0"), product)
            self._store(VF, total, "significands", "0")
        total = self._load(VF, "significands", "0")
        if self._layout.c.packed == 2:
            special = self.cast("zext", "i16", float_to_half(self, total), "i32")
        else:
            nan = self.compare("uno", "float", total, total)
            special = self.select("i32", nan, splat("i32", 0x7FFFFFFF), self.cast("bitcast", "float", total, "i32"))
        magnitude = self.intrinsic("llvm.fabs.v32f32", VF, (VF, total))
        is_finite = self.compare("olt", "float", magnitude, float_from_bits("float", 0x7F800000))
        return self.select("i32", is_finite, finite, special)


_PARTS = (("significands", VF), ("exponents", VI))
