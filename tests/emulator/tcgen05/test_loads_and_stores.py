"""tcgen05.ld and tcgen05.st: every shape and number of repeats, packed or not, compared with the model's cells.

PTX ISA, sections 9.7.16.2.3 and 9.7.16.8. Each kernel has many forms, one in each block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from blackwell_kernel import WHOLE_MEMORY, moved, run_blackwell
from lanes import exhaustive_unless
from tensor_memory_model import (
    COLUMNS,
    LANES,
    SHAPES,
    Words,
    address_of,
    fragment,
    load,
    repeats_of,
    store,
)

MOST = 128
"""Registers of the longest form."""
SHORT = (1, 2, 4)
"""Repeats of forms of which one kernel has those of all shapes."""


@dataclass(frozen=True)
class Move:
    """One form of ld and st."""

    shape: str
    repeats: int
    packed: bool = False

    @property
    def registers(self) -> int:
        return self.repeats * SHAPES[self.shape]

    @property
    def split(self) -> int:
        """Of 16x32bx2, in columns: the halves do not touch, but where they have to."""
        columns = self.repeats * (1 + self.packed)
        return min(columns + 7, COLUMNS - columns)

    @property
    def address(self) -> int:
        """Of warp 0: short forms begin at some column, in the upper half of the warp's lanes if they have 16 lanes."""
        lane = 16 if self.shape.startswith("16") else 0
        return address_of(lane, 5) if self.repeats in SHORT else 0

    def case(self) -> str:
        """The form's statements: a load from `at` into the block's part of `loaded`, and a store at the same place."""
        parts = (self.shape, self.repeats, self.registers, self.packed, self.split)
        return f"""{{
      u32 r[{self.registers}], at = place + (t / 32 << 21) + {self.address:#x}u;
      {moved("ld", *parts)}
      LOADED();
      for (int i = 0; i < {self.registers}; ++i) loaded[32 * i] = r[i];
      for (int i = 0; i < {self.registers}; ++i) r[i] = stored[32 * i];
      {moved("st", *parts)}
      WRITTEN();
      break; }}"""


def kernel(moves: list[Move]) -> str:
    cases = "\n".join(f"    case {i}: {move.case()}" for i, move in enumerate(moves))
    return f"""{WHOLE_MEMORY}
extern "C" __global__ void k(u32* memory, const u32* stored, u32* loaded) {{
  __shared__ u32 place;
  u32 t = threadIdx.x, b = blockIdx.x;
  memory += {LANES * COLUMNS} * b;
  stored += {32 * MOST} * (4 * b + t / 32) + t % 32;
  loaded += {32 * MOST} * (4 * b + t / 32) + t % 32;
  if (t < 32) ALLOC(1, &place, 512);
  BEFORE(); __syncthreads(); AFTER();
  fill(place, memory);
  switch (b) {{
{cases}
  }}
  dump(place, memory);
  BEFORE(); __syncthreads(); AFTER();
  if (t < 32) DEALLOC(1, place, 512);
}}"""


def words(rng: np.random.Generator, *shape: int) -> Words:
    return rng.integers(0, 1 << 32, shape, np.uint32)


GROUPS = [
    *([Move(shape, count, packed) for shape in SHAPES for count in SHORT] for packed in (False, True)),
    *([Move(shape, count, packed) for count in repeats_of(shape) if count not in SHORT]
      for shape in SHAPES for packed in (False, True)),
]  # fmt: skip


def name_of(moves: list[Move]) -> str:
    """The shapes and repeats of a kernel, for the names of tests."""
    shapes = "+".join(dict.fromkeys(move.shape for move in moves))
    return f"{shapes}.x{moves[0].repeats}-x{moves[-1].repeats}{'.packed' if moves[0].packed else ''}"


@pytest.mark.parametrize("moves", exhaustive_unless(lambda moves: moves in GROUPS[:2], GROUPS), ids=name_of)
def test_every_form(moves: list[Move]):
    """Loads give the cells that the model names, in each of the four warps. Stores write these cells and no others."""
    rng = np.random.default_rng(len(moves))
    memory, stored = words(rng, len(moves), LANES, COLUMNS), words(rng, len(moves), 4, MOST, 32)
    arrays = {"memory": memory, "stored": stored, "loaded": np.zeros_like(stored)}
    args = ("memory", "stored", "loaded")
    after, _ = run_blackwell(kernel(moves), arrays, args, grid=(len(moves), 1, 1), block=(128, 1, 1))
    for i, move in enumerate(moves):
        parts = (move.shape, move.repeats, move.packed, move.split)
        expected, defined = memory[i], np.full_like(memory[i], 0xFFFFFFFF)
        for warp in range(4):
            at = move.address + address_of(32 * warp, 0)
            registers = after["loaded"][i, warp, : move.registers]
            assert np.array_equal(registers, load(memory[i], at, *parts)), f"{move}, warp {warp}"
            expected, bits = store(expected, at, stored[i, warp, : move.registers], *parts)
            defined &= bits
        assert np.array_equal(after["memory"][i] & defined, expected & defined), move


@pytest.mark.parametrize(("shape", "packed"), [(shape, packed) for shape in SHAPES for packed in (False, True)])
def test_the_model_covers_each_cell_once(shape: str, packed: bool):
    """No two registers share a cell, and the lanes and columns of a form are a rectangle, or two."""
    for repeats in repeats_of(shape):
        width = 1 + packed
        lane, column = fragment(shape, repeats, packed, width * repeats)
        cells = set(zip(lane.ravel().tolist(), column.ravel().tolist()))
        assert len(cells) == lane.size
        lanes = 32 if shape == "32x32b" else 16
        assert {place for place, _ in cells} == set(range(lanes))
        columns = lane.size // lanes
        assert {place for _, place in cells} == set(range(0, width * columns, width))
