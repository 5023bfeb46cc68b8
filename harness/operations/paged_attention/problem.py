"""Defines a problem of attention over paged keys and values, without arrays."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.model.problem import (
    ELEMENT_BYTES,
    INPUT,
    LARGEST_EXTENT,
    OPTIONAL_OUTPUT,
    OUTPUT,
    BaseProblem,
    Tensor,
    option,
    require_extents,
)
from harness.model.spread import FAR, Extent, Spread, elements_apart, in_powers, require_far
from harness.operations.attention.sizes import checked_scale, require_groups
from harness.support.errors import ProblemError
from harness.support.numbers import real_number, whole_number
from harness.support.override import override

DTYPES = ("float16", "bfloat16", "float32")
PAGE_SIZES = range(16, 257, 16)
"""Valid rows per page: multiples of 16, so that no tile of 16 keys of a tensor core lies in two pages."""
MOST_SHOWN = 6
"""Maximum number of lengths that a headline lists individually."""


def parse_lengths(text: str) -> tuple[int, ...]:
    """Convert `17+300+4096` to (17, 300, 4096). Raises `ValueError` with a one-line message."""
    return tuple(whole_number(part) for part in text.split("+"))


def require_page_size(page_size: int) -> None:
    """Raise `ProblemError` if pages cannot have this many rows."""
    if page_size not in PAGE_SIZES:
        raise ProblemError(f"page_size is {page_size}; it has to be a multiple of 16 from 16 to {PAGE_SIZES[-1]}")


@dataclass(frozen=True, kw_only=True)
class PagedProblem(BaseProblem):
    """O = softmax(scale * Q K^T + causal mask) V per sequence and head, with K and V of all sequences in one pool.

    Q and O have shape (sequences, heads, q_len, head_dim). Page p holds `page_size` rows of each key/value head: K and
    V have shape (pages, kv_heads, page_size, head_dim). Sequence b has lengths[b] keys, and key j is row j % page_size
    of page table[b, j // page_size]. The pages of a sequence are in any order, and sequences may share pages. Unused
    memory is garbage: pages of no sequence, rows after the last key, and table entries after the last page. Query rows
    are the last `q_len` positions of their sequence, such as a decoded token or a few speculated ones: row i sees key j
    if j <= i + lengths[b] - q_len. Query head h reads key/value head h // (heads // kv_heads).

    After Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", arXiv
    2309.06180. Pages have FlashInfer's HND layout, so that the rows of a page that a head reads are contiguous and
    start at a sector boundary. In vLLM's layout for FlashAttention (NHD), a head would read single rows.

    Raises `ProblemError` if a field is invalid or the fields contradict each other.
    """

    operation: ClassVar[str] = "paged-attention"

    batch: int | None = option(
        None, "number of sequences, if --lengths is a single number", default_text="as many as --lengths has"
    )
    """Number of sequences, by default the number of `lengths`."""
    heads: int = option(8, "query heads")
    """Number of query heads."""
    kv_heads: int = option(2, "key/value heads, a divisor of --heads")
    """Number of key/value heads, a divisor of `heads`."""
    q_len: int = option(1, "rows of Q per sequence, at its last positions; with more than one, the mask is causal")
    """Query rows per sequence and head, under a causal mask."""
    lengths: tuple[int, ...] = option(
        (17, 300, 4096), "keys of each sequence, 0 or more; a single number applies to all", metavar="N[+N...]",
        parse=parse_lengths, default_text="17+300+4096",
    )  # fmt: skip
    """Number of keys of each sequence, at least 0. A single number applies to all `batch` sequences."""
    head_dim: int = option(64, "elements per row")
    """Elements per row of Q, K, V and O."""
    dtype: str = option("float16", ", ".join(DTYPES), metavar="DTYPE", parse=str)
    """Data type of Q, K, V and O: float16, bfloat16 or float32."""
    page_size: int = option(16, f"rows of a page, a multiple of 16 up to {PAGE_SIZES[-1]}")
    """Rows per page, one of `PAGE_SIZES`."""
    pages: int | None = option(None, "pages in the pool", default_text="1.25 times the number in use")
    """Number of pages in the pool. None for a quarter more than are in use (`pool_pages`)."""
    prefix: int = option(
        0, "number of leading keys that all sequences have in common; pages that hold only such keys are shared"
    )
    """Number of first keys that all sequences have in common. Pages that lie entirely within them are shared."""
    table_len: int | None = option(
        None,
        "entries per row of the page table",
        metavar="N",
        default_text="number of pages of the longest sequence",
    )
    """Entries per row of the page table. None for as many as the longest sequence has pages (`table_shape`)."""
    scale: float | None = option(
        None, "factor by which scores are multiplied", metavar="X", parse=real_number, default_text="1 / sqrt(head_dim)"
    )
    """Factor on the scores (tau). None means 1 / sqrt(head_dim)."""
    far: int = option(
        0, "give kernels a pool so large that the last page in use begins at least N elements after the first, such "
        "as 2^31; without N: 2^32",
        parse=elements_apart, default_text="0, the pool has the size of --pages", if_alone=FAR,
    )  # fmt: skip
    """Distance in elements between the first and the last page of the pool that kernels get (`spread`). 0: kernels get
    this problem."""
    in_use: tuple[int, int] | None = None
    """Pages in use and their rows in use, if a given page table shares pages in another way than `prefix` does."""

    def __post_init__(self) -> None:
        self._fill_in_lengths()
        require_extents(self, "heads", "kv_heads", "q_len", "head_dim", "page_size")
        require_groups(self.heads, self.kv_heads)
        if self.dtype not in DTYPES:
            raise ProblemError(f"dtype is {self.dtype!r}; choose one of {', '.join(DTYPES)}")
        require_page_size(self.page_size)
        if isinstance(self.prefix, bool) or not isinstance(self.prefix, int) or self.prefix < 0:
            raise ProblemError(f"prefix is {self.prefix!r}; it has to be a whole number of at least 0")
        self._require_room("pages", self.pages_in_use, "the sequences are in")
        self._require_room("table_len", max(self.sequence_pages), "the longest sequence has")
        object.__setattr__(self, "scale", checked_scale(self.scale, self.head_dim))
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
    def tau(self) -> float:
        """`scale` after its default was filled in."""
        assert self.scale is not None
        return self.scale

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    @property
    def sequence_pages(self) -> tuple[int, ...]:
        """Number of pages of each sequence."""
        return tuple(-(-length // self.page_size) for length in self.lengths)

    @property
    def shared_pages(self) -> tuple[int, ...]:
        """Number of leading pages of each sequence that lie in the common prefix and are shared; full pages only."""
        return tuple(min(self.prefix, length) // self.page_size for length in self.lengths)

    @property
    def pages_in_use(self) -> int:
        """Number of distinct pages that the sequences use."""
        if self.in_use is not None:
            return self.in_use[0]
        shared = self.shared_pages
        return max(shared) + sum(self.sequence_pages) - sum(shared)

    @property
    def keys_in_use(self) -> int:
        """Number of distinct rows of the pool that the sequences use."""
        if self.in_use is not None:
            return self.in_use[1]
        shared = self.shared_pages
        return (max(shared) - sum(shared)) * self.page_size + sum(self.lengths)

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
        pool = dataclasses.replace(self, pages=extent.entries, table_len=self.table_shape[1], far=0)
        near = dataclasses.replace(self, far=extent.next_to_each_other)
        return Spread(pool, self.far, "page", extent, None, near, ("table",))

    @property
    def features(self) -> tuple[str, ...]:
        """Features that a variant must support (`Variant.takes`): `causal` if a sequence has several rows."""
        return ("causal",) if self.q_len > 1 else ()

    @property
    def itemsize_bytes(self) -> int:
        """Bytes per element of Q, K, V and O."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def v_width(self) -> int:
        """Elements per row of V and O: as many as of K."""
        return self.head_dim

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """Shape of Q and of O."""
        return (self.sequences, self.heads, self.q_len, self.head_dim)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Shape of K and of V, the pool."""
        return (self.pool_pages, self.kv_heads, self.page_size, self.head_dim)

    @property
    def table_shape(self) -> tuple[int, int]:
        """Shape of the table: (sequences, `table_len`), by default the pages of the longest sequence, at least 1."""
        return (self.sequences, max(1, *self.sequence_pages) if self.table_len is None else self.table_len)

    @property
    def lse_shape(self) -> tuple[int, int, int]:
        """Shape of the log-sum-exp, always float32."""
        return self.q_shape[:3]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Q, the pool's K and V, the page table and the lengths; O, and optionally lse."""
        rows, pool = ("sequence", "head", "row", "column"), ("page", "head", "row", "column")
        return (
            Tensor("Q", self.q_shape, self.dtype, INPUT, rows),
            Tensor("K", self.kv_shape, self.dtype, INPUT, pool),
            Tensor("V", self.kv_shape, self.dtype, INPUT, pool),
            Tensor("table", self.table_shape, "int32", INPUT, ("sequence", "place")),
            Tensor("lengths", (self.sequences,), "int32", INPUT, ("sequence",)),
            Tensor("O", self.q_shape, self.dtype, OUTPUT, rows),
            Tensor("lse", self.lse_shape, "float32", OPTIONAL_OUTPUT, rows[:3]),
        )

    @property
    def compulsory_read_bytes(self) -> int:
        """Bytes of Q, the used rows of K and V, the used table entries and the lengths, each read once."""
        row_bytes = self.kv_heads * self.head_dim * self.itemsize_bytes
        entries = sum(self.sequence_pages) + self.sequences
        q_bytes = math.prod(self.q_shape) * self.itemsize_bytes
        return q_bytes + 2 * self.keys_in_use * row_bytes + entries * ELEMENT_BYTES["int32"]

    @property
    @override
    def build_key(self) -> tuple[Hashable, ...]:
        return (self.dtype, self.head_dim, f"pages of {self.page_size}")

    @property
    @override
    def size_class(self) -> tuple[Hashable, ...]:
        """Order of magnitude of each size; the lengths count as their maximum and their sum."""
        sizes = (self.sequences * self.kv_heads, self.group * self.q_len, max(self.lengths), sum(self.lengths))
        return (*self.build_key, *(size.bit_length() for size in sizes))

    @property
    def flops(self) -> int:
        """Multiplications and additions of Q K^T and P V: 4 head_dim for each pair of a query row and a key it sees."""
        return 4 * self.heads * self.head_dim * sum(map(self._pairs, self.lengths))

    def _pairs(self, length: int) -> int:
        """Number of pairs of a row and a key that it sees, in one head of a sequence of that length."""
        before_all = max(0, self.q_len - length)  # rows that lie ahead of key 0
        rows = self.q_len - before_all
        return rows * length - rows * (rows - 1) // 2

    @property
    @override
    def headline(self) -> str:
        heads = "1 head" if self.heads == 1 else f"{self.heads} heads"
        grouped = "" if self.kv_heads == self.heads else f" over {self.kv_heads} of K and V"
        rows = "1 row" if self.q_len == 1 else f"{self.q_len} rows"
        apart = f", pages {in_powers(self.far)} elements apart" if self.far else ""
        shared = f", the first {self.prefix} shared" if any(self.shared_pages) else ""
        return (
            f"paged attention, {lengths_in_words(self.lengths)}{shared}, {self.pages_in_use} of {self.pool_pages} "
            f"pages of {self.page_size}, {heads}{grouped}, {rows}, head_dim {self.head_dim}, {self.dtype}, "
            f"scale {self.tau:.6g}{apart}"
        )

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
        """Return `to_fields` without defaults, but with lengths, heads and head_dim."""
        # What follows from other fields is left out where it does.
        plain = type(self)(lengths=self.lengths, prefix=self.prefix, page_size=self.page_size, head_dim=self.head_dim)
        always, expected = ("heads", "kv_heads", "lengths", "head_dim"), plain.to_fields()
        expected |= {"prefix": 0, "page_size": type(self)().page_size}
        return {name: v for name, v in self.to_fields().items() if name in always or v != expected.get(name)}


def lengths_in_words(lengths: Sequence[int]) -> str:
    """Describe lengths, e.g. `3 sequences of 17+300+4096 keys`; many by the shortest, the longest and their sum."""
    if len(set(lengths)) == 1:
        each = " each" if len(lengths) > 1 else ""
        return f"{len(lengths)} sequence{'s' * bool(each)} of {lengths[0]} key{'s' * (lengths[0] != 1)}{each}"
    if len(lengths) <= MOST_SHOWN:
        return f"{len(lengths)} sequences of {'+'.join(map(str, lengths))} keys"
    return f"{len(lengths)} sequences of {min(lengths)} to {max(lengths)} keys, {sum(lengths):,} in all"
