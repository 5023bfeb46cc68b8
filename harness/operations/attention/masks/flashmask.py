"""FlashMask: for each key, the rows that do not see it (Wang et al. 2024, arXiv 2410.01359, section 4.1)."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.operations.attention.masks.array_file import ArrayFile
from harness.operations.attention.masks.mask import Integers, Mask, Scattered, Visibility
from harness.support.errors import ProblemError
from harness.support.override import override

_BY_SEED = re.compile(r"(?P<columns>[124])(?:,(?P<seed>[0-9]{1,9}))?")
_PIECES = (1, 4, 15, 33, 70, 90, 200)
"""Lengths of runs of keys with equal or similar spans, in random masks."""
_SLOPES = (0, 1, 1, -1)
"""Number of rows by which spans move from one key to the next, in random masks."""


@dataclass(frozen=True)
class FlashMask(Scattered):
    """Each key is hidden from the rows of one or two spans: one in the lower triangle and one in the upper.

    A key's columns are the starts and ends of its spans, with the paper's names and order. One column: LTS, the first
    row that does not see the key, nor do later rows. Two: LTS, and UTE, before which no row sees the key; with the
    causal mask, LTS and LTE. Four: LTS, LTE, UTS, UTE. Ends are exclusive.
    """

    columns: int
    """Number of columns: 1, 2 or 4."""
    seed: int = 0
    """Random seed of the columns; ignored if there is a file."""
    file: ArrayFile | None = None
    with_causal: bool = False
    """Whether it is combined with a causal mask, so that two columns are both of the lower triangle."""

    kind: ClassVar[str] = "flashmask"
    spelling: ClassVar[str] = "flashmask:FILE.npy"
    idea: ClassVar[str] = (
        "for each key, starts and ends of the rows that do not see it: an int32 array of 1, 2 or 4 columns, LTS; LTS, "
        "UTE (with causal: LTS, LTE); or LTS, LTE, UTS, UTE; or flashmask:COLUMNS[,SEED] for random rows"
    )

    @classmethod
    @override
    def parse(cls, parameters: str) -> Mask:
        words = parameters.strip()
        if found := _BY_SEED.fullmatch(words):
            return cls(int(found["columns"]), int(found["seed"] or 0))
        if words.endswith(".npy"):
            file = ArrayFile.read(cls.kind, words, _has_columns, "an int32 array of (keys, 1, 2 or 4 columns)")
            return cls(file.shape[1], file=file)
        raise ProblemError(
            f"mask flashmask:{parameters} is not {cls.spelling}, and not flashmask:COLUMNS,SEED with 1, 2 or 4 "
            "columns, such as flashmask:4,7"
        )

    @classmethod
    @override
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        return tuple(cls(columns, seed) for seed in range(8) for columns in (1, 2, 4))

    @override
    def in_combination_with(self, kinds: frozenset[str]) -> Mask:
        return dataclasses.replace(self, with_causal=self.columns == 2 and "causal" in kinds)

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        of_keys = self._of_keys(q_len, kv_len)[keys]
        if self.columns == 1:
            seen: Visibility = rows < of_keys[..., 0]
        elif self.columns == 2 and not self.with_causal:
            seen = (of_keys[..., 1] <= rows) & (rows < of_keys[..., 0])
        else:
            seen = (rows < of_keys[..., 0]) | (rows >= of_keys[..., 1])
            if self.columns == 4:
                seen &= (rows < of_keys[..., 2]) | (rows >= of_keys[..., 3])
        return seen

    @property
    def spans_per_key(self) -> int:
        """Number of spans of rows per key, each with a start and an end."""
        return 1 if self.columns == 1 or self.with_causal else 2

    def hidden_rows(self, q_len: int, kv_len: int) -> Integers:
        """Return the starts and ends of each key's spans, (2 x spans, kv_len), which kernels get as an input."""
        columns = self._of_keys(q_len, kv_len).T
        if self.columns == 1:
            return np.stack([columns[0], np.full_like(columns[0], q_len)])
        if self.columns == 2 and not self.with_causal:
            return np.stack([columns[0], np.full_like(columns[0], q_len), np.zeros_like(columns[1]), columns[1]])
        return np.ascontiguousarray(columns)

    def _of_keys(self, q_len: int, kv_len: int) -> Integers:
        """Return the columns of all keys, (kv_len, columns)."""
        if self.file is not None:
            of_file: Integers = self.file.array.astype(np.int64)
            return of_file
        by_chance = _by_chance(self.columns, self.seed, q_len, kv_len)
        # Random columns hide the rows from LTS to LTE. Mirrored, they hide all but the rows from UTE to LTS.
        return q_len - by_chance if self.columns == 2 and not self.with_causal else by_chance

    @override
    def why_invalid(self, batch: int, q_len: int, kv_len: int) -> str | None:
        if self.file is None or self.file.shape[0] == kv_len:
            return None
        return f"{self.file.path} has columns of {self.file.shape[0]:,} keys, and kv_len is {kv_len:,}"

    @override
    def simplified(self) -> Iterator[Mask]:
        """Masks with fewer columns, or another seed."""
        if self.file is None:
            yield from (FlashMask(columns, self.seed) for columns in (1, 2) if columns < self.columns)
            yield from (FlashMask(self.columns, seed) for seed in range(min(self.seed, 4)))

    @property
    @override
    def text(self) -> str:
        return f"flashmask:{self.columns},{self.seed}" if self.file is None else f"flashmask:{self.file.path}"


def _has_columns(array: np.ndarray) -> bool:
    return array.dtype == np.int32 and array.ndim == 2 and array.shape[1] in (1, 2, 4)


@functools.lru_cache(maxsize=16)
def _by_chance(columns: int, seed: int, q_len: int, kv_len: int) -> Integers:
    """Draw columns, (kv_len, columns), in runs of keys hidden from the same rows: none, all, the first, the last, some.

    In some runs the bounds of neighbouring keys differ by a few rows; in others they move by one row per key, as those
    of a window do.
    """
    rng = np.random.Generator(np.random.Philox([seed, columns]))
    lengths: list[int] = []
    while sum(lengths) < kv_len:
        lengths.append(int(rng.choice(_PIECES)))
    spans_per_key = max(1, columns // 2)
    ends = np.sort(rng.integers(0, q_len + 1, (len(lengths), spans_per_key, 2)), axis=2)
    kinds = rng.integers(0, 10, (len(lengths), spans_per_key))
    ends[kinds < 2, 0] = q_len  # nothing
    ends[(kinds == 2) | (kinds == 3), 0] = 0  # all, or the first
    ends[(kinds != 2) & (kinds < 7), 1] = q_len  # nothing, all, or the last
    piece = np.repeat(np.arange(len(lengths)), lengths)[:kv_len]
    of_keys = ends.reshape(len(lengths), -1)[piece]
    stirred = (rng.integers(0, 4, len(lengths)) == 0)[piece, None]
    slopes = rng.choice(_SLOPES, len(lengths))[piece, None]
    key_of_piece = np.arange(kv_len)[:, None] - (np.cumsum(lengths) - lengths)[piece, None]
    moved = np.where(stirred, rng.integers(-3, 4, of_keys.shape), slopes * key_of_piece)
    of_keys = np.clip(of_keys + moved, 0, q_len)
    chosen: Integers = np.ascontiguousarray(of_keys[:, :columns].astype(np.int64))
    chosen.flags.writeable = False
    return chosen


KIND = FlashMask
