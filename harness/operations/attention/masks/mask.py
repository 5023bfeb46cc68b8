"""Base classes of masks, which define which keys each query row sees.

A mask defines its rule twice: `visible` decides single pairs, for the oracle; `span` is the run of keys that a row
sees, for kernels and claims. They are implemented independently, and a test compares them. Both are for one sequence
and one head: for masks that differ between sequences or heads, call `of_sequence` and `of_head` first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from harness.support.override import override

Integers = npt.NDArray[np.int64]
Visibility = npt.NDArray[np.bool_]


class Mask(ABC):
    """Which keys each query row sees. Frozen and hashable, without arrays, and independent of the problem's sizes."""

    kind: ClassVar[str]
    """Its name on the command line, such as `window`; also the feature that a variant lists in `takes`."""
    spelling: ClassVar[str]
    """Its syntax with parameters, such as `window:LEFT[,RIGHT]`."""
    idea: ClassVar[str]
    """One line for `--help`."""
    implied_by: ClassVar[tuple[str, ...]] = ()
    """Kinds of masks in which rows see at most what they see in this one, so that it is redundant beside them."""

    @classmethod
    @abstractmethod
    def parse(cls, parameters: str) -> Mask:
        """Return the mask for the text after its colon, "" if there is none. Raises `ProblemError`."""

    @abstractmethod
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        """Return whether row i sees key j. `rows` (R, 1) and `keys` (1, K) broadcast to (R, K)."""

    @abstractmethod
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        """Return the run of keys that each of `rows` sees: (first, end), each as long as `rows`.

        0 <= first <= kv_len and 0 <= end <= kv_len; a row that sees no key has end <= first. Kernels rely on two more
        properties. Runs never move backwards: neither first nor end is less than that of the previous row. And a row
        whose position i + kv_len - q_len is a key sees that key, so that consecutive rows together see one run; a row
        before all keys may see none.

        If `is_run` is false, the keys that a row sees lie within its span, but need not fill it.
        """

    @property
    @abstractmethod
    def text(self) -> str:
        """Its text on the command line, which `parse_mask` converts back."""

    @classmethod
    @abstractmethod
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        """Return masks of this kind for campaigns, the simplest first, with limits at and next to tiles' edges."""

    @property
    def parts(self) -> tuple[Mask, ...]:
        """The masks whose intersection this is: itself for a single mask, and empty for no mask."""
        return (self,)

    @property
    def is_band(self) -> bool:
        """Whether it is a `Band` or an intersection of bands. Kernels then get two numbers in place of runs."""
        return False

    @property
    def is_run(self) -> bool:
        """Whether each row sees all keys of its span."""
        return True

    @property
    def sequences(self) -> int:
        """Number of sequences of a batch that it distinguishes; 1 if it is the same for all."""
        return 1

    def of_sequence(self, number: int) -> Mask:
        """Return the mask of a single sequence of the batch."""
        return self

    @property
    def tells_heads_apart(self) -> bool:
        """Whether it can differ between query heads."""
        return False

    def of_head(self, number: int) -> Mask:
        """Return the mask of a single query head."""
        return self

    def why_invalid(self, batch: int, q_len: int, kv_len: int) -> str | None:
        """Return the reason why a problem of these sizes cannot have this mask, or None if it can."""
        return None

    def clipped_to(self, batch: int, q_len: int, kv_len: int) -> Mask:
        """Return the most similar mask that is valid for these sizes."""
        return self

    def around(self, inner: Mask) -> Mask | None:
        """Return the mask of one that divides the problem into sequences, with `inner` within each; None for others."""
        return None

    def simplified(self) -> Iterator[Mask]:
        """Return simpler masks of the same kind, the simplest first."""
        return iter(())

    @property
    def shown(self) -> str:
        """`text` for display, with long parameters abbreviated."""
        return self.text

    def in_combination_with(self, kinds: frozenset[str]) -> Mask:
        """Return what this mask contributes to an intersection of masks of these kinds, which include its own."""
        return self

    def without(self, kind: str) -> Mask:
        """Return the mask without its parts of that kind."""
        return intersection(part for part in self.parts if part.kind != kind)

    @property
    def runs(self) -> Mask:
        """The intersection of only those parts in which each row sees a run of keys."""
        return self if self.is_run else intersection(part for part in self.parts if part.is_run)

    def __and__(self, other: Mask) -> Mask:
        """Return the intersection, in which rows see the keys that both masks let them see."""
        return intersection((*self.parts, *other.parts))

    def __str__(self) -> str:
        return self.shown


class Band(Mask):
    """A mask in which a row sees the keys within fixed distances of the diagonal.

    The diagonal is aligned bottom-right: row i is at key i + kv_len - q_len.
    """

    @property
    @abstractmethod
    def limits(self) -> tuple[int | None, int | None]:
        """(left, right): maximum distance of keys before and after the row's position; None for no limit."""

    @property
    @override
    def is_band(self) -> bool:
        return True

    @override
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        diagonal = np.asarray(rows, dtype=np.int64) + (kv_len - q_len)
        left, right = self.limits
        first = np.zeros_like(diagonal) if left is None else np.clip(diagonal - left, 0, kv_len)
        end = np.full_like(diagonal, kv_len) if right is None else np.clip(diagonal + right + 1, 0, kv_len)
        return first, end


class Scattered(Mask):
    """A mask whose rows can see any set of keys, so that the span of each row is all keys."""

    @property
    @override
    def is_run(self) -> bool:
        return False

    @override
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        rows = np.asarray(rows, dtype=np.int64)
        return np.zeros_like(rows), np.full_like(rows, kv_len)


@dataclass(frozen=True)
class Intersection(Mask):
    """A mask in which rows see the keys that all parts let them see. `intersection` creates it and sorts the parts."""

    masks: tuple[Mask, ...] = ()

    kind: ClassVar[str] = "intersection"
    spelling: ClassVar[str] = "MASK+MASK"
    idea: ClassVar[str] = "a row sees the keys that all of them allow"

    @classmethod
    def parse(cls, parameters: str) -> Mask:
        """Not supported, because an intersection has no name of its own; `parse_mask` creates it."""
        raise NotImplementedError(parameters)

    @classmethod
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        """Return no masks, because campaigns draw the parts."""
        return ()

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        seen = np.ones(np.broadcast_shapes(rows.shape, keys.shape), dtype=np.bool_)
        for mask in self._evaluated:
            seen &= mask.visible(rows, keys, q_len, kv_len)
        return seen

    @override
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        rows = np.asarray(rows, dtype=np.int64)
        first, end = np.zeros_like(rows), np.full_like(rows, kv_len)
        for mask in self._evaluated:
            part_first, part_end = mask.span(rows, q_len, kv_len)
            first, end = np.maximum(first, part_first), np.minimum(end, part_end)
        return first, end

    @property
    def _evaluated(self) -> tuple[Mask, ...]:
        """The masks whose pairs are intersected: one with all others within, if it divides the problem."""
        for mask in self.masks:
            divided = mask.around(self.without(mask.kind))
            if divided is not None:
                return (divided,)
        return self.masks

    @property
    @override
    def parts(self) -> tuple[Mask, ...]:
        return self.masks

    @property
    @override
    def is_band(self) -> bool:
        return all(mask.is_band for mask in self.masks)

    @property
    @override
    def is_run(self) -> bool:
        return all(mask.is_run for mask in self.masks)

    @property
    @override
    def sequences(self) -> int:
        return max((mask.sequences for mask in self.masks), default=1)

    @override
    def of_sequence(self, number: int) -> Mask:
        return intersection(mask.of_sequence(number) for mask in self.masks)

    @property
    @override
    def tells_heads_apart(self) -> bool:
        return any(mask.tells_heads_apart for mask in self.masks)

    @override
    def of_head(self, number: int) -> Mask:
        return intersection(mask.of_head(number) for mask in self.masks)

    @override
    def why_invalid(self, batch: int, q_len: int, kv_len: int) -> str | None:
        for mask in self.masks:
            others = self.without(mask.kind)
            if mask.around(others) is not None and not others.is_band:
                return f"mask {self}: within sequences of {mask.kind}, masks are causal or a window"
        reasons = (mask.why_invalid(batch, q_len, kv_len) for mask in self.masks)
        return next((reason for reason in reasons if reason is not None), None)

    @override
    def clipped_to(self, batch: int, q_len: int, kv_len: int) -> Mask:
        clipped = (mask.clipped_to(batch, q_len, kv_len) for mask in self.masks)
        return intersection(part for mask in clipped for part in mask.parts)

    @property
    def text(self) -> str:
        """Its text on the command line, such as `causal+window:8`, or `none`."""
        return "+".join(mask.text for mask in self.masks) or "none"

    @property
    @override
    def shown(self) -> str:
        return "+".join(mask.shown for mask in self.masks) or "none"


NO_MASK: Mask = Intersection()
"""Every row sees every key."""


def intersection(masks: Iterable[Mask]) -> Mask:
    """Return the intersection of masks, without duplicates and sorted by kind, so that equal ones have equal text."""
    parts = tuple(masks)
    kinds = frozenset(mask.kind for mask in parts)
    unique = dict.fromkeys(mask.in_combination_with(kinds) for mask in parts)
    ordered = sorted(unique, key=lambda mask: (mask.kind, mask.text))
    return ordered[0] if len(ordered) == 1 else Intersection(tuple(ordered)) if ordered else NO_MASK


def band_limits(mask: Mask) -> tuple[int | None, int | None]:
    """Return the limits of a mask that `is_band`: (before, after), the maximum distances of keys from the diagonal.

    None means no limit.
    """
    limits = [part.limits for part in mask.parts if isinstance(part, Band)]
    assert len(limits) == len(mask.parts)
    before = min((left for left, _ in limits if left is not None), default=None)
    after = min((right for _, right in limits if right is not None), default=None)
    return before, after
