"""Layouts of a pool: where the rows of K and V lie in memory if pages are not dense arrays.

A pool is often a view: K and V of a page lie in one tensor, the pages of all layers lie side by side, or heads come
after slots. The shape of K and V is (pages, kv_heads, page_size, head_dim) in each of them; strides differ. Orders and
strides within a page are those of attention's layouts, with pages in place of sequences.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.model.problem import Placement
from harness.operations.attention.layout import (
    BHSD,
    BSHD,
    LARGEST_STRIDE,
    STRIDES,
    Shape,
    checked_strides,
    extent,
    overlaps,
    parsed_strides,
    strides_in_order,
)
from harness.support.errors import ProblemError
from harness.support.suggestion import did_you_mean

HND, NHD, KV_HND, KV_NHD = "hnd", "nhd", "kv-hnd", "kv-nhd"
ORDERS = {
    HND: "(pages, kv_heads, page_size, head_dim)",
    NHD: "(pages, page_size, kv_heads, head_dim)",
    KV_HND: "K and V in one tensor (pages, 2, kv_heads, page_size, head_dim)",
    KV_NHD: "K and V in one tensor (pages, 2, page_size, kv_heads, head_dim)",
    STRIDES: "strides of (page, head, row, element) of K and of V",
}
IN_A_PAGE = {HND: BHSD, NHD: BSHD, KV_HND: BHSD, KV_NHD: BSHD}
"""For each order that of the rows of a page, as attention calls it: pages take the place of sequences."""
POOLS = ("K", "V")
MOST_LAYERS = 2**16
SPELLING = (
    "hnd, nhd, kv-hnd or kv-nhd, each with +N for N unused elements after every row and xL for the pages of L layers "
    "side by side; two of hnd and nhd, as in nhd/hnd+8, for K and V; or strides:K=P/H/R/1,V=P/H/R/1"
)
POOL_LAYOUT_HELP = f"where rows of K and V lie: {SPELLING}"
_NAMED = re.compile(r"([a-z-]+?)(?:\+([0-9]{1,9}))?(?:x([0-9]{1,9}))?")


@dataclass(frozen=True)
class PoolLayout:
    """Where the rows of a pool lie. Frozen, without arrays; except for `strides`, it does not depend on sizes."""

    order: str = HND
    """A key of `ORDERS`."""
    gap: int = 0
    """Unused elements behind every row."""
    layers: int = 1
    """Layers whose pages lie side by side: (pages, layers, ...). The problem's pool is that of layer `layers` // 2."""
    strides: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """For K and V, the strides of (page, head, row, element), in elements; only of the order `strides`."""
    values: PoolLayout | None = None
    """The layout of V; None if V lies like K, or in one tensor with it."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ProblemError(
                f"layout {self.order!r}: there is none{did_you_mean(self.order, ORDERS)} Layouts: {SPELLING}"
            )
        for name, value, least, end in (("gap", self.gap, 0, LARGEST_STRIDE), ("layers", self.layers, 1, MOST_LAYERS)):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < end:
                raise ProblemError(f"layout {self.order}: {name} is {value!r}; it has to be from {least} to {end - 1}")
        for name, strides in self.strides:
            checked_strides(name, strides, "page")
        if self.order == STRIDES and tuple(name for name, _ in self.strides) != POOLS:
            raise ProblemError("layout: strides are given of K and of V, in this order")
        apart = () if self.values is None else (self.order, self.values.order)
        if not set(apart) <= {HND, NHD}:
            raise ProblemError(f"layout {'/'.join(apart)}: K and V have layouts of their own only as {HND} or {NHD}")
        if self.values is not None and self.values == dataclasses.replace(self, values=None):
            object.__setattr__(self, "values", None)

    @classmethod
    def of_strides(cls, K: Sequence[int], V: Sequence[int]) -> PoolLayout:
        """Return the layout with these strides of (page, head, row, element), in elements.

        Raises `ProblemError` if the last axis of K or V is not dense.
        """
        return cls(STRIDES, strides=(("K", tuple(map(int, K))), ("V", tuple(map(int, V)))))

    @property
    def is_dense(self) -> bool:
        """Whether K and V are C-contiguous arrays (pages, kv_heads, page_size, head_dim) of their own."""
        return self == DENSE

    @property
    def is_interleaved(self) -> bool:
        """Whether K and V lie in one tensor, page by page."""
        return self.order in (KV_HND, KV_NHD)

    @property
    def text(self) -> str:
        """Its text on the command line, which `parse_pool_layout` converts back."""
        if self.order == STRIDES:
            return f"{STRIDES}:" + ",".join(f"{name}={'/'.join(map(str, each))}" for name, each in self.strides)
        own = self.order + (f"+{self.gap}" if self.gap else "") + (f"x{self.layers}" if self.layers > 1 else "")
        return own if self.values is None else f"{own}/{self.values.text}"

    def __str__(self) -> str:
        return self.text

    @property
    def complexity(self) -> tuple[object, ...]:
        """How far it is from a dense pool, for comparison with other layouts."""
        of_values = () if self.values is None else self.values.complexity
        aside = (self.values is not None, self.gap > 0, self.layers > 1, self.is_interleaved)
        return sum(aside), *aside, self.order, self.gap, self.layers, of_values

    def placements(self, shape: Shape) -> Mapping[str, Placement | None]:
        """Return where K and V lie, given the shape of both, which is that of a dense pool; None for a dense array."""
        return {name: self._placement(name, shape) for name in POOLS}

    def _placement(self, name: str, shape: Shape) -> Placement | None:
        if name == "V" and self.values is not None:
            return self.values._placement(name, shape)
        if self.order == STRIDES:
            strides = dict(self.strides)[name]
            return Placement(name, extent(shape, strides), 0, strides)
        if (self.order, self.gap, self.layers) == (HND, 0, 1):
            return None
        page, *within = strides_in_order(IN_A_PAGE[self.order], shape, self.gap)
        pools = 2 if self.is_interleaved else 1
        first = (self.layers // 2 * pools + (name == "V" and self.is_interleaved)) * page
        stride = self.layers * pools * page
        return Placement("KV" if self.is_interleaved else name, shape[0] * stride, first, (stride, *within))

    def why_invalid(self, shape: Shape) -> str | None:
        """Return the reason why a pool of this shape cannot have this layout, or None."""
        for name, place in self.placements(shape).items():
            if place is not None and max(place.strides) > LARGEST_STRIDE:
                return f"layout: {name} has a stride of {max(place.strides):,} elements; the most is {LARGEST_STRIDE:,}"
            if place is not None and overlaps(shape, place.strides):
                strides = place.strides
                return f"layout: rows of {name} overlap: strides {strides}, shape {shape}; give each row its own place"
        return None

    def simplified(self) -> Iterator[PoolLayout]:
        """Yield simpler layouts, the simplest first; none is dense."""
        if self.order == STRIDES:
            yield PoolLayout(NHD)
            return
        plainer = [PoolLayout(order) for order in (NHD, KV_HND)]
        plainer += [dataclasses.replace(self, gap=0), dataclasses.replace(self, layers=1)]
        if self.is_interleaved:
            plainer.append(dataclasses.replace(self, order=self.order.removeprefix("kv-")))
        if self.values is not None:
            own = dataclasses.replace(self, values=None)
            plainer += [own, self.values]
            parts = (DENSE, *own.simplified()), (DENSE, *self.values.simplified())
            plainer += [dataclasses.replace(each, values=self.values) for each in parts[0] if not each.is_interleaved]
            plainer += [dataclasses.replace(self, values=each) for each in parts[1] if not each.is_interleaved]
        found = dict.fromkeys(each for each in plainer if not each.is_dense and each.complexity < self.complexity)
        yield from sorted(found, key=lambda each: each.complexity)


DENSE = PoolLayout()
"""K and V are C-contiguous arrays (pages, kv_heads, page_size, head_dim) of their own."""


def parse_pool_layout(text: str) -> PoolLayout:
    """Return the layout for a text, such as `nhd`, `kv-nhd+8x4` or `nhd/hnd`. Raises `ProblemError`."""
    words = text.strip()
    if words.startswith(f"{STRIDES}:"):
        given = parsed_strides(words)
        if given is None or set(given) != set(POOLS):
            raise ProblemError(f"layout {words[:60]} is not {SPELLING}")
        return PoolLayout.of_strides(**given)
    own, separator, of_values = words.partition("/")
    values = _named_layout(of_values, words) if separator else None
    return dataclasses.replace(_named_layout(own, words), values=values)


def _named_layout(text: str, words: str) -> PoolLayout:
    """The layout of an order, a gap and layers; `words` are the text that it is a part of."""
    parts = _NAMED.fullmatch(text)
    if parts is None or parts[1] == STRIDES:
        raise ProblemError(f"layout {words[:60]} is not {SPELLING}")
    return PoolLayout(parts[1], int(parts[2] or 0), int(parts[3] or 1))


def as_pool_layout(layout: object) -> PoolLayout:
    """Return a layout given as such or as text. Raises `ProblemError`."""
    if isinstance(layout, PoolLayout):
        return layout
    if isinstance(layout, str):
        return parse_pool_layout(layout)
    raise ProblemError(f"layout is {layout!r}; it has to be a PoolLayout, or text such as 'nhd'")


DRAWN = tuple(
    parse_pool_layout(text)
    for text in ("nhd", "kv-hnd", "kv-nhd", "hndx3", "nhd/hnd", "hnd+8", "kv-nhd+8x2", "hndx3/hndx2", "hnd/nhd+8")
)
"""Layouts of campaigns, the simplest first. Gaps keep rows of 16-bit elements aligned to 16 bytes if they were. Where K
and V have layouts of their own, strides taken from the other show."""
FAR = (parse_pool_layout("kv-nhdx3"), parse_pool_layout("hndx3/hndx2"))
"""Layouts of cases whose pages lie far apart: all three strides matter, and those of K and V differ."""
