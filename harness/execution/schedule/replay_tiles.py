"""Converts sectors of a buffer to rectangles of the matrix that it is drawn as."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from harness.execution.schedule.replay import INPUT, OUTPUT, SCRATCH, Matrix, Tile
from harness.model.plan import ELEMENT_BYTES, Plan
from harness.model.problem import INPUT as INPUT_TENSOR
from harness.model.problem import BaseProblem
from harness.support.memory_units import SECTOR_BYTES

WORD_BYTES = 4
FEWEST_WORDS = 4
"""Fewest words of a row that must be found in shared memory, since a computed value may equal one by chance."""
Piece = tuple[int, int, int, int]
"""First row, end row, first column, end column."""


def matrices_of(problem: BaseProblem, plan: Plan) -> dict[str, Matrix]:
    """How each of the plan's buffers is drawn, by name.

    If a buffer's first axes count the heads of the main output (all axes but its last two), it is drawn for the first
    head; likewise an input of a batch, which may have fewer heads. The last axis becomes the columns; a single
    remaining axis becomes the rows.
    """
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    main = next(tensor for tensor in problem.tensors if tensor.role != INPUT_TENSOR)
    # If there is one row per head, all heads are drawn.
    heads = int(np.prod(main.shape[:-2], dtype=np.int64)) if len(main.shape) > 2 and main.shape[-2] > 1 else 1
    found = {}
    for name, buffer in plan.all_buffers(problem).items():
        tensor = tensors.get(name)
        leading = _leading_axes(buffer.shape, heads)
        if tensor is not None and tensor.axes[0] == "batch" and len(buffer.shape) > 2:
            leading = 2
        inner = buffer.shape[leading:]
        rows, columns = (int(np.prod(inner[:-1], dtype=np.int64)), inner[-1]) if len(inner) > 1 else (sum(inner), 1)
        role = SCRATCH if tensor is None else INPUT if tensor.role == INPUT_TENSOR else OUTPUT
        slices = int(np.prod(buffer.shape[:leading], dtype=np.int64))
        found[name] = Matrix(name, role, rows, columns, ELEMENT_BYTES[buffer.dtype], slices)
    return found


def _leading_axes(shape: tuple[int, ...], heads: int) -> int:
    """Number of leading axes whose sizes multiply to `heads`; 0 if none do, or if no axis would remain."""
    product = 1
    for count, extent in enumerate(shape[:-1], 1):
        product *= extent
        if product == heads and count > 1:
            return count
    return 0


def undrawn(name: str) -> Matrix:
    """Placeholder for memory that is not a buffer of the plan."""
    return Matrix(name, SCRATCH, 0, 1, 1, 1)


def slice_sectors(matrix: Matrix) -> int:
    """Number of sectors of the drawn part, including a partial last one."""
    return -(-matrix.rows * matrix.columns * matrix.element_bytes // SECTOR_BYTES)


def tiles_of_sectors(sectors: npt.NDArray[np.int64], matrix: Matrix) -> tuple[Tile, ...]:
    """The tiles that these sectors of the buffer (ascending and distinct) cover, within the drawn part."""
    inside = sectors[sectors < slice_sectors(matrix)]
    if not len(inside):
        return ()
    breaks = np.flatnonzero(np.diff(inside) != 1) + 1
    firsts = inside[np.concatenate(([0], breaks))] * SECTOR_BYTES // matrix.element_bytes
    lasts = (inside[np.concatenate((breaks - 1, [len(inside) - 1]))] + 1) * SECTOR_BYTES
    ends = np.minimum(-(-lasts // matrix.element_bytes), matrix.rows * matrix.columns)
    return stacked(
        piece for first, end in zip(firsts.tolist(), ends.tolist()) for piece in _pieces(first, end, matrix.columns)
    )


def _pieces(first: int, end: int, columns: int) -> Iterator[Piece]:
    """Split a contiguous run of elements into rows."""
    row, column = divmod(first, columns)
    last_row, last_column = divmod(end, columns)
    if row == last_row:
        yield row, row + 1, column, last_column
        return
    if column:
        yield row, row + 1, column, columns
        row += 1
    if last_row > row:
        yield row, last_row, 0, columns
    if last_column:
        yield last_row, last_row + 1, 0, last_column


def stacked(pieces: Iterable[Piece]) -> tuple[Tile, ...]:
    """Merge pieces, ordered by row, into tiles: pieces with the same columns in consecutive rows become one tile."""
    tiles: list[list[int]] = []
    open_tiles: dict[tuple[int, int], list[int]] = {}
    for first_row, end_row, first_column, end_column in pieces:
        above = open_tiles.get((first_column, end_column))
        if above is not None and above[1] == first_row:
            above[1] = end_row
            continue
        tile = [first_row, end_row, first_column, end_column]
        open_tiles[first_column, end_column] = tile
        tiles.append(tile)
    return tuple(Tile(*tile) for tile in tiles)


class SharedContents:
    """Finds rows of the inputs in shared memory by 4-byte words that occur only once in the drawn part.

    The way by which data was copied does not matter. Data that was changed is not found: scaled, converted, or, with
    elements of less than 4 bytes, transposed.
    """

    def __init__(self, matrices: Mapping[str, Matrix], inputs: Mapping[str, npt.NDArray[np.generic]]) -> None:
        self._names = [
            name
            for name, matrix in matrices.items()
            if matrix.role == INPUT and name in inputs and matrix.columns * matrix.element_bytes % WORD_BYTES == 0
        ]
        self._matrices = [matrices[name] for name in self._names]
        words: list[npt.NDArray[np.uint32]] = []
        for name, matrix in zip(self._names, self._matrices):
            row_bytes = matrix.columns * matrix.element_bytes
            drawn = np.ascontiguousarray(inputs[name]).reshape(-1).view(np.uint8)[: matrix.rows * row_bytes]
            words.append(drawn.view(np.uint32))
        self._starts = np.cumsum([0, *(len(part) for part in words)])
        """Index of each input's first word, followed by the total number."""
        everything = np.concatenate(words) if words else np.empty(0, np.uint32)
        values, first, counts = np.unique(everything, return_index=True, return_counts=True)
        self._words = values[counts == 1]
        self._numbers = first[counts == 1]
        self._telling = np.zeros(len(everything), dtype=bool)
        """Whether a word is unique and so identifies its origin."""
        self._telling[self._numbers] = True

    def tiles_in(self, contents: npt.NDArray[np.uint8]) -> dict[str, tuple[Tile, ...]]:
        """The tiles of each input that these bytes contain, from the first to the last matching column of a row."""
        if not len(self._words):
            return {}
        words = contents[: len(contents) // 4 * 4].view(np.uint32)
        index = np.minimum(np.searchsorted(self._words, words), len(self._words) - 1)
        here = np.zeros(len(self._telling), dtype=bool)  # a mark per word is faster than sorting
        here[self._numbers[index[self._words[index] == words]]] = True
        hits = np.flatnonzero(here)
        found = {}
        for owner, (name, matrix) in enumerate(zip(self._names, self._matrices)):
            start, end = self._starts[owner : owner + 2]
            tiles = stacked(self._pieces(hits[(hits >= start) & (hits < end)] - start, int(start), matrix))
            if tiles:
                found[name] = tiles
        return found

    def _pieces(self, places: npt.NDArray[np.int64], start: int, matrix: Matrix) -> Iterator[Piece]:
        """Rows with enough matching words. Ambiguous words are assigned the place that fits their neighbours."""
        row_words = matrix.columns * matrix.element_bytes // WORD_BYTES
        rows, firsts, counts = np.unique(places // row_words, return_index=True, return_counts=True)
        for row, first, count in zip(rows.tolist(), firsts.tolist(), counts.tolist()):
            if count < min(FEWEST_WORDS, row_words):
                continue
            telling = self._telling[start + row * row_words : start + (row + 1) * row_words]
            left, right = int(places[first]) % row_words, int(places[first + count - 1]) % row_words + 1
            while left > 0 and not telling[left - 1]:
                left -= 1
            while right < row_words and not telling[right]:
                right += 1
            scale = WORD_BYTES / matrix.element_bytes
            yield row, row + 1, int(left * scale), int(right * scale)
