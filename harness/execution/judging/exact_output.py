"""Compares an output whose bits are determined, such as a copy, bit for bit, and says what is wrong in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Mask


def bits_of(array: np.ndarray) -> npt.NDArray[np.unsignedinteger]:
    """Return the bits of each element, as unsigned integers in the array's shape."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


@dataclass(frozen=True)
class ExactOutput:
    """An output whose bits are determined."""

    array: np.ndarray
    """The right output, in its dtype."""
    before: np.ndarray | None
    """What it holds before the run, if it is also an input (role `IN_OUT`)."""
    in_words: Callable[[tuple[int, ...]], str]
    """Index of an element -> what it is, such as `key 3 of sequence 1`; empty if the index says it all."""

    def wrong(self, output: np.ndarray) -> Mask:
        """True where the bits of `output`, which has the same shape and dtype, are not the right ones."""
        return np.asarray(bits_of(output) != bits_of(self.array))

    def explain(self, name: str, axes: tuple[str, ...], output: np.ndarray, wrong: Mask) -> str:
        """Describe the wrong elements in one line: those overwritten, those not written, and others, each by the first.

        `name` and `axes` are the output's, and `wrong` is the result of the method `wrong`.
        """
        return "; ".join(
            f"{int(mask.sum()):,} of {mask.size:,} elements of {name} {what}, the first at "
            f"{self._place(axes, output, mask)}"
            for what, mask in self._kinds(output, wrong)
            if mask.any()
        )

    def _kinds(self, output: np.ndarray, wrong: Mask) -> Iterator[tuple[str, Mask]]:
        """What happened to elements, and which ones."""
        if self.before is None:
            yield "have other bits than the right ones", wrong
            return
        before = bits_of(self.before)
        stays, unchanged = before == bits_of(self.array), before == bits_of(output)
        yield "that have to stay as they are were overwritten", wrong & stays
        yield "were not written", wrong & unchanged
        yield "were written with another value", wrong & ~stays & ~unchanged

    def _place(self, axes: tuple[str, ...], output: np.ndarray, mask: Mask) -> str:
        """Where the first element of a mask is, what it is, and its values."""
        index = tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))
        place = ", ".join(f"{axis} {i}" for axis, i in zip(axes, index))
        words = self.in_words(index)
        values = f"{float(output[index]):.6g} instead of {float(self.array[index]):.6g}"
        return f"{place}{f' ({words})' if words else ''}: {values}"
