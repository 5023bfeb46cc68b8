"""What a mask is: a rule for pairs of a row and a key, told twice.

`visible` is the rule as the oracle reads it, pair by pair. `span` is the same as kernels and claims want it: the run of
keys that a row sees. They are written independently, on purpose, and a test holds the two together. Both speak of one
sequence and one head: a mask that tells those apart is asked for that of each, `of_sequence` and `of_head`.
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
    """Which keys each query row sees. Frozen, hashable, without arrays; it knows no sizes until it is asked."""

    kind: ClassVar[str]
    """The word that the command line knows it by, such as `window`; also the feature that a variant `takes`."""
    spelling: ClassVar[str]
    """How it is written, with its parameters, such as `window:LEFT[,RIGHT]`."""
    idea: ClassVar[str]
    """One line for `--help`."""
    implied_by: ClassVar[tuple[str, ...]] = ()
    """Kinds that let rows see no more than this one does: together with one of them it says nothing."""

    @classmethod
    @abstractmethod
    def parse(cls, parameters: str) -> Mask:
        """The mask from what stands behind its colon ("" where nothing does). Raises `ProblemError`."""

    @abstractmethod
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        """Whether row i sees key j, as the oracle asks: `rows` (R, 1) and `keys` (1, K) broadcast to (R, K)."""

    @abstractmethod
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        """The run of keys that each of `rows` sees: (first, end), each as long as `rows`.

        0 <= first <= kv_len and 0 <= end <= kv_len; a row that sees nothing has end <= first. Kernels rely on two
        things besides. Runs never move backwards: neither first nor end is less than that of the row before. And a row
        that lies on a key sees that key, so that rows which follow each other see one run together; a row that lies
        ahead of all keys may see nothing.

        Where the mask `is_run` not, what a row sees lies within its span, and need not be all of it.
        """

    @property
    @abstractmethod
    def text(self) -> str:
        """As the command line takes it; `parse_mask` reads it."""

    @classmethod
    @abstractmethod
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        """Masks of this kind for campaigns, the plainest first; limits lie at and beside the edges of tiles of keys."""

    @property
    def parts(self) -> tuple[Mask, ...]:
        """The masks that this one is the intersection of; itself where it is a single one, none for no mask."""
        return (self,)

    @property
    def is_band(self) -> bool:
        """Whether it is a `Band`, or an intersection of some: two numbers say it all, and no kernel is given runs."""
        return False

    @property
    def is_run(self) -> bool:
        """Whether each row sees all keys of its span."""
        return True

    @property
    def sequences(self) -> int:
        """How many sequences of a batch it tells apart; 1: what rows see is the same in all."""
        return 1

    def of_sequence(self, number: int) -> Mask:
        """What it is to that sequence of a batch alone."""
        return self

    @property
    def tells_heads_apart(self) -> bool:
        """Whether it may be another in each query head."""
        return False

    def of_head(self, number: int) -> Mask:
        """What it is to that query head alone."""
        return self

    def why_invalid(self, batch: int, q_len: int, kv_len: int) -> str | None:
        """Why a problem of these sizes cannot have it, or None."""
        return None

    def clipped_to(self, batch: int, kv_len: int) -> Mask:
        """The nearest mask that a problem of these sizes can have."""
        return self

    def simplified(self) -> Iterator[Mask]:
        """Masks of the same kind that are easier to look at, the plainest first."""
        return iter(())

    @property
    def shown(self) -> str:
        """`text` as people want it: what is long is cut short."""
        return self.text

    def beside(self, kinds: frozenset[str]) -> Mask:
        """What it is together with masks of these kinds, its own among them."""
        return self

    def without(self, kind: str) -> Mask:
        """What is left without the parts of that kind."""
        return intersection(part for part in self.parts if part.kind != kind)

    @property
    def runs(self) -> Mask:
        """What is left of it where only the parts are looked at of which each row sees a run."""
        return self if self.is_run else intersection(part for part in self.parts if part.is_run)

    def __and__(self, other: Mask) -> Mask:
        """Rows see what both let them see."""
        return intersection((*self.parts, *other.parts))

    def __str__(self) -> str:
        return self.shown


class Band(Mask):
    """A mask whose span moves with the row: keys from some before the diagonal to some behind it.

    The diagonal is aligned bottom-right: row i lies on key i + kv_len - q_len. None is without a limit.
    """

    @property
    @abstractmethod
    def limits(self) -> tuple[int | None, int | None]:
        """(left, right): how many keys before and behind its place a row sees at most."""

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
    """A mask whose rows may see keys anywhere: the span of each row is all keys."""

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
    """What all parts let a row see; no parts: every key. Made by `intersection`, which puts the parts in order."""

    masks: tuple[Mask, ...] = ()

    kind: ClassVar[str] = "intersection"
    spelling: ClassVar[str] = "MASK+MASK"
    idea: ClassVar[str] = "rows see what all of them let them see"

    @classmethod
    def parse(cls, parameters: str) -> Mask:
        """Never spelled by its own name: see `parse_mask`."""
        raise NotImplementedError(parameters)

    @classmethod
    def drawn(cls, tile_keys: int) -> tuple[Mask, ...]:
        """None of its own: campaigns draw the parts."""
        return ()

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        seen = np.ones(np.broadcast_shapes(rows.shape, keys.shape), dtype=np.bool_)
        for mask in self.masks:
            seen &= mask.visible(rows, keys, q_len, kv_len)
        return seen

    @override
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        rows = np.asarray(rows, dtype=np.int64)
        first, end = np.zeros_like(rows), np.full_like(rows, kv_len)
        for mask in self.masks:
            part_first, part_end = mask.span(rows, q_len, kv_len)
            first, end = np.maximum(first, part_first), np.minimum(end, part_end)
        return first, end

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
        reasons = (mask.why_invalid(batch, q_len, kv_len) for mask in self.masks)
        return next((reason for reason in reasons if reason is not None), None)

    @override
    def clipped_to(self, batch: int, kv_len: int) -> Mask:
        return intersection(mask.clipped_to(batch, kv_len) for mask in self.masks)

    @property
    def text(self) -> str:
        """Such as `causal+window:8`, or `none`."""
        return "+".join(mask.text for mask in self.masks) or "none"

    @property
    @override
    def shown(self) -> str:
        return "+".join(mask.shown for mask in self.masks) or "none"


NO_MASK: Mask = Intersection()
"""Every row sees every key."""


def intersection(masks: Iterable[Mask]) -> Mask:
    """One mask of many, each once, in the order of their kinds, so that equal ones are written alike."""
    parts = tuple(masks)
    kinds = frozenset(mask.kind for mask in parts)
    unique = dict.fromkeys(mask.beside(kinds) for mask in parts)
    ordered = sorted(unique, key=lambda mask: (mask.kind, mask.text))
    return ordered[0] if len(ordered) == 1 else Intersection(tuple(ordered)) if ordered else NO_MASK


def band_limits(mask: Mask) -> tuple[int | None, int | None]:
    """(before, after): keys ahead of row i's place, i + kv_len - q_len, and behind it; None: no limit.

    Of a mask that `is_band`.
    """
    limits = [part.limits for part in mask.parts if isinstance(part, Band)]
    assert len(limits) == len(mask.parts)
    before = min((left for left, _ in limits if left is not None), default=None)
    after = min((right for _, right in limits if right is not None), default=None)
    return before, after
