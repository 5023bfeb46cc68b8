"""Inputs too large to be drawn on the host: an element follows from seed, tensor and place alone, and so does any part.

Element e of tensor t is made of the words 2 e and 2 e + 1 of Philox4x64-10 (Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3") with the key (seed, t): the sum of their eight 16-bit numbers, which is nearly normal
(Irwin and Hall), less its mean, over its standard deviation. All of that is integer arithmetic but for one product in
float32, so that a GPU comes to the same bits: see `harness/gpu/drawn_inputs.py`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

WORDS = 2
"""Words of 64 bits, per element."""
HALVES = 8
"""Numbers of 16 bits, per element."""
MEAN = HALVES * (2**16 - 1) // 2
ONE_OVER_DEVIATION = np.float32(1 / math.sqrt(HALVES * (2**32 - 1) / 12))
"""1 / standard deviation of the sum of `HALVES` whole numbers below 2^16, each as likely as any other."""
LOW_HALVES = np.uint64(0x0000FFFF0000FFFF)
ELEMENTS_PER_COUNTER = 2
"""Philox4x64 makes four words of a counter."""
CHUNK = 2**15
"""Elements that are drawn at once on the host: their words stay in a cache."""


@dataclass(frozen=True)
class DrawnTensor:
    """A tensor of nearly normal numbers, of which any part can be asked for: `tensor[batches, heads]` is an array.

    Indices are whole numbers, slices, and arrays of whole numbers for the first axes, each on its own (as `np.ix_` has
    them); what is left out is taken whole. `np.asarray(tensor)` is all of it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    seed: int
    """At least 0, below 2^64."""
    number: int
    """Which of the problem's tensors it is."""

    def __getitem__(self, index: Any) -> np.ndarray:
        """That part, in the tensor's dtype."""
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
        """All of it."""
        whole = self[()]
        return whole if dtype is None else whole.astype(dtype)

    def _fill(self, run: np.ndarray, first: int) -> None:
        """Elements from `first` on, in the order of memory."""
        for start in range(0, len(run), CHUNK):
            piece = run[start : start + CHUNK]
            piece[:] = self._numbers(first + start, len(piece)).astype(self.dtype)

    def _numbers(self, first: int, count: int) -> npt.NDArray[np.float32]:
        counter, skipped = divmod(first, ELEMENTS_PER_COUNTER)
        # NumPy counts up before it draws: its first words are those of the counter after the one that it is given.
        generator = np.random.Philox(counter=(counter - 1) % 2**256, key=self.seed | self.number << 64)
        words = generator.random_raw(WORDS * (skipped + count))[WORDS * skipped :]
        # Two sums at a time, in the halves of a word: neither outgrows its 32 bits.
        pairs = (words & LOW_HALVES) + (words >> np.uint64(16) & LOW_HALVES)
        both = pairs[0::2] + pairs[1::2]
        sums = (both + (both >> np.uint64(32))).astype(np.uint32).view(np.int32)
        numbers: npt.NDArray[np.float32] = (sums - np.int32(MEAN)).astype(np.float32) * ONE_OVER_DEVIATION
        return numbers
