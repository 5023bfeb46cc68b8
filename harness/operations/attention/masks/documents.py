"""Packed documents: several in one sequence, each seeing only itself (Krell et al. 2021, arXiv 2107.02027)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.operations.attention.masks.mask import Integers, Mask, Visibility
from harness.support.errors import ProblemError
from harness.support.override import override

_LENGTHS = re.compile(r" *[0-9]{1,9} *(\+ *[0-9]{1,9} *)*")
_SHOWN = 5
"""Maximum number of documents of a list that is shown in full."""

Lengths = tuple[int, ...]


@dataclass(frozen=True)
class Documents(Mask):
    """Row i sees key j if key i + kv_len - q_len and key j belong to the same document.

    Documents are consecutive from key 0 on. The last one always extends to the last key. A row before key 0 belongs to
    no document and sees no key.
    """

    lengths: tuple[Lengths, ...]
    """Number of keys of each document, at least 0; one list for all sequences of a batch, or one for each."""

    kind: ClassVar[str] = "documents"
    spelling: ClassVar[str] = "documents:KEYS+KEYS+...[/KEYS+...]"
    idea: ClassVar[str] = (
        "packed documents of KEYS keys each, the last of which extends to the last key; a row sees its own document. "
        "One list for all sequences, or one for each, separated by /"
    )

    def __post_init__(self) -> None:
        if not self.lengths or not all(self.lengths):
            raise ProblemError("a list of documents is empty; each list needs at least one length")
        for length in (each for of_sequence in self.lengths for each in of_sequence):
            if isinstance(length, bool) or not isinstance(length, int) or length < 0:
                raise ProblemError(f"a document has {length!r} keys; it has to be a whole number of at least 0")

    @classmethod
    @override
    def parse(cls, parameters: str) -> Mask:
        lists = parameters.split("/")
        if not all(_LENGTHS.fullmatch(words) for words in lists):
            raise ProblemError(
                f"mask {_cut_short(f'documents:{parameters}')} is not {cls.spelling}, numbers of keys, such as "
                "documents:100+60+96, or documents:100+156/30+226 for a batch of 2"
            )
        return cls(tuple(tuple(int(word) for word in words.split("+")) for words in lists))

    @classmethod
    @override
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        """Return masks with boundaries around edges of tiles; `clipped_to` limits them to the problem's keys."""
        t = tile_keys
        lists: tuple[tuple[Lengths, ...], ...] = (
            ((1, 0),),
            ((t, 0),),
            ((t - 1, 2),),
            ((t + 1, t - 1, 1),),
            ((1, 1, 1, 1, 1, t, 1),),  # one key each, and a tile that starts next to an edge
            ((t // 2 + 1,) * 24,),  # boundaries everywhere within tiles, and in long problems, too
            ((1,) * (t + 2) + (2 * t, 3),),
            ((3 * t + 1, 1, 2 * t),),  # longer than any tile
            ((0, t, 0, 0, 1, 0),),
            ((t - 1, 1, t, t + 1) * 4,),
            ((max(t // 3, 1), 2, 3 * t) * 3,),
            # A row sees the first tiles, or all, in one sequence, and the last ones in another.
            ((t, 1), (1, t + 1)),
            ((10**6,), (t, t, t, 0)),
            ((3 * t + 2, 1), (t // 2, t, 2 * t, t, t), (1, 0)),
            ((t + 1,) * 12, (10**6,)),
            ((2, t - 1, t), (t + 2, 1, 1), (1, 1, 1)),
            # Documents start in later tiles in one sequence than in another.
            ((t + t // 2, 0), (t // 3 + 1, 0)),
            ((t // 3 + 1, 0), (2 * t, 0)),
            ((2 * t, 0), (t // 2 + 1, t + 1, 0)),
            # One document in one sequence and several in another, for any length.
            ((10**6,), (1, 2, 1, 0)),
            ((t // 2, 1, 0, 2, 0), (3, 0)),
        )
        return tuple(cls(each) for each in dict.fromkeys(lists))

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        # The index of a key's document is the number of documents that end before it; the last one never ends.
        ends = np.cumsum(self._only[:-1])
        own = rows + kv_len - q_len
        same = np.searchsorted(ends, own, side="right") == np.searchsorted(ends, keys, side="right")
        visible: Visibility = same & (own >= 0)
        return visible

    @override
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        bounds = np.minimum(np.cumsum([0, *self._only], dtype=np.int64), kv_len)
        bounds[-1] = kv_len
        document_of_key = np.repeat(np.arange(len(self._only)), np.diff(bounds))
        place = np.asarray(rows, dtype=np.int64) + (kv_len - q_len)
        document = document_of_key[np.maximum(place, 0)]
        return np.where(place < 0, 0, bounds[document]), np.where(place < 0, 0, bounds[document + 1])

    def first_keys(self, kv_len: int) -> set[int]:
        """The first key of each document of a sequence that has keys."""
        starts = np.cumsum([0, *self._only[:-1]], dtype=np.int64)
        return {int(start) for start in starts if start < kv_len}

    @property
    def _only(self) -> Lengths:
        (only,) = self.lengths  # `of_sequence` has been called if there are several
        return only

    @property
    @override
    def sequences(self) -> int:
        return len(self.lengths)

    @override
    def of_sequence(self, number: int) -> Mask:
        return self if len(self.lengths) == 1 else Documents(self.lengths[number : number + 1])

    @override
    def why_invalid(self, batch: int, q_len: int, kv_len: int) -> str | None:
        if len(self.lengths) not in (1, batch):
            return (
                f"mask {self} has lists of documents for {len(self.lengths)} sequences, and batch is {batch}: give one "
                f"list for all{f', or {batch}' if batch > 1 else ''}"
            )
        for number, lengths in enumerate(self.lengths):
            if sum(lengths) > kv_len:
                of = f" of sequence {number}" if len(self.lengths) > 1 else ""
                return f"the documents{of} in mask {self} have {sum(lengths):,} keys together, and kv_len is {kv_len:,}"
        return None

    @override
    def clipped_to(self, batch: int, q_len: int, kv_len: int) -> Mask:
        """Return the mask for these sizes: lists end at the last key and are repeated for all sequences."""
        lists = [_cut(self.lengths[number % len(self.lengths)], kv_len) for number in range(batch)]
        return Documents(tuple(lists) if len(set(lists)) > 1 else (lists[0],))

    @override
    def simplified(self) -> Iterator[Mask]:
        """Yield masks with one list for all sequences, two documents, one document fewer, or half of them."""
        if len(self.lengths) > 1:
            yield from (Documents((each,)) for each in self.lengths)
            return
        only = self._only
        yield from (Documents(((sum(only[:n]), 0),)) for n in range(1, min(len(only), 9)))
        half = len(only) // 2
        yield from (Documents((rest,)) for rest in (only[:half], only[half:], only[:-1], only[1:]) if rest)
        for n in range(min(len(only) - 1, 8)):  # two become one
            yield Documents(((*only[:n], only[n] + only[n + 1], *only[n + 2 :]),))

    @property
    @override
    def text(self) -> str:
        return "documents:" + "/".join("+".join(map(str, lengths)) for lengths in self.lengths)

    @property
    @override
    def shown(self) -> str:
        first, *others = self.lengths
        text = "+".join(map(str, first))
        if len(first) > _SHOWN + 1:
            text = f"{'+'.join(map(str, first[: _SHOWN - 1]))}+...+{first[-1]} ({len(first)} documents)"
        if others:
            text += f"/{Documents((others[0],)).shown.partition(':')[2]}" if len(others) == 1 else "/..."
            text += f" ({len(self.lengths)} sequences)" if len(others) > 1 else ""
        return f"documents:{text}"


def _cut(lengths: Lengths, kv_len: int) -> Lengths:
    """Return the documents that start before key `kv_len`, with the last one shortened to end there."""
    kept: list[int] = []
    for length in lengths:
        left = kv_len - sum(kept)
        if left == 0:
            break
        kept.append(min(length, left))
    return tuple(kept)


def _cut_short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


KIND = Documents
