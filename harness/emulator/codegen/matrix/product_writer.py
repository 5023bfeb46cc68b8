"""Writes one matrix product as a function in LLVM IR.

It converts registers to rows of 32 lanes, computes the elements of D, and converts them back. Each element of D is
assigned to a lane, and `fragments.py` determines the lanes that hold its factors. The functions are part of the runtime
instead of each kernel: they are compiled once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from harness.emulator.codegen.matrix.fragments import Fragment, MmaLayout
from harness.emulator.codegen.vector_ir_builder import VectorIRBuilder, splat, vector

VI = vector("i32")


class ProductWriter(VectorIRBuilder, ABC):
    """Writes one function.

    Its arguments are an address and, for each register of D, A, B and C, how far from there its 32 lanes are. Arrays on
    its stack hold rows of 32 lanes. For each of its `parts`, of which the last is of i32:

    - `PART`: of the elements of A, then those of B, in the lanes that hold them;
    - `a.PART`, `b.PART`: the same in the lanes of the elements of D that they are factors of, K rows for each of the
      rows of A, or columns of B, that a lane needs.

    `c` and `d` hold patterns, an element to a row. Element `n` of D belongs to row `n >> 1` of A and column `n & 1` of
    B among those.
    """

    parts: tuple[tuple[str, str], ...]
    """Name and LLVM type of the values stored per factor."""

    def __init__(self, layout: MmaLayout) -> None:
        super().__init__()
        self.layout = layout

    @abstractmethod
    def decode_factor(self, side: str, number: str) -> None:
        """Convert one row of the array of the last part, which holds bit patterns, to rows of all parts."""

    @abstractmethod
    def element_of_d(self, number: str) -> str:
        """The bit pattern of an element, i32."""

    def begin(self) -> None:
        """Called before anything else is emitted."""
        return

    def function(self, head: str, more: Sequence[str] = ()) -> list[str]:
        """The text of the function.

        `head` precedes its arguments; `more` are additional arguments after the common ones.
        """
        a, b, c = self.layout.a, self.layout.b, self.layout.c
        of_a, of_b, of_c = (fragment.registers * fragment.packed for fragment in (a, b, c))
        needed = {"a": of_c // 2, "b": 2}
        patterns = self.parts[-1][0]
        for name, element, rows in (
            *((part, kind, of_a + of_b) for part, kind in self.parts),
            *((f"{side}.{part}", kind, needed[side] * a.columns) for side in "ab" for part, kind in self.parts),
            ("c", VI, of_c),
            ("d", VI, of_c),
        ):
            self.do(f"%{name} = alloca [{rows} x {element}], align 64")
        self.begin()
        self._split("a", a, patterns, 0)
        self._split("b", b, patterns, of_a)
        self._split("c", c, "c", 0)
        for side, first, end in (("a", 0, of_a), ("b", of_a, of_a + of_b)):
            with self.loop(end, first) as number:
                self.decode_factor(side, number)
        for side, fragment, first in (("a", a, 0), ("b", b, of_a)):
            for which in range(needed[side]):
                self._spread(side, fragment, first, which)
        with self.loop(of_c) as number:
            self.store(VI, self.element_of_d(number), "d", number)
        self._join()
        self.do("ret i64 0")
        operands = [f"i64 %{n}{i}" for n, f in (("d", c), ("a", a), ("b", b), ("c", c)) for i in range(f.registers)]
        return [f"{head}(i64 %warp, {', '.join([*operands, *more])}) {{", "entry:", *self.lines, "}"]

    # Memory ---------------------------------------------------------------------------------------------------------

    def row(self, kind: str, array: str, index: str) -> str:
        """Pointer to a row of an array."""
        return self.op(f"getelementptr {kind}, ptr %{array}, i64 {index}")

    def load(self, kind: str, array: str, index: str) -> str:
        """Load a row of an array."""
        return self.op(f"load {kind}, ptr {self.row(kind, array, index)}, align 64")

    def store(self, kind: str, value: str, array: str, index: str) -> None:
        """Store a row of an array."""
        self.do(f"store {kind} {value}, ptr {self.row(kind, array, index)}, align 64")

    def _register(self, operand: str, index: int) -> str:
        """Pointer to a register's lanes."""
        address = self.op(f"add i64 %warp, %{operand}{index}")
        return self.op(f"inttoptr i64 {address} to ptr")

    def _split(self, operand: str, fragment: Fragment, array: str, first: int) -> None:
        """Convert registers to rows, one bit pattern per row, in the order of registers and of the packed elements."""
        for register in range(fragment.registers):
            word = self.op(f"load {VI}, ptr {self._register(operand, register)}, align 64")
            for item in range(fragment.packed):
                part = word
                if item:
                    part = self.binary("lshr", "i32", part, splat("i32", fragment.bits * item))
                if item < fragment.packed - 1:
                    part = self.binary("and", "i32", part, splat("i32", (1 << fragment.bits) - 1))
                self.store(VI, part, array, str(first + fragment.packed * register + item))

    def _join(self) -> None:
        """Convert the array `d` to registers."""
        fragment = self.layout.c
        for register in range(fragment.registers):
            word = self.load(VI, "d", str(fragment.packed * register))
            if fragment.packed == 2:
                high = self.load(VI, "d", str(2 * register + 1))
                word = self.binary("or", "i32", word, self.binary("shl", "i32", high, splat("i32", 16)))
            self.do(f"store {VI} {word}, ptr {self._register('d', register)}, align 64")

    @contextmanager
    def loop(self, end: int | str, first: int = 0) -> Iterator[str]:
        """A context manager for a loop; its body is emitted once, for the loop variable."""
        before, head, tail, after = (self.fresh_label(word) for word in ("before", "head", "tail", "after"))
        number, following = self.fresh_label("%number"), self.fresh_label("%following")
        self.do(f"br label %{before}")
        self.label(before)
        self.do(f"br label %{head}")
        self.label(head)
        self.do(f"{number} = phi i64 [ {first}, %{before} ], [ {following}, %{tail} ]")
        yield number
        self.do(f"br label %{tail}")
        self.label(tail)
        self.do(f"{following} = add i64 {number}, 1")
        self.do(f"br i1 {self.op(f'icmp eq i64 {following}, {end}')}, label %{after}, label %{head}")
        self.label(after)

    # Lanes ----------------------------------------------------------------------------------------------------------

    def factors_of(self, number: str) -> tuple[str, str]:
        """Index in the arrays of A and B at which the factors of an element of D begin."""
        of_a = self.op(f"mul i64 {self.op(f'lshr i64 {number}, 1')}, {self.layout.depth}")
        return of_a, self.op(f"mul i64 {self.op(f'and i64 {number}, 1')}, {self.layout.depth}")

    def _spread(self, side: str, fragment: Fragment, first: int, which: int) -> None:
        """Distribute a row of A or column of B, whose first element is in row `first`, to the lanes that use it."""
        elements = self._elements_of_d(2 * which if side == "a" else which)
        for k in range(self.layout.depth):
            places = [fragment.place(*((row, k) if side == "a" else (k, column))) for row, column in elements]
            # All lanes find their element in the same register, at the same place in it.
            ((register, item),) = {(place.register, place.item) for place in places}
            order = ", ".join(f"i32 {place.lane}" for place in places)
            source = str(first + fragment.packed * register + item)
            for part, kind in self.parts:
                row = self.load(kind, part, source)
                row = self.op(f"shufflevector {kind} {row}, {kind} poison, <32 x i32> <{order}>")
                self.store(kind, row, f"{side}.{part}", str(self.layout.depth * which + k))

    def _elements_of_d(self, number: int) -> list[tuple[int, int]]:
        """Row and column of each lane's element of D."""
        register, item = divmod(number, self.layout.c.packed)
        return [self.layout.c.element(register, lane, item) for lane in range(32)]


def slice_ir(name: str, layout: MmaLayout, function: str, more: Sequence[str] = ()) -> list[str]:
    """`function` as a slice of a warpgroup's product, D += A B, under a name of its own.

    Its argument is the address of ten words: the locations of D's registers, from the fifth A's, then B's.
    """
    v = VectorIRBuilder()
    v.do("%places = inttoptr i64 %argument to ptr")
    words = []
    for first, fragment in ((0, layout.c), (4, layout.a), (8, layout.b)):
        for register in range(fragment.registers):
            place = v.op(f"getelementptr i64, ptr %places, i64 {first + register}")
            words.append(v.op(f"load i64, ptr {place}"))
    arguments = (*words, *words[: layout.c.registers], *more)
    v.do(f"%done = call i64 {function}(i64 0, {', '.join(f'i64 {word}' for word in arguments)})")
    return [f"define void @sandbox_{name}(i64 %argument) {{", *v.lines, "  ret void", "}"]
