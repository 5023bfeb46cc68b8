"""Places the entries of a small problem far apart in a huge one, so that kernels compute offsets beyond 32 bits.

Kernels get the huge problem: its sizes, its buffers, its grids. Everything else, from the inputs to the reference
answer, is that of the small one, whose sequences (or pages) are entries of the huge one, the last of them at its end.
What lies between is never drawn or checked. The emulator has memory only for what is touched, and runs only the blocks
of the entries that are used (`BlockSample`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model.problem import INPUT, BaseProblem, Tensor
from harness.support.errors import ProblemError

if TYPE_CHECKING:
    import numpy as np

FAR = 2**32
"""Distance in elements that neither a signed nor an unsigned offset of 32 bits can express."""
LARGEST_FAR = 2**36
"""Largest distance in elements. A hundred GiB of 16-bit elements are more than any GPU has."""


def elements_apart(text: str) -> int:
    """Convert `4294967296` or `2^32`. Raises `ValueError` with a one-line message."""
    base, power, exponent = text.partition("^")
    if (power and base != "2") or not (base.isdecimal() and (not power or exponent.isdecimal())):
        raise ValueError(f"{text!r} is not a whole number, such as 4294967296 or 2^32")
    return 1 << min(int(exponent), 64) if power else int(base)


def in_powers(elements: int) -> str:
    """Such as `2^32`, or `5,000,000,000` if it is no power of two."""
    return f"2^{elements.bit_length() - 1}" if elements & (elements - 1) == 0 else f"{elements:,}"


def require_far(far: object) -> None:
    """Raise `ProblemError` unless `far` is 0 or a valid distance in elements."""
    if isinstance(far, bool) or not isinstance(far, int) or not 0 <= far <= LARGEST_FAR:
        raise ProblemError(f"far is {far!r}; it has to be a number of elements from 0 to {in_powers(LARGEST_FAR)}")


def reached_by_all(far: int, strides: Iterable[int]) -> int:
    """Return the distance to ask for so that entries lie at least `far` elements apart in each of several tensors.

    `strides`: elements from an entry to the next in each tensor, or in proportion to these. The largest tensor reaches
    the distance that is asked for, and the others less.
    """
    nearest, *_, farthest = sorted(strides)
    return -(-far // nearest) * farthest


def nearer_than(far: int) -> tuple[int, ...]:
    """Return smaller distances: 0, then those that bytes or elements in 32 bits cannot express, in ascending order."""
    return tuple(nearer for nearer in (0, 2**29, 2**30, 2**31, 2**32) if nearer < far)


@dataclass(frozen=True)
class Extent:
    """How many entries a huge problem has, and which of them are used."""

    entries: int
    """Number of entries of the huge problem along the axis."""
    places: tuple[int, ...]
    """For each entry of the small problem, its index in the huge one, in ascending order."""
    next_to_each_other: int
    """The distance in elements at which entries still lie apart, but so near that offsets are small."""

    @classmethod
    def of(cls, tensors: tuple[Tensor, ...], axis: str, far: int) -> Extent:
        """Spread the entries of the tensors whose first axis is `axis`, which is the outermost one in memory, too.

        The last entry of the largest of them begins `far` elements or more after the beginning.
        """
        spread = [tensor for tensor in tensors if tensor.axes[0] == axis]
        count, each = spread[0].shape[0], max(tensor.strides[0] for tensor in spread)
        last = max(-(-far // each), count)
        places = tuple(number * last // (count - 1) for number in range(count)) if count > 1 else (last,)
        return cls(last + 1, places, 2 * count * each)


@dataclass(frozen=True)
class Spread:
    """The huge problem that kernels get in place of a small one, and where the entries of the small one lie in it."""

    problem: BaseProblem
    """The huge problem."""
    far: int
    """The requested distance in elements."""
    axis: str
    """Name of the axis along which entries are spread, the first of those tensors that have it."""
    extent: Extent
    fewer: BaseProblem | None
    """The huge problem with one entry less: from the grids of both follows which blocks an entry has
    (`planning.variant_calls`). None if entries do not have blocks of their own, and all blocks run."""
    near: BaseProblem
    """The small problem, spread over a few entries more than it has. Its offsets are small."""
    indices: tuple[str, ...] = ()
    """Names of inputs whose elements are indices of entries, such as a page table."""

    def relabelled(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the inputs with indices of entries as in the huge problem. Those of no entry are unchanged."""
        import numpy as np

        changed = dict(inputs)
        places = np.array(self.extent.places)
        for name in self.indices:
            given = changed[name] = inputs[name].copy()
            is_entry = (given >= 0) & (given < len(places))
            given[is_entry] = places[given[is_entry]]
        return changed

    def pieces(self, tensor: Tensor) -> list[tuple[slice, slice]]:
        """Return which parts of an array of the small problem lie where in that of the huge one, along the first axis.

        The arrays are those of the tensor, or `by_entry` of those of its buffer.

        Integer inputs, such as spans of rows, also lie at entry 0, where kernels may read those that are the same for
        all sequences.
        """
        if tensor.axes[0] != self.axis:
            return [(slice(None), slice(None))]
        pairs = [(0, 0)] if tensor.dtype == "int32" and tensor.role == INPUT else []
        pairs += enumerate(self.extent.places)
        return [(slice(index, index + 1), slice(place, place + 1)) for index, place in pairs]

    def by_entry(self, tensor: Tensor, buffer: Any, *, is_huge: bool) -> Any:
        """Return a view of the array of a tensor's buffer whose first axis is that of entries, if it has one.

        `is_huge`: whether the buffer is that of the huge problem.
        """
        if tensor.placement is None or tensor.axes[0] != self.axis:
            return buffer
        entries = self.extent.entries if is_huge else len(self.extent.places)
        return buffer.reshape(entries, buffer.shape[0] // entries, *buffer.shape[1:])

    def scatter(self, tensor: Tensor, values: np.ndarray, huge: np.ndarray) -> None:
        """Write the values of a tensor's buffer into `huge`, that of the huge problem; the rest of it is unchanged."""
        here_by_entry = self.by_entry(tensor, values, is_huge=False)
        there_by_entry = self.by_entry(tensor, huge, is_huge=True)
        for here, there in self.pieces(tensor):
            there_by_entry[there] = here_by_entry[here]

    def gather(self, tensor: Tensor, huge: np.ndarray) -> np.ndarray:
        """Return a copy of the entries of the small problem, given the array of a tensor's buffer."""
        if tensor.axes[0] != self.axis:
            return huge
        found: np.ndarray = self.by_entry(tensor, huge, is_huge=True)[list(self.extent.places)]
        return found if tensor.placement is None else found.reshape(-1, *huge.shape[1:])
