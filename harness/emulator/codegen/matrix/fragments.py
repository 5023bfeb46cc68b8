"""Layouts of matrix fragments: which elements the registers of a warp's lanes hold (PTX ISA 9.7.14.4 and 9.7.14.5).

All fragments have the same structure. A register of 32 lanes holds a tile; a lane is identified by its group, `lane >>
2`, and its place in the group, `lane & 3`. Groups run along one dimension of the matrix and places along the other, so
that a tile has 8 elements in one direction and 4 in the other, or 8 or 16 if a register packs two or four elements. The
layouts of `mma` are in the PTX ISA. Those of `wmma` are not, but an H200 (tested with every shape, type and memory
order) holds two `mma` fragments next to each other; A and B of f16, for which PTX has more registers than elements, are
replicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class Place(NamedTuple):
    """Location of an element."""

    register: int
    lane: int
    item: int
    """Index among the elements packed in the register, from the lowest bits on."""


Origin = tuple[int, int]
"""Row and column of the element in lane 0 of a register (in its lowest bits)."""


@dataclass(frozen=True)
class Fragment:
    """The layout of one operand."""

    rows: int
    columns: int
    bits: int
    """Bits per element: 8, four to a register; 16, two to a register; or 32."""
    origins: tuple[Origin, ...]
    """The origin of each register's tile."""
    spread: int
    """Distance between the elements of neighbouring places: 1, 2 or 4."""
    groups_are_rows: bool = True
    """Whether groups run along rows, or else along columns."""

    @property
    def registers(self) -> int:
        """Registers per lane."""
        return len(self.origins)

    @property
    def packed(self) -> int:
        """Elements per register."""
        return 32 // self.bits

    def element(self, register: int, lane: int, item: int = 0) -> tuple[int, int]:
        """Row and column of an element."""
        row, column = self.origins[register]
        group, place = lane >> 2, self.spread * (lane & 3) + item
        return (row + group, column + place) if self.groups_are_rows else (row + place, column + group)

    def place(self, row: int, column: int) -> Place:
        """Location of an element; the first one if it is in two registers."""
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
    """The fragments of one `mma.m16n8k*`: D = A B + C; C and D have the same layout."""

    a: Fragment
    b: Fragment
    c: Fragment

    @property
    def depth(self) -> int:
        """The size K."""
        return self.a.columns


def mma_layout(depth: int, bits: int, accumulator_bits: int, rows: int = 16) -> MmaLayout:
    """Layout of m`rows`n8k`depth` with factors and accumulators of the given bits, and 16 or 8 rows.

    f64 has the layout of 32 bits, in registers of 64.
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
    """Two fragments, the second displaced by `rows` or `columns`."""
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
"""K by shape; the last shape is for tf32 only."""


def wmma_layout(shape: str, kind: str, accumulator_bits: int) -> MmaLayout:
    """Layout of a `wmma` with factors of type `kind`, as on an H200: two `mma`, one for each half of D.

    That of 8-bit integers was not tested on a GPU.
    """
    mma = mma_layout(WMMA_SHAPES[shape], {"tf32": 32, "s8": 8, "u8": 8}.get(kind, 16), accumulator_bits)
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
