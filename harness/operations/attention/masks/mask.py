"""What a mask is: a rule for pairs of a row and a key, told twice.

`visible` is the rule as the oracle reads it, pair by pair. `span` is the same as kernels and claims want it: the run of
keys that a row sees. They are written independently, on purpose, and a test holds the two together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

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

        0 <= first <= kv_len and 0 <= end <= kv_len; a row that sees nothing has end <= first.
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

    def without(self, kind: str) -> Mask:
        """What is left without the parts of that kind."""
        return intersection(part for part in self.parts if part.kind != kind)

    def __and__(self, other: Mask) -> Mask:
        """Rows see what both let them see."""
        return intersection((*self.parts, *other.parts))

    def __str__(self) -> str:
        return self.text


class Band(Mask):
    """A mask whose span moves with the row: keys from some before the diagonal to some behind it.

    The diagonal is aligned bottom-right: row i lies on key i + kv_len - q_len. None is without a limit.
    """

    @property
    @abstractmethod
    def limits(self) -> tuple[int | None, int | None]:
        """(left, right): how many keys before and behind its place a row sees at most."""

    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        """See `Mask.span`."""
        diagonal = np.asarray(rows, dtype=np.int64) + (kv_len - q_len)
        left, right = self.limits
        first = np.zeros_like(diagonal) if left is None else np.clip(diagonal - left, 0, kv_len)
        end = np.full_like(diagonal, kv_len) if right is None else np.clip(diagonal + right + 1, 0, kv_len)
        return first, end


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

    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        """See `Mask.visible`."""
        seen = np.ones(np.broadcast_shapes(rows.shape, keys.shape), dtype=np.bool_)
        for mask in self.masks:
            seen &= mask.visible(rows, keys, q_len, kv_len)
        return seen

    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        """See `Mask.span`."""
        rows = np.asarray(rows, dtype=np.int64)
        first, end = np.zeros_like(rows), np.full_like(rows, kv_len)
        for mask in self.masks:
            part_first, part_end = mask.span(rows, q_len, kv_len)
            first, end = np.maximum(first, part_first), np.minimum(end, part_end)
        return first, end

    @property
    def parts(self) -> tuple[Mask, ...]:
        """See `Mask.parts`."""
        return self.masks

    @property
    def text(self) -> str:
        """Such as `causal+window:8`, or `none`."""
        return "+".join(mask.text for mask in self.masks) or "none"


NO_MASK: Mask = Intersection()
"""Every row sees every key."""


def intersection(masks: Iterable[Mask]) -> Mask:
    """One mask of many, each once, in the order of their kinds, so that equal ones are written alike."""
    unique = dict.fromkeys(masks)
    ordered = sorted(unique, key=lambda mask: (mask.kind, mask.text))
    return ordered[0] if len(ordered) == 1 else Intersection(tuple(ordered)) if ordered else NO_MASK
