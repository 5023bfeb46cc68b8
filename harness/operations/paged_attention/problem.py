"""What is to be computed: the sizes of a batch of sequences whose keys and values lie in pages, without any arrays."""

from __future__ import annotations

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
from harness.support.errors import ProblemError
from harness.support.numbers import real_number, whole_number
from harness.support.override import override

DTYPES = ("float16", "bfloat16", "float32")
PAGE_SIZES = range(16, 257, 16)
"""Rows of a page: whole tiles of 16 keys, as tensor cores take them, so that no tile lies in two pages."""
MOST_SHOWN = 6
"""Lengths that a headline names one by one."""


def parse_lengths(text: str) -> tuple[int, ...]:
    """`17+300+4096` -> (17, 300, 4096). Raises `ValueError`, one line that says what is right."""
    return tuple(whole_number(part) for part in text.split("+"))


def require_page_size(page_size: int) -> None:
    """Raise `ProblemError` where pages may not have so many rows."""
    if page_size not in PAGE_SIZES:
        raise ProblemError(f"page_size is {page_size}; it has to be a multiple of 16 from 16 to {PAGE_SIZES[-1]}")


@dataclass(frozen=True, kw_only=True)
class PagedProblem(BaseProblem):
    """O = softmax(scale * Q K^T + causal mask) V per sequence and head, with K and V of all sequences in one pool.

    Page p holds `page_size` rows of each key/value head: K and V have shape (pages, kv_heads, page_size, head_dim). The
    keys of sequence b are lengths[b] many: key j is row j % page_size of page table[b, j // page_size]. Where a page
    lies says nothing of the sequence's order, sequences may share pages, and what no sequence has is garbage: pages
    that nobody names, rows behind the last key, entries of the table behind the last page. Query rows are the last
    `q_len` places of their sequence, such as a token that is decoded, or a few that were guessed ahead: row i sees key
    j where j <= i + lengths[b] - q_len. Query head h reads key/value head h // (heads // kv_heads).

    After Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", arXiv
    2309.06180. A page has its heads outside and its rows inside, as FlashInfer's layout HND: the rows of a page that a
    head reads are one run, which begins at a sector's first byte whatever the page. Rows outside, vLLM's layout for
    FlashAttention (NHD), would save the write of a new key one stride and cost each head runs of single rows.

    Raises `ProblemError` where the fields do not fit together.
    """

    operation: ClassVar[str] = "paged-attention"

    batch: int | None = option(
        None, "sequences, where --lengths has one for all", default_text="as many as --lengths has"
    )
    """Sequences; filled in from `lengths`."""
    heads: int = option(8, "query heads")
    """Query heads."""
    kv_heads: int = option(2, "key/value heads, a divisor of --heads")
    """Key/value heads; divides `heads`."""
    q_len: int = option(1, "rows of Q of each sequence, its last places")
    """Query rows per sequence and head. Beyond 1 they are causal."""
    lengths: tuple[int, ...] = option(
        (17, 300, 4096), "keys of each sequence, 0 or more, or of every one", metavar="N[+N...]",
        parse=parse_lengths, default_text="17+300+4096",
    )  # fmt: skip
    """Keys of each sequence, at least 0; a single one stands for all of `batch`."""
    head_dim: int = option(64, "elements per row")
    """Elements per row of Q, K, V and O."""
    dtype: str = option("float16", ", ".join(DTYPES), metavar="DTYPE", parse=str)
    """How Q, K, V and O are stored: float16, bfloat16 or float32."""
    page_size: int = option(16, f"rows of a page, a multiple of 16 up to {PAGE_SIZES[-1]}")
    """Rows of a page, one of `PAGE_SIZES`."""
    pages: int | None = option(None, "pages in the pool", default_text="a quarter more than are in use")
    """Pages that there are, in use or not; None: see `pool_pages`."""
    prefix: int = option(0, "keys that all sequences begin with: whole pages of them are shared")
    """Sequences have the pages in common that lie wholly in so many first keys, as far as they are long enough."""
    table_len: int | None = option(
        None, "entries of a row of the table", metavar="N", default_text="the pages of the longest sequence"
    )
    """Pages that the table has room for, per sequence; None: see `table_shape`."""
    scale: float | None = option(
        None, "factor on the scores", metavar="X", parse=real_number, default_text="1 / sqrt(head_dim)"
    )
    """Factor on the scores (tau). None means 1 / sqrt(head_dim)."""
    in_use: tuple[int, int] | None = None
    """Pages, and rows of them, that some sequence has, where a table that is given shares otherwise than `prefix`."""

    def __post_init__(self) -> None:
        self._fill_in_lengths()
        require_extents(self, "heads", "kv_heads", "q_len", "head_dim", "page_size")
        if self.heads % self.kv_heads:
            raise ProblemError(
                f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads}); "
                "each key/value head serves a whole group of query heads"
            )
        if self.dtype not in DTYPES:
            raise ProblemError(f"dtype is {self.dtype!r}; choose one of {', '.join(DTYPES)}")
        require_page_size(self.page_size)
        if isinstance(self.prefix, bool) or not isinstance(self.prefix, int) or self.prefix < 0:
            raise ProblemError(f"prefix is {self.prefix!r}; it has to be a whole number of at least 0")
        self._require_room("pages", self.pages_in_use, "the sequences are in")
        self._require_room("table_len", max(self.sequence_pages), "the longest sequence has")
        if self.scale is None:
            object.__setattr__(self, "scale", 1.0 / math.sqrt(self.head_dim))
        if isinstance(self.scale, bool) or not (isinstance(self.scale, (int, float)) and math.isfinite(self.scale)):
            raise ProblemError(f"scale is {self.scale!r}; it has to be a finite number")

    def _require_room(self, field: str, least: int, what: str) -> None:
        """Raise `ProblemError` where a field that is said leaves out pages that there have to be.

        What is as it is by default is not said: equal problems are equal.
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
        """`batch` after it was filled in."""
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
        """How many pages each sequence has."""
        return tuple(-(-length // self.page_size) for length in self.lengths)

    @property
    def shared_pages(self) -> tuple[int, ...]:
        """How many of them, its first, each sequence has in common with others that have as many: full ones alone."""
        return tuple(min(self.prefix, length) // self.page_size for length in self.lengths)

    @property
    def pages_in_use(self) -> int:
        """Pages that some sequence has, each counted once."""
        if self.in_use is not None:
            return self.in_use[0]
        shared = self.shared_pages
        return max(shared) + sum(self.sequence_pages) - sum(shared)

    @property
    def keys_in_use(self) -> int:
        """Rows of the pool that some sequence has, each counted once."""
        if self.in_use is not None:
            return self.in_use[1]
        shared = self.shared_pages
        return (max(shared) - sum(shared)) * self.page_size + sum(self.lengths)

    @property
    def pool_pages(self) -> int:
        """`pages`, or a quarter more than are in use, at least one more."""
        return self.pages if self.pages is not None else self.pages_in_use + max(1, self.pages_in_use // 4)

    @property
    def features(self) -> tuple[str, ...]:
        """What a variant has to take: a causal mask, where a sequence has more rows than one."""
        return ("causal",) if self.q_len > 1 else ()

    @property
    def itemsize_bytes(self) -> int:
        """Bytes per element of Q, K, V and O."""
        return ELEMENT_BYTES[self.dtype]

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
        """Shape of the table: as wide as `table_len`, or as the longest sequence has pages, at least one."""
        return (self.sequences, max(1, *self.sequence_pages) if self.table_len is None else self.table_len)

    @property
    def lse_shape(self) -> tuple[int, int, int]:
        """Shape of the log-sum-exp, always float32."""
        return self.q_shape[:3]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Q, the pool's K and V, the table and the lengths; O, and lse, which not all variants store."""
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
        """Q, each row of K and V that some sequence has, its entries of the table, and the lengths: each once."""
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
        """The orders of magnitude of all sizes; of the lengths, those of the longest and of their sum."""
        sizes = (self.sequences * self.kv_heads, self.group * self.q_len, max(self.lengths), sum(self.lengths))
        return (*self.build_key, *(size.bit_length() for size in sizes))

    @property
    def flops(self) -> int:
        """Multiplications and additions of Q K^T and P V, 4 d per query row and key that it sees, as attention's."""
        return 4 * self.heads * self.head_dim * sum(map(self._pairs, self.lengths))

    def _pairs(self, length: int) -> int:
        """Pairs of a row and a key that it sees, in a head of a sequence of that length."""
        before_all = max(0, self.q_len - length)  # rows that lie ahead of key 0
        rows = self.q_len - before_all
        return rows * length - rows * (rows - 1) // 2

    @property
    @override
    def headline(self) -> str:
        heads = "1 head" if self.heads == 1 else f"{self.heads} heads"
        grouped = "" if self.kv_heads == self.heads else f" over {self.kv_heads} of K and V"
        rows = "1 row" if self.q_len == 1 else f"{self.q_len} rows"
        shared = f", the first {self.prefix} shared" if any(self.shared_pages) else ""
        return (
            f"paged attention, {lengths_in_words(self.lengths)}{shared}, {self.pages_in_use} of {self.pool_pages} "
            f"pages of {self.page_size}, {heads}{grouped}, {rows}, head_dim {self.head_dim}, {self.dtype}, "
            f"scale {self.tau:.6g}"
        )

    @override
    def to_fields(self) -> dict[str, Any]:
        """The fields as JSON values; `in_use` only where it comes from a table that was given."""
        fields = super().to_fields() | {
            "lengths": list(self.lengths), "pages": self.pool_pages, "table_len": self.table_shape[1],
        }  # fmt: skip
        if self.in_use is None:
            del fields["in_use"]
        return fields

    @override
    def to_short_fields(self) -> dict[str, Any]:
        """`to_fields` without defaults, but with lengths, heads and head_dim."""
        # What follows from other fields is left out where it does.
        plain = type(self)(lengths=self.lengths, prefix=self.prefix, page_size=self.page_size, head_dim=self.head_dim)
        always, expected = ("heads", "kv_heads", "lengths", "head_dim"), plain.to_fields()
        expected |= {"prefix": 0, "page_size": type(self)().page_size}
        return {name: v for name, v in self.to_fields().items() if name in always or v != expected.get(name)}


def lengths_in_words(lengths: Sequence[int]) -> str:
    """Such as `3 sequences of 17+300+4096 keys`; of many, the shortest, the longest and their sum."""
    if len(set(lengths)) == 1:
        each = " each" if len(lengths) > 1 else ""
        return f"{len(lengths)} sequence{'s' * bool(each)} of {lengths[0]} key{'s' * (lengths[0] != 1)}{each}"
    if len(lengths) <= MOST_SHOWN:
        return f"{len(lengths)} sequences of {'+'.join(map(str, lengths))} keys"
    return f"{len(lengths)} sequences of {min(lengths)} to {max(lengths)} keys, {sum(lengths):,} in all"
