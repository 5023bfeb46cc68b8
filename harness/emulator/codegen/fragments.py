"""Which elements of a matrix the registers of a warp's lanes hold (PTX ISA 9.7.14.4 and 9.7.14.5).

All fragments are built alike. A register of 32 lanes holds a tile; a lane is the pair of its group, `lane >> 2`, and
its place in the group, `lane & 3`. Groups run along one dimension of the matrix and places along the other, so that a
tile has 8 elements one way and 4, or 8 or 16 where a register packs two or four elements, the other way. The layouts of
`mma` are in the PTX ISA. Those of `wmma` are not, but an H200 (asked with every shape, type and order in memory)
holds two `mma` fragments side by side, and A and B of f16, for which PTX has more registers than elements, several
times over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class Place(NamedTuple):
    """Where an element is."""

    register: int
    lane: int
    item: int
    """Which of those that the register packs, from the lowest bits on."""


Origin = tuple[int, int]
"""Row and column of the element that lane 0 holds in a register (in its lowest bits)."""


@dataclass(frozen=True)
class Fragment:
    """The layout of one operand."""

    rows: int
    columns: int
    bits: int
    """Of an element: 8, four to a register, 16, two to a register, or 32."""
    origins: tuple[Origin, ...]
    """Of each register's tile."""
    spread: int
    """How far apart, along their dimension, the elements of neighbouring places are: 1, 2 or 4."""
    groups_are_rows: bool = True
    """Whether groups run along the rows; else along the columns."""

    @property
    def registers(self) -> int:
        """How many a lane has."""
        return len(self.origins)

    @property
    def packed(self) -> int:
        """Elements in a register."""
        return 32 // self.bits

    def element(self, register: int, lane: int, item: int = 0) -> tuple[int, int]:
        """Row and column of an element."""
        row, column = self.origins[register]
        group, place = lane >> 2, self.spread * (lane & 3) + item
        return (row + group, column + place) if self.groups_are_rows else (row + place, column + group)

    def place(self, row: int, column: int) -> Place:
        """Where an element is; where it is in two registers, the first."""
        for register, (top, left) in enumerate(self.origins):
            group, along = (row - top, column - left) if self.groups_are_rows else (column - left, row - top)
            place, item = divmod(along, self.spread)
            if 0 <= group < 8 and 0 <= place < 4 and item < self.packed:
                return Place(register, 4 * group + place, item)
        raise AssertionError((self, row, column))


def _tiles(rows: Sequence[int], columns: Sequence[int], down_first: bool = True) -> tuple[Origin, ...]:
    if down_first:
        return tuple((row, column) for column in columns for row in rows)
    return tuple((row, column) for row in rows for column in columns)


@dataclass(frozen=True)
class MmaLayout:
    """The fragments of one `mma.m16n8k*`: D = A B + C, where C and D are alike."""

    a: Fragment
    b: Fragment
    c: Fragment

    @property
    def depth(self) -> int:
        """K."""
        return self.a.columns


def mma_layout(depth: int, bits: int, accumulator_bits: int, rows: int = 16) -> MmaLayout:
    """m`rows`n8k`depth` with multiplicands and accumulators of so many bits, and 16 rows or 8.

    Those of f64 are as those of 32 bits, in registers of 64.
    """
    step = 4 * (32 // bits)
    steps = range(0, depth, step)
    spread = 32 // bits
    tops = range(0, rows, 8)
    of_c = _tiles(tops, (0,) if accumulator_bits == 16 else (0, 1), down_first=False)
    return MmaLayout(
        Fragment(rows, depth, bits, _tiles(tops, steps), spread),
        Fragment(depth, 8, bits, _tiles(steps, (0,)), spread, groups_are_rows=False),
        Fragment(rows, 8, accumulator_bits, of_c, 2),
    )


def _beside(fragment: Fragment, rows: int = 0, columns: int = 0) -> Fragment:
    """Two fragments, the second so many rows or columns from the first."""
    second = tuple((row + rows, column + columns) for row, column in fragment.origins)
    rows, columns = fragment.rows + rows, fragment.columns + columns
    return replace(fragment, rows=rows, columns=columns, origins=fragment.origins + second)


def _transposed(fragment: Fragment) -> Fragment:
    origins = tuple((column, row) for row, column in fragment.origins)
    return replace(
        fragment,
        rows=fragment.columns,
        columns=fragment.rows,
        origins=origins,
        groups_are_rows=not fragment.groups_are_rows,
    )


def _repeated(fragment: Fragment, registers: int) -> Fragment:
    return replace(fragment, origins=fragment.origins * (registers // fragment.registers))


WMMA_SHAPES = {"m16n16k16": 16, "m32n8k16": 16, "m8n32k16": 16, "m16n16k8": 8}
"""Shape -> K; the last is of tf32 alone."""


def wmma_layout(shape: str, kind: str, accumulator_bits: int) -> MmaLayout:
    """A `wmma` of multiplicands of type `kind`, as an H200 has it: two `mma`, one half of D each."""
    mma = mma_layout(WMMA_SHAPES[shape], 32 if kind == "tf32" else 16, accumulator_bits)
    if shape in ("m16n16k16", "m16n16k8"):
        layout = MmaLayout(mma.a, _beside(mma.b, columns=8), _beside(mma.c, columns=8))
    else:
        layout = MmaLayout(_beside(mma.a, rows=16), mma.b, _beside(mma.c, rows=16))
    if shape == "m8n32k16":
        # D' = B' A' + C'.
        layout = MmaLayout(*(_transposed(fragment) for fragment in (layout.b, layout.a, layout.c)))
    if kind == "f16":
        layout = replace(layout, a=_repeated(layout.a, 8), b=_repeated(layout.b, 8))
    return layout
