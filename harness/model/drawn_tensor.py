"""Draws parts of inputs that are too large to draw at once. An element depends only on seed, tensor and position.

Element e of tensor t is computed from the words 2 e and 2 e + 1 of Philox4x64-10 (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3") with the key (seed, t). It is the sum of their eight 16-bit numbers, which is nearly
normal (Irwin and Hall), minus its mean, divided by its standard deviation. All of this is integer arithmetic except for
one product in float32, so that a GPU computes the same bits (`harness/gpu/stage.py`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

WORDS = 2
"""64-bit words per element."""
HALVES = 8
"""16-bit numbers per element."""
MEAN = HALVES * (2**16 - 1) // 2
ONE_OVER_DEVIATION = np.float32(1 / math.sqrt(HALVES * (2**32 - 1) / 12))
"""1 / standard deviation of the sum of `HALVES` integers, each distributed uniformly below 2^16."""
LOW_HALVES = np.uint64(0x0000FFFF0000FFFF)
ELEMENTS_PER_COUNTER = 2
"""Elements per counter value, for which Philox4x64 generates four words."""
CHUNK = 2**15
"""Elements drawn at once on the host, so that their words fit into a cache."""


@dataclass(frozen=True)
class DrawnTensor:
    """A tensor of nearly normal numbers that is drawn on access: `tensor[batches, heads]` is an array.

    Indices are integers, slices, and arrays of integers for the first axes, combined as in `np.ix_`. Omitted axes are
    taken whole. `np.asarray(tensor)` draws the whole tensor.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    seed: int
    """Seed, at least 0 and below 2^64."""
    number: int
    """Number of the tensor within the problem."""

    def __getitem__(self, index: Any) -> np.ndarray:
        """Draw a part, in the tensor's dtype."""
        chosen = index if isinstance(index, tuple) else (index,)
        axes = [np.atleast_1d(np.arange(extent)[each]) for extent, each in zip(self.shape, chosen)]
        rest = self.shape[len(axes) :]
        run = math.prod(rest)
        part = np.empty((*map(len, axes), run), self.dtype)
        for place, at in zip(np.ndindex(*part.shape[:-1]), itertools.product(*axes)):
            first = run * int(np.ravel_multi_index(at, self.shape[: len(axes)])) if axes else 0
            self._fill(part[place], first)
        kept = [len(axis) for axis, each in zip(axes, chosen) if not isinstance(each, (int, np.integer))]
        return part.reshape((*kept, *rest))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Draw the whole tensor."""
        whole = self[()]
        return whole if dtype is None else whole.astype(dtype)

    def _fill(self, run: np.ndarray, first: int) -> None:
        """Fill `run` with the elements from `first` on, in memory order."""
        for start in range(0, len(run), CHUNK):
            piece = run[start : start + CHUNK]
            piece[:] = self._numbers(first + start, len(piece)).astype(self.dtype)

    def _numbers(self, first: int, count: int) -> npt.NDArray[np.float32]:
        counter, skipped = divmod(first, ELEMENTS_PER_COUNTER)
        # NumPy increments the counter before it draws: the first words are those of the given counter plus one.
        generator = np.random.Philox(counter=(counter - 1) % 2**256, key=self.seed | self.number << 64)
        words = generator.random_raw(WORDS * (skipped + count))[WORDS * skipped :]
        # Two sums at a time, in the halves of a word. Neither exceeds 32 bits.
        pairs = (words & LOW_HALVES) + (words >> np.uint64(16) & LOW_HALVES)
        both = pairs[0::2] + pairs[1::2]
        sums = (both + (both >> np.uint64(32))).astype(np.uint32).view(np.int32)
        numbers: npt.NDArray[np.float32] = (sums - np.int32(MEAN)).astype(np.float32) * ONE_OVER_DEVIATION
        return numbers
