"""Defines what problems over pages have in common: sequences of any lengths, whose keys a table finds in a pool."""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from harness.model.problem import ELEMENT_BYTES, LARGEST_EXTENT, BaseProblem, require_extents
from harness.model.spread import Extent, Spread, require_far
from harness.operations.attention.masks import NO_MASK, Mask, parse_mask
from harness.operations.paged_attention.chunks import Q_LENGTHS, checked_rows, starts
from harness.operations.paged_attention.eight_bits import KV_DTYPE, KV_DTYPES
from harness.support.errors import ProblemError
from harness.support.numbers import whole_number
from harness.support.override import override

if TYPE_CHECKING:
    from typing_extensions import Self

DTYPES = ("float16", "bfloat16", "float32")
PAGE_SIZES = range(16, 257, 16)
"""Valid rows per page: multiples of 16, so that no tile of 16 keys of a tensor core lies in two pages."""
WINDOW = "window"
"""The field of a sliding window, which is also the kind of mask and the feature that a variant may list in `takes`."""
MOST_SHOWN = 6
"""Maximum number of lengths that a headline lists individually."""


def parse_lengths(text: str) -> tuple[int, ...]:
    """Convert `17+300+4096` to (17, 300, 4096). Raises `ValueError` with a one-line message."""
    return tuple(whole_number(part) for part in text.split("+"))


def require_page_size(page_size: int) -> None:
    """Raise `ProblemError` if pages cannot have this many rows."""
    if page_size not in PAGE_SIZES:
        raise ProblemError(f"page_size is {page_size}; it has to be a multiple of 16 from 16 to {PAGE_SIZES[-1]}")


class PagedPool(BaseProblem):
    """Lengths, pages and the table of a problem, of which subclasses are frozen dataclasses with these fields.

    Those are options: `PagedProblem` describes them.
    """

    ALWAYS_SHOWN: ClassVar[tuple[str, ...]]
    """The fields of `to_short_fields` even where they have their defaults."""

    batch: int | None
    lengths: tuple[int, ...]
    dtype: str
    page_size: int
    pages: int | None
    prefix: int
    table_len: int | None
    far: int
    in_use: tuple[int, int] | None

    def with_fields(self, **fields: Any) -> Self:
        """Return the problem with these fields in place of its own. Raises `ProblemError` if they are invalid."""
        return dataclasses.replace(self, **fields)  # type: ignore[type-var]

    def _check_pool(self) -> None:
        """Check fields that do not depend on the lengths, which are filled in. Raises `ProblemError`."""
        require_extents(self, "page_size")
        if self.dtype not in DTYPES:
            raise ProblemError(f"dtype is {self.dtype!r}; choose one of {', '.join(DTYPES)}")
        require_page_size(self.page_size)
        if isinstance(self.prefix, bool) or not isinstance(self.prefix, int) or self.prefix < 0:
            raise ProblemError(f"prefix is {self.prefix!r}; it has to be a whole number of at least 0")
        self._require_room("pages", self.pages_in_use, "the sequences are in")
        self._require_room("table_len", max(self.sequence_pages), "the longest sequence has")
        require_far(self.far)

    def _require_room(self, field: str, least: int, what: str) -> None:
        """Raise `ProblemError` if the field leaves no room for the necessary pages.

        A value equal to the default becomes None, so that equal problems compare equal.
        """
        if (value := getattr(self, field)) is not None:
            require_extents(self, field)
            if value < least:
                raise ProblemError(f"{field} is {value}; {what} {least} pages of {self.page_size}")
            object.__setattr__(self, field, None)
            if value != self.to_fields()[field]:
                object.__setattr__(self, field, value)

    def _fill_in_lengths(self) -> None:
        lengths = parse_lengths(self.lengths) if isinstance(self.lengths, str) else self.lengths
        if not isinstance(lengths, Sequence) or not lengths:
            raise ProblemError(f"lengths is {lengths!r}; name at least one, such as 17+300+4096")
        for length in lengths:
            if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= LARGEST_EXTENT:
                raise ProblemError(f"lengths has {length!r}; each has to be a whole number from 0 to {LARGEST_EXTENT}")
        if self.batch is not None:
            require_extents(self, "batch")
            if len(lengths) not in (1, self.batch):
                raise ProblemError(f"batch is {self.batch}, and lengths has {len(lengths)}; leave out batch")
            lengths = tuple(lengths) * (self.batch // len(lengths))
        object.__setattr__(self, "lengths", tuple(lengths))
        object.__setattr__(self, "batch", len(lengths))

    @property
    def sequences(self) -> int:
        """Number of sequences, which is `batch` after its default was filled in."""
        return len(self.lengths)

    @property
    def sequence_pages(self) -> tuple[int, ...]:
        """Number of pages of each sequence."""
        return tuple(-(-length // self.page_size) for length in self.lengths)

    @property
    def evicted_pages(self) -> tuple[int, ...]:
        """Number of leading pages that each sequence no longer has."""
        return (0,) * self.sequences

    @property
    def shared_pages(self) -> tuple[int, ...]:
        """Number of leading pages of each sequence that lie in the common prefix and are shared; full pages only."""
        return tuple(min(self.prefix, length) // self.page_size for length in self.lengths)

    @property
    def pages_in_use(self) -> int:
        """Number of distinct pages that the sequences use."""
        if self.in_use is not None:
            return self.in_use[0]
        return distinct(self.evicted_pages, self.shared_pages, self.sequence_pages)

    @property
    def pool_pages(self) -> int:
        """Number of pages in the pool: `pages`, or by default a quarter more than are in use, at least one more."""
        return self.pages if self.pages is not None else self.pages_in_use + max(1, self.pages_in_use // 4)

    @property
    @override
    def spread(self) -> Spread | None:
        return self._spread if self.far else None

    @functools.cached_property
    def _spread(self) -> Spread:
        extent = Extent.of(self.tensors, "page", self.far)
        pool = self.with_fields(pages=extent.entries, table_len=self.table_shape[1], far=0)
        near = self.with_fields(far=extent.next_to_each_other)
        return Spread(pool, self.far, "page", extent, None, near, ("table",))

    @property
    def itemsize_bytes(self) -> int:
        """Bytes per element of `dtype`."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def table_shape(self) -> tuple[int, int]:
        """Shape of the table: (sequences, `table_len`), by default the pages of the longest sequence, at least 1."""
        return (self.sequences, max(1, *self.sequence_pages) if self.table_len is None else self.table_len)

    @override
    def to_fields(self) -> dict[str, Any]:
        """Return the fields as JSON values; with `in_use` only if it comes from a given page table."""
        fields = super().to_fields() | {
            "lengths": list(self.lengths), "pages": self.pool_pages, "table_len": self.table_shape[1],
        }  # fmt: skip
        if self.in_use is None:
            del fields["in_use"]
        if not self.far:
            del fields["far"]
        return fields

    @override
    def to_short_fields(self) -> dict[str, Any]:
        """Return `to_fields` without defaults, but with the fields of `ALWAYS_SHOWN`."""
        # What follows from other fields is left out where it does.
        plain = type(self)(**{name: getattr(self, name) for name in (*self.ALWAYS_SHOWN, "prefix", "page_size")})
        expected = plain.to_fields() | {"prefix": 0, "page_size": type(self)().page_size}
        return {
            name: value
            for name, value in self.to_fields().items()
            if name in self.ALWAYS_SHOWN or value != expected.get(name)
        }


class PagedSequences(PagedPool):
    """Attention over pages: what its problems have in common besides the pool."""

    heads: int
    q_len: int
    scale: float | None
    q_lengths: tuple[int, ...] | None = None
    """Rows of each sequence, packed (chunks.py); None if all have `q_len`. Not a field of problems in which they do."""
    kv_dtype: str | None = None
    """How K and V are stored if not as Q is. Not a field of problems in which they always are."""
    window: int | None = None
    """Keys before its own position that a row sees; None for all. Not a field of problems without windows."""
    terms: Any = ()
    """Score terms that are on; none in problems without."""
    sinks: bool = False
    """Whether heads have sinks; in problems without score terms they have none."""

    @property
    @abstractmethod
    def kv_heads(self) -> int:
        """Number of key/value heads, a divisor of `heads`."""

    @property
    @abstractmethod
    def head_dim(self) -> int:
        """Elements per row of Q and of keys."""

    @property
    @abstractmethod
    def v_width(self) -> int:
        """Elements per row of values and of O."""

    def _check_sequences(self) -> None:
        """Fill in defaults. Raises `ProblemError` if a field about lengths, pages or the table is invalid."""
        self._fill_in_lengths()
        require_extents(self, "heads", "q_len")
        self._fill_in_rows()
        self._check_pool()

    def _fill_in_rows(self) -> None:
        """Fill in `q_lengths`, and their maximum as `q_len`."""
        if self.q_lengths is None:
            return
        rows = checked_rows(self.q_lengths, self.sequences)
        if self.q_len not in (1, max(rows)):
            raise ProblemError(f"q_len is {self.q_len}, and q_lengths has up to {max(rows)} rows; leave out q_len")
        object.__setattr__(self, "q_lengths", rows)
        object.__setattr__(self, "q_len", max(rows))

    @override
    def with_fields(self, **fields: Any) -> Self:
        """Return the problem with these fields in place of its own; `q_len` follows from `q_lengths`."""
        packed = self.q_lengths is not None or fields.get(Q_LENGTHS) is not None
        return super().with_fields(**{"q_len": 1, **fields} if packed else fields)

    @property
    def rows(self) -> tuple[int, ...]:
        """Number of rows of Q of each sequence and head."""
        return (self.q_len,) * self.sequences if self.q_lengths is None else self.q_lengths

    @property
    def row_starts(self) -> tuple[int, ...]:
        """First row of each sequence in Q, if rows are packed, and the number of all rows (`cu_seqlens_q`)."""
        return starts(self.rows)

    @property
    def tau(self) -> float:
        """`scale` after its default was filled in."""
        assert self.scale is not None
        return self.scale

    @property
    def mask(self) -> Mask:
        """Which of its sequence's keys a row sees, as a mask of attention."""
        causal = parse_mask("causal") if self.q_len > 1 else NO_MASK
        return causal if self.window is None else causal & parse_mask(f"{WINDOW}:{self.window},0")

    def first_seen(self, length: int, rows: int | None = None) -> int:
        """Return the first key that a row of a sequence of that length sees; keys before it are evicted.

        `rows` are those of the sequence, by default `q_len`.
        """
        count = self.q_len if rows is None else rows
        return 0 if self.window is None else max(0, length - count - self.window)

    @property
    @override
    def evicted_pages(self) -> tuple[int, ...]:
        """Number of pages of each sequence that lie before all windows: it has none there."""
        return tuple(self.first_seen(*each) // self.page_size for each in zip(self.lengths, self.rows))

    @property
    def keys_in_use(self) -> int:
        """Number of distinct rows of the pool that some row of Q sees."""
        if self.in_use is not None:
            return self.in_use[1]
        firsts = map(self.first_seen, self.lengths, self.rows)
        shared = (pages * self.page_size for pages in self.shared_pages)
        with_rows = [each for each, rows in zip(zip(firsts, shared, self.lengths), self.rows) if rows]
        return distinct(*zip(*with_rows))

    @property
    def entries_in_use(self) -> int:
        """Number of entries of the table that name a page of a sequence that has rows."""
        pages = zip(self.sequence_pages, self.evicted_pages, self.rows)
        return sum(count - evicted for count, evicted, rows in pages if rows)

    @property
    def features(self) -> tuple[str, ...]:
        """Features that a variant must support (`Variant.takes`): kinds of masks, score terms, `kv_dtype`, `q_lengths`.

        `causal` if a sequence has several rows.
        """
        stored = () if self.kv_dtype is None else (KV_DTYPE,)
        packed = () if self.q_lengths is None else (Q_LENGTHS,)
        return (*(part.kind for part in self.mask.parts), *(term.field for term in self.terms), *stored, *packed)

    @property
    def kv_itemsize_bytes(self) -> int:
        """Bytes per element of K and V."""
        return self.itemsize_bytes if self.kv_dtype is None else ELEMENT_BYTES[KV_DTYPES[self.kv_dtype]]

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """Shape of Q: (sequences, heads, q_len, head_dim), or (1, heads, all rows, head_dim) if rows are packed."""
        batch, rows = (self.sequences, self.q_len) if self.q_lengths is None else (1, sum(self.q_lengths))
        return (batch, self.heads, rows, self.head_dim)

    @property
    def o_shape(self) -> tuple[int, int, int, int]:
        """Shape of O."""
        return (*self.q_shape[:3], self.v_width)

    @property
    def lse_shape(self) -> tuple[int, int, int]:
        """Shape of the log-sum-exp, always float32."""
        return self.q_shape[:3]

    def seen_pairs(self, length: int, rows: int) -> int:
        """Return the number of pairs of a row and a key that it sees, in one head of a sequence of that length.

        `rows` are those of the sequence.
        """
        most = LARGEST_EXTENT if self.window is None else self.window + 1

        def seen_by_first(count: int) -> int:
            """Pairs of the rows on the first keys of the sequence."""
            partial = min(count, most)
            return partial * (partial + 1) // 2 + (count - partial) * most

        return seen_by_first(length) - seen_by_first(max(0, length - rows))


def distinct(begins: Sequence[int], shared_ends: Sequence[int], ends: Sequence[int]) -> int:
    """Return the number of distinct pages, or rows, of sequences that have those from `begins` to before `ends`.

    Before `shared_ends`, all sequences have the same ones.
    """
    held = np.zeros(max(shared_ends), np.bool_)
    own = 0
    for begin, shared_end, end in zip(begins, shared_ends, ends):
        held[begin:shared_end] = True
        own += max(0, end - max(begin, shared_end))
    return int(np.count_nonzero(held)) + own


def lengths_in_words(lengths: Sequence[int]) -> str:
    """Describe lengths, e.g. `3 sequences of 17+300+4096 keys`; many by the shortest, the longest and their sum."""
    if len(set(lengths)) == 1:
        each = " each" if len(lengths) > 1 else ""
        return f"{len(lengths)} sequence{'s' * bool(each)} of {lengths[0]} key{'s' * (lengths[0] != 1)}{each}"
    if len(lengths) <= MOST_SHOWN:
        return f"{len(lengths)} sequences of {'+'.join(map(str, lengths))} keys"
    return f"{len(lengths)} sequences of {min(lengths)} to {max(lengths)} keys, {sum(lengths):,} in all"
