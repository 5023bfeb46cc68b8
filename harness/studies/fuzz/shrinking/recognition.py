"""Recognises known errors, or another element's answer, in a kernel's wrong elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

MOST_FLOPS = 1e7
"""Largest problem in FLOP for which known errors are evaluated, each of which takes about as long as the answer:
milliseconds."""
MUCH_NEARER = 0.1
"""Maximum mean distance of the wrong elements from a known error, relative to their distance from the answer. Without
it, a budget as wide as the error is large would match anything."""
MOST_NAMED = 3
"""Maximum number of matching errors that are listed: several coincide in a small problem."""


def recognised(
    output: str,
    axes: tuple[str, ...],
    got: Float64Array,
    answer: Float64Array,
    allowed: Float64Array,
    wrong: Mask,
    mistakes: Iterable[tuple[str, Mapping[str, Float64Array]]],
) -> str | None:
    """Such as `equals the answer without the last key`; None if no known error matches.

    All arrays have the shape of `output`, whose axes are named `axes`; `allowed` is its budget. Only the wrong elements
    are compared: the others may be right for other reasons.
    """
    found = []
    for name, outputs in mistakes:
        if output in outputs and _fits(got, outputs[output], answer, allowed, wrong):
            found.append(name)
    if not found:
        found = [
            name
            for name, other, known in _neighbours(axes, answer)
            # Elements at the edge have no neighbour.
            if 2 * (wrong & known).sum() > wrong.sum() and _fits(got, other, answer, allowed, wrong & known)
        ]
    if not found or len(found) > MOST_NAMED:
        return None
    return f"equals {', or '.join(found)}"


def _fits(got: Float64Array, other: Float64Array, answer: Float64Array, allowed: Float64Array, wrong: Mask) -> bool:
    """Whether the wrong elements are within their budget of another answer, and much closer to it than to the answer.

    Elements that are zero or NaN there are not counted.
    """
    g, o, e, a = got[wrong], other[wrong], answer[wrong], allowed[wrong]
    numbers = np.isfinite(g) & np.isfinite(o) & np.isfinite(e)
    if not numbers.all() or not o.any():
        return False
    off = np.abs(g - o)
    return bool((off <= a).all() and off.mean() <= MUCH_NEARER * np.abs(g - e).mean())


def _neighbours(axes: tuple[str, ...], answer: Float64Array) -> Iterator[tuple[str, Float64Array, Mask]]:
    """The right answer shifted by one along each axis: name, array, and a mask of elements with such a neighbour."""
    for axis, name in enumerate(axes):
        size = answer.shape[axis]
        if size > 1:
            word = "batch entry" if name == "batch" else name
            place = np.arange(size).reshape([-1 if each == axis else 1 for each in range(answer.ndim)])
            for which, step, known in (("previous", 1, place > 0), ("next", -1, place < size - 1)):
                there = np.broadcast_to(known, answer.shape)
                yield f"the answer of the {which} {word}", np.roll(answer, step, axis), there
