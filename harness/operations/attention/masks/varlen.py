"""Sequences of different lengths one after the other, as `flash_attn_varlen_func` takes them: no padding, no batch."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from harness.operations.attention.masks.mask import NO_MASK, Integers, Mask, Visibility
from harness.support.errors import ProblemError
from harness.support.override import override

_LENGTHS = re.compile(r" *[0-9]{1,9} *(\+ *[0-9]{1,9} *)*")
_SHOWN = 5
"""Maximum number of sequences that are shown in full."""

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Varlen(Mask):
    """Row i sees key j if both belong to the same sequence and the masks beside this one let it see that key there.

    Q, K and V are those of one batch entry: the rows of all sequences lie one after the other in Q, and their keys in K
    and V. A sequence may have no rows, or no keys; a row whose sequence has no keys sees none. Another mask has to be a
    band. It counts rows and keys from the beginning of the sequence, so that `causal` aligns the last row of each
    sequence with its last key.
    """

    q_lengths: Lengths
    """Number of rows of each sequence, at least 0; their sum is q_len."""
    kv_lengths: Lengths
    """Number of keys of each sequence, at least 0; their sum is kv_len."""
    inner: Mask = field(default=NO_MASK)
    """What rows of a sequence see of its keys. `Intersection` fills it in to evaluate itself."""

    kind: ClassVar[str] = "varlen"
    spelling: ClassVar[str] = "varlen:ROWS+ROWS+...[/KEYS+KEYS+...]"
    idea: ClassVar[str] = (
        "unpadded sequences of ROWS rows and KEYS keys each (alike unless given), one after the other; a row sees its "
        "own sequence. --varlen sets it together with lengths and layout"
    )

    def __post_init__(self) -> None:
        if not self.q_lengths or len(self.q_lengths) != len(self.kv_lengths):
            raise ProblemError(
                f"mask varlen: {len(self.q_lengths)} numbers of rows and {len(self.kv_lengths)} of keys; give one of "
                "each for every sequence, at least one"
            )
        for length in (*self.q_lengths, *self.kv_lengths):
            if isinstance(length, bool) or not isinstance(length, int) or length < 0:
                raise ProblemError(f"mask varlen: a length is {length!r}; it has to be a whole number of at least 0")

    @classmethod
    @override
    def parse(cls, parameters: str) -> Mask:
        lists = parameters.split("/")
        if len(lists) > 2 or not all(_LENGTHS.fullmatch(words) for words in lists):
            raise ProblemError(
                f"mask {_cut_short(f'varlen:{parameters}')} is not {cls.spelling}, such as varlen:100+0+57 or "
                "varlen:100+0+57/120+8+57"
            )
        rows, keys = (tuple(int(word) for word in words.split("+")) for words in (lists[0], lists[-1]))
        return cls(rows, keys)

    @classmethod
    @override
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        """Return sequences with lengths at and next to tiles' edges; `clipped_to` fits them to a problem's lengths."""
        t = tile_keys
        lists: tuple[tuple[Lengths, Lengths], ...] = (
            ((1, 10**6), (1, 10**6)),
            ((t + 1, 10**6), (t - 1, 10**6)),
            ((5, 0, 10**6), (7, 3, 10**6)),  # a sequence without rows
            ((3, 4, 10**6), (t + 3, 0, 10**6)),  # and one without keys
            ((1,) * 5 + (t, 10**6), (t + 1, 1, 3, 2 * t, 1, t // 2, 10**6)),  # decoding beside prefill
            ((t // 2 + 1, 2 * t + 1, t, 10**6), (2 * t + 1, t // 2, t + 1, 10**6)),
            ((10**6, 0), (10**6, 0)),  # nothing behind the last row
            ((0, 0, 2, 10**6, 0), (0, 4, 3, 10**6, 5)),
            ((t - 1, t + 1, 1, 10**6), (t - 1, t + 1, 1, 10**6)),
            ((2, 3, 10**6), (1, 1, 10**6)),  # rows before all keys, where causal
            ((2 * t, t, 1, 0, 2 * t), (1, t, 2 * t, t, 2 * t)),
            ((1, 2, 3) * 4 + (10**6,), (3, 1, 2) * 4 + (10**6,)),
        )
        return tuple(cls(*each) for each in dict.fromkeys(lists))

    @property
    def sequence_count(self) -> int:
        """Number of sequences."""
        return len(self.q_lengths)

    @property
    def q_starts(self) -> Lengths:
        """`cu_seqlens_q`: the first row of each sequence, and the number of all rows."""
        return tuple(itertools.accumulate(self.q_lengths, initial=0))

    @property
    def kv_starts(self) -> Lengths:
        """`cu_seqlens_k`: the first key of each sequence, and the number of all keys."""
        return tuple(itertools.accumulate(self.kv_lengths, initial=0))

    @property
    def longest(self) -> int:
        """`max_seqlen_q`: rows of the sequence that has the most."""
        return max(self.q_lengths)

    def own_keys(self, rows: Integers) -> Integers:
        """Return the key on which each row lies: the last row of a sequence lies on its last key."""
        diagonals = np.array(self.kv_starts[1:], np.int64) - np.array(self.q_starts[1:], np.int64)
        own: Integers = rows + diagonals[self._sequence_of(rows, self.q_starts)]
        return own

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        # One sequence after the other, in its own numbers: nothing here is shared with `span`.
        seen = np.zeros(np.broadcast_shapes(rows.shape, keys.shape), dtype=np.bool_)
        first_row = first_key = 0
        for own_rows, own_keys in zip(self.q_lengths, self.kv_lengths):
            row, key = rows - first_row, keys - first_key
            is_own = (row >= 0) & (row < own_rows) & (key >= 0) & (key < own_keys)
            if is_own.any():
                seen |= is_own & self.inner.visible(row, key, own_rows, own_keys)
            first_row, first_key = first_row + own_rows, first_key + own_keys
        return seen

    @override
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        rows = np.asarray(rows, dtype=np.int64)
        of_row = self._sequence_of(rows, self.q_starts)
        first, end = np.zeros_like(rows), np.zeros_like(rows)
        for sequence in np.unique(of_row):
            own = of_row == sequence
            local = rows[own] - self.q_starts[sequence]
            begin, stop = self.inner.span(local, self.q_lengths[sequence], self.kv_lengths[sequence])
            first[own], end[own] = self.kv_starts[sequence] + begin, self.kv_starts[sequence] + stop
        return first, end

    @staticmethod
    def _sequence_of(rows: Integers, starts: Sequence[int]) -> Integers:
        found: Integers = np.searchsorted(np.asarray(starts), rows, side="right") - 1
        return found

    def around(self, inner: Mask) -> Mask:
        """Return the mask in which rows see what `inner` lets them see within their sequences."""
        return dataclasses.replace(self, inner=inner)

    @override
    def why_invalid(self, batch: int, q_len: int, kv_len: int) -> str | None:
        rows, keys = sum(self.q_lengths), sum(self.kv_lengths)
        if batch != 1:
            return f"mask {self}: its sequences are the batch; batch is {batch}, and has to be 1"
        if (rows, keys) != (q_len, kv_len):
            return (
                f"mask {self}: its sequences have {rows} rows and {keys} keys; q_len is {q_len} and kv_len {kv_len} "
                "(--varlen sets both)"
            )
        return None

    @override
    def clipped_to(self, batch: int, q_len: int, kv_len: int) -> Mask:
        """Return sequences that have so many rows and keys: cut at the end, or the last one that has any longer.

        Sequences of which nothing is left are left out. No mask for a batch of several.
        """
        if batch != 1:
            return NO_MASK
        rows, keys = _fitted(self.q_lengths, q_len), _fitted(self.kv_lengths, kv_len)
        were = list(zip(self.q_lengths, self.kv_lengths))
        count = len(were)
        while count > 1 and (rows[count - 1], keys[count - 1]) == (0, 0) != were[count - 1]:
            count -= 1
        return Varlen(rows[:count], keys[:count])

    @override
    def simplified(self) -> Iterator[Mask]:
        """Yield sequences of which two became one, and those with the lengths of K and V for Q, and the other way."""
        count = self.sequence_count
        for n in range(min(count - 1, 8)):
            yield Varlen(_joined(self.q_lengths, n), _joined(self.kv_lengths, n))
        if count > 2:
            half = count // 2
            yield Varlen(self.q_lengths[:half], self.kv_lengths[:half])
            yield Varlen(self.q_lengths[half:], self.kv_lengths[half:])
        if self.q_lengths != self.kv_lengths:
            yield Varlen(self.q_lengths, self.q_lengths)
            yield Varlen(self.kv_lengths, self.kv_lengths)

    @property
    @override
    def text(self) -> str:
        rows, keys = ("+".join(map(str, lengths)) for lengths in (self.q_lengths, self.kv_lengths))
        return f"varlen:{rows}" if rows == keys else f"varlen:{rows}/{keys}"

    @property
    @override
    def shown(self) -> str:
        if self.sequence_count <= _SHOWN + 1:
            return self.text
        lists = dict.fromkeys((self.q_lengths, self.kv_lengths))
        short = "/".join(f"{'+'.join(map(str, each[: _SHOWN - 1]))}+...+{each[-1]}" for each in lists)
        return f"varlen:{short} ({self.sequence_count} sequences)"


def _fitted(lengths: Lengths, total: int) -> Lengths:
    """Cut lengths to a sum of `total`, or make the last one that is not 0, or else the first, longer."""
    kept, left = [], total
    for length in lengths:
        kept.append(min(length, left))
        left -= kept[-1]
    last = max((n for n, length in enumerate(lengths) if length), default=0)
    kept[last] += left
    return tuple(kept)


def _joined(lengths: Lengths, n: int) -> Lengths:
    return (*lengths[:n], lengths[n] + lengths[n + 1], *lengths[n + 2 :])


def _cut_short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


KIND = Varlen
