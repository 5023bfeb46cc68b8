"""Layouts: where the rows of Q, K, V, O and their gradients lie in memory. The last axis, head_dim, is always dense.

`Layout.placements` is the only place that knows. Kernels get the strides, executors move elements by them, and claims
count the sectors of the rows.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.model.problem import ELEMENT_BYTES, Placement, Tensor
from harness.support.errors import ProblemError
from harness.support.suggestion import did_you_mean

BHSD, BSHD, QKV, STRIDES = "bhsd", "bshd", "qkv", "strides"
ORDERS = {
    BHSD: "(batch, heads, len, head_dim)",
    BSHD: "(batch, len, heads, head_dim)",
    QKV: "Q, K and V in one tensor (batch, len, 3, heads, head_dim), O as in bshd",
    STRIDES: "strides of (batch, head, row, element) of each tensor",
}
TENSORS = ("Q", "K", "V", "O")
GRADIENTS = tuple(f"d{name}" for name in ("O", "Q", "K", "V"))
"""Gradients of the tensors, in problems that have them."""
AXES = 4
"""Of these: batch, head, row, element."""
SPELLING = (
    "bhsd, bshd or qkv, each with +N for N unused elements after every row; or strides:Q=B/H/R/1,K=...,V=...,O=..."
)
LAYOUT_HELP = (
    f"where rows of Q, K, V and O lie: {SPELLING}. Gradients lie like their tensors, or as the second of two layouts "
    "says, such as bshd/bhsd, or ,dO=...,dQ=...,dK=...,dV=... after the strides"
)
LARGEST_STRIDE = 2**40
_GAP = re.compile(r"([a-z]+)\+([0-9]{1,9})")
_STRIDES = re.compile(r"(d?[QKVO])=([0-9]{1,15}(?:/[0-9]{1,15}){3})")

Shape = tuple[int, int, int, int]
"""(batch, heads, rows, head_dim)."""


@dataclass(frozen=True)
class Layout:
    """Where rows lie. Frozen, without arrays; except for `strides`, it does not depend on the problem's sizes."""

    order: str = BHSD
    """A key of `ORDERS`."""
    gap: int = 0
    """Unused elements behind every row."""
    strides: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """For each of `TENSORS`, the strides of (batch, head, row, element), in elements; only of the order `strides`.
    Those of `GRADIENTS` may follow."""
    gradients: Layout | None = None
    """The layout of `GRADIENTS`, which is not `strides`. None: each lies like its tensor, in a buffer of its own."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ProblemError(
                f"layout {self.order!r}: there is none{did_you_mean(self.order, ORDERS)} Layouts: {SPELLING}"
            )
        if isinstance(self.gap, bool) or not isinstance(self.gap, int) or not 0 <= self.gap < LARGEST_STRIDE:
            raise ProblemError(
                f"layout {self.order}: its gap is {self.gap!r}; it has to be a whole number of at least 0"
            )
        for name, strides in self.strides:
            checked_strides(name, strides)
        names = tuple(name for name, _ in self.strides)
        if self.order == STRIDES and names not in (TENSORS, (*TENSORS, *GRADIENTS)):
            raise ProblemError(
                f"layout: strides are given of each of {', '.join(TENSORS)}, and of none or all of "
                f"{', '.join(GRADIENTS)}, in this order"
            )
        if self.gradients is not None and STRIDES in (self.order, self.gradients.order):
            raise ProblemError("layout: strides cannot be combined with /; add dO=...,dQ=...,dK=...,dV=... to them")
        if self.gradients is not None and self.gradients == dataclasses.replace(self, gradients=None):
            object.__setattr__(self, "gradients", None)

    @classmethod
    def of_strides(cls, **strides: Sequence[int]) -> Layout:
        """Return the layout with these strides of Q, K, V and O: (batch, head, row, element), in elements.

        Those of dO, dQ, dK and dV may follow. Raises `ProblemError` if the last axis of one of them is not dense, or
        one is missing.
        """
        names = [name for name in (*TENSORS, *GRADIENTS) if name in strides]
        return cls(STRIDES, strides=tuple((name, tuple(map(int, strides[name]))) for name in names))

    @property
    def is_dense(self) -> bool:
        """Whether each tensor is a C-contiguous array (batch, heads, len, head_dim) of its own, and so its gradient."""
        return self == DENSE

    @property
    def of_gradients(self) -> Layout:
        """The layout of `GRADIENTS`."""
        return self if self.gradients is None else self.gradients

    @property
    def text(self) -> str:
        """Its text on the command line, which `parse_layout` converts back."""
        if self.order == STRIDES:
            return f"{STRIDES}:" + ",".join(f"{name}={'/'.join(map(str, each))}" for name, each in self.strides)
        own = self.order + (f"+{self.gap}" if self.gap else "")
        return own if self.gradients is None else f"{own}/{self.gradients.text}"

    def __str__(self) -> str:
        return self.text

    def placements(self, shapes: Mapping[str, Shape]) -> Mapping[str, Placement | None]:
        """Return where each of `TENSORS`, and of `GRADIENTS`, lies, given its shape; None for an array of its own."""
        return {
            name: (self.of_gradients if name in GRADIENTS else self)._placement(name, shape)
            for name, shape in shapes.items()
        }

    def _placement(self, name: str, shape: Shape) -> Placement | None:
        """Where a tensor lies; its gradient lies alike."""
        if (self.order, self.gap) == (BHSD, 0):
            return None
        if self.order == STRIDES:
            own = dict(self.strides)
            strides = own.get(name) or own[name[-1]]
            return Placement(name, extent(shape, strides), 0, strides)
        is_packed = self.order == QKV and name[-1] != "O"
        strides = strides_in_order(self.order, shape, self.gap, 3 if is_packed else 1)
        of_heads = shape[1] * (shape[3] + self.gap)
        buffer, first = (name[:-1] + QKV.upper(), "QKV".index(name[-1]) * of_heads) if is_packed else (name, 0)
        return Placement(buffer, shape[0] * strides[0], first, strides)

    def why_invalid(self, shapes: Mapping[str, Shape]) -> str | None:
        """Return the reason why a problem with these shapes of its tensors cannot have this layout, or None."""
        if self.gradients is not None or len(self.strides) > len(TENSORS):
            if not set(GRADIENTS) <= set(shapes):
                return f"layout {_short(self.text)} places gradients, which the problem does not have"
            if self.gradients is not None and (reason := self.gradients.why_invalid(shapes)) is not None:
                return reason
        q_shape, kv_shape, v_shape = (shapes[name] for name in QKV.upper())
        if self.order == QKV and v_shape != kv_shape:
            return (
                f"layout {self}: Q, K and V are one tensor, so v_head_dim ({v_shape[3]}) has to be head_dim "
                f"({kv_shape[3]}); choose another layout, such as {BSHD}"
            )
        if self.order == QKV and q_shape != kv_shape:
            return (
                f"layout {self}: Q, K and V are one tensor, so kv_heads ({kv_shape[1]}) has to be heads ({q_shape[1]}) "
                f"and kv_len ({kv_shape[2]}) q_len ({q_shape[2]})"
            )
        if self.order != STRIDES:
            return None
        given = dict(self.strides)
        for name, shape in shapes.items():
            strides = given.get(name) or given[name[-1]]
            if max(strides) > LARGEST_STRIDE:
                return f"layout: {name} has a stride of {max(strides):,} elements; the most is {LARGEST_STRIDE:,}"
            if overlaps(shape, strides):
                return f"layout: rows of {name} overlap: strides {strides}, shape {shape}; give each row its own place"
        return None

    def fitted_to(self, shapes: Mapping[str, Shape]) -> Layout:
        """Return the most similar layout that is valid for these shapes of the problem's tensors."""
        if self.why_invalid(shapes) is None:
            return self
        return Layout(BSHD, self.gap, gradients=self.gradients and self.gradients.fitted_to(shapes))

    def simplified(self) -> Iterator[Layout]:
        """Yield simpler layouts, the simplest first."""
        if self.gradients is not None:
            own = dataclasses.replace(self, gradients=None)
            yield from (self.gradients, own)
            plainer = (DENSE, *self.gradients.simplified())
            yield from (dataclasses.replace(self, gradients=each) for each in plainer)
            yield from (dataclasses.replace(plainer, gradients=self.gradients) for plainer in own.simplified())
            return
        for order in (BHSD, BSHD):
            if order == BSHD or self.gap:
                yield Layout(order, self.gap)
        if self.gap:
            yield dataclasses.replace(self, gap=0)


DENSE = Layout()
"""Q, K, V and O are C-contiguous arrays (batch, heads, len, head_dim) of their own."""
DRAWN = tuple(Layout(order, gap) for gap in (0, 8) for order in (BSHD, QKV, BHSD) if order != BHSD or gap)
"""Layouts of campaigns, the simplest first. Gaps keep rows of 16-bit elements aligned to 16 bytes if they were."""


DRAWN_OF_GRADIENTS = (None, DENSE, Layout(BSHD), Layout(QKV), Layout(BSHD, 8))
"""Values of `Layout.gradients` of campaigns: unlike the tensors' layout, so that strides taken for others show."""


def parse_layout(text: str) -> Layout:
    """Return the layout for a text, such as `bshd`, `qkv+8` or `bshd/bhsd`. Raises `ProblemError`."""
    words = text.strip()
    if words.startswith(f"{STRIDES}:"):
        given = parsed_strides(words)
        if given is None or not set(TENSORS) <= set(given):
            raise ProblemError(f"layout {_short(words)} is not {SPELLING}")
        return Layout.of_strides(**given)
    own, separator, of_gradients = words.partition("/")
    gradients = _named_layout(of_gradients, words) if separator else None
    return dataclasses.replace(_named_layout(own, words), gradients=gradients)


def parsed_strides(words: str) -> dict[str, tuple[int, ...]] | None:
    """Return the strides of each tensor in a text such as `strides:K=32/16/8/1,V=32/16/8/1`; None if it is no such."""
    parts = [_STRIDES.fullmatch(word) for word in words.removeprefix(f"{STRIDES}:").split(",")]
    return None if None in parts else {part[1]: tuple(map(int, part[2].split("/"))) for part in parts if part}


def _named_layout(text: str, words: str) -> Layout:
    """The layout of an order and a gap; `words` are the text that it is a part of."""
    with_gap = _GAP.fullmatch(text)
    order, gap = (with_gap[1], int(with_gap[2])) if with_gap else (text, 0)
    if order == STRIDES:
        raise ProblemError(f"layout {_short(words)} is not {SPELLING}")
    return Layout(order, gap)


def as_layout(layout: object) -> Layout:
    """Return a layout given as such or as text. Raises `ProblemError`."""
    if isinstance(layout, Layout):
        return layout
    if isinstance(layout, str):
        return parse_layout(layout)
    raise ProblemError(f"layout is {layout!r}; it has to be a Layout, or text such as 'bshd'")


def checked_strides(name: str, strides: Sequence[int], outermost: str = "batch") -> None:
    """Raise `ProblemError` unless these are strides of (`outermost`, head, row, element) with a dense last axis."""
    if len(strides) != AXES:
        raise ProblemError(f"layout: strides of {name} are {strides}; give ({outermost}, head, row, element)")
    if strides[-1] != 1:
        raise ProblemError(
            f"layout: the last axis of {name} has stride {strides[-1]}, and kernels need 1; make a copy whose last "
            "axis is dense, such as x.contiguous()"
        )


def strides_in_order(order: str, shape: Shape, gap: int = 0, together: int = 1) -> tuple[int, int, int, int]:
    """Return the strides of an array of this shape in an order of `ORDERS`, with `gap` elements behind every row.

    Except for `bhsd`, each token has the heads of so many tensors `together`.
    """
    _, heads, rows, head_dim = shape
    row = head_dim + gap
    if order == BHSD:
        return (heads * rows * row, rows * row, row, 1)
    token = together * heads * row
    return (rows * token, row, token, 1)


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of an array may share a place: along some axis, a step is shorter than what lies within it."""
    end = 1
    for stride, extent in sorted((s, n) for s, n in zip(strides, shape) if n > 1):
        if stride < end:
            return True
        end += stride * (extent - 1)
    return False


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last."""
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides))


def alignment_bytes(tensors: Iterable[Tensor], most: int) -> int:
    """Return the largest power of two, up to `most`, at whose multiples all rows of the tensors begin."""
    placed = [(place, each.dtype) for each in tensors for place in (each.first, *each.strides[:-1])]
    return math.gcd(most, *(place * ELEMENT_BYTES[dtype] for place, dtype in placed))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
