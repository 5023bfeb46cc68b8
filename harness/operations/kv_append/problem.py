"""Defines a problem of appending keys and values to a paged cache, without arrays."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.model.problem import ELEMENT_BYTES, IN_OUT, INPUT, LARGEST_EXTENT, Tensor, option, require_extents
from harness.model.spread import FAR, elements_apart, in_powers
from harness.operations.paged_attention.sequences import (
    DTYPES,
    MOST_SHOWN,
    PAGE_SIZES,
    PagedPool,
    lengths_in_words,
    parse_lengths,
)
from harness.support.errors import ProblemError
from harness.support.override import override


@dataclass(frozen=True, kw_only=True)
class AppendProblem(PagedPool):
    """K and V of new tokens are copied to their rows of a paged cache; the rest of the cache stays as it is.

    The cache is that of paged attention (`PagedProblem`): K and V have shape (pages, kv_heads, page_size, head_dim),
    and key j of sequence b is row j % page_size of page table[b, j // page_size]. The last new_lengths[b] of the
    lengths[b] keys of sequence b are new: lengths count them, as in FlashInfer, and the table names their pages. K_new
    and V_new have shape (tokens, kv_heads, head_dim), the new tokens of all sequences one after the other. `starts` has
    the first of each sequence, and their number at the end: token starts[b] + i is key
    lengths[b] - new_lengths[b] + i.

    Sequences may share pages that lie within their first `prefix` keys and hold no new ones: an engine copies a shared
    page before a sequence appends to it. So no two tokens have the same row. Entries of the table behind the last page
    of a sequence name no page.

    After `append_paged_kv_cache` of FlashInfer (Ye et al. 2025, arXiv 2501.01005) and `reshape_and_cache` of vLLM (Kwon
    et al. 2023, arXiv 2309.06180).

    Raises `ProblemError` if a field is invalid or the fields contradict each other.
    """

    operation: ClassVar[str] = "kv-append"
    ALWAYS_SHOWN = ("kv_heads", "lengths", "new_lengths", "head_dim")

    batch: int | None = option(
        None, "number of sequences, if --lengths is a single number", default_text="as many as --lengths has"
    )
    """Number of sequences, by default the number of `lengths`."""
    kv_heads: int = option(8, "key/value heads")
    """Number of key/value heads."""
    lengths: tuple[int, ...] = option(
        (17, 300, 4096), "keys of each sequence after the append; a single number applies to all", metavar="N[+N...]",
        parse=parse_lengths, default_text="17+300+4096",
    )  # fmt: skip
    """Number of keys of each sequence after the append. A single number applies to all `batch` sequences."""
    new_lengths: tuple[int, ...] = option(
        (1, 20, 512),
        "new tokens of each sequence, 0 or more; --lengths includes these tokens. A single number applies to all",
        metavar="N[+N...]", parse=parse_lengths, default_text="1+20+512",
    )  # fmt: skip
    """Number of new tokens of each sequence, which `lengths` count. A single number applies to all sequences."""
    head_dim: int = option(64, "elements per row")
    """Elements per row of K and V."""
    dtype: str = option("float16", ", ".join(DTYPES), metavar="DTYPE", parse=str)
    """Data type of K, V and the new tokens: float16, bfloat16 or float32."""
    page_size: int = option(16, f"rows of a page, a multiple of 16 up to {PAGE_SIZES[-1]}")
    """Rows per page, one of `PAGE_SIZES`."""
    pages: int | None = option(None, "pages in the pool", default_text="1.25 times the number in use")
    """Number of pages in the pool. None for a quarter more than are in use (`pool_pages`)."""
    prefix: int = option(
        0, "number of leading keys that all sequences have in common; pages that hold only such keys, none of them "
        "new, are shared",
    )  # fmt: skip
    """Number of first keys that all sequences have in common. Pages that lie entirely within them are shared."""
    table_len: int | None = option(
        None,
        "entries per row of the page table",
        metavar="N",
        default_text="number of pages of the longest sequence",
    )
    """Entries per row of the page table. None for as many as the longest sequence has pages (`table_shape`)."""
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
        require_extents(self, "kv_heads", "head_dim")
        self._fill_in_new_lengths()
        self._check_pool()

    def _fill_in_new_lengths(self) -> None:
        given = parse_lengths(self.new_lengths) if isinstance(self.new_lengths, str) else self.new_lengths
        if not isinstance(given, Sequence) or len(given) not in (1, self.sequences):
            raise ProblemError(
                f"new_lengths is {given!r}; name one number, or one for each of {self.sequences} lengths"
            )
        new = tuple(given) * (self.sequences // len(given))
        for sequence, (count, length) in enumerate(zip(new, self.lengths)):
            if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= length:
                raise ProblemError(
                    f"new_lengths has {count!r} for sequence {sequence}; it has to be a whole number from 0 to its "
                    f"length after the append, which is {length}"
                )
        if sum(new) > LARGEST_EXTENT:
            raise ProblemError(f"new_lengths has {sum(new):,} tokens; the most is {LARGEST_EXTENT:,}")
        object.__setattr__(self, "new_lengths", new)

    @property
    def tokens(self) -> int:
        """Number of new tokens of all sequences."""
        return sum(self.new_lengths)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first new token of each sequence, and `tokens` at the end."""
        return (0, *itertools.accumulate(self.new_lengths))

    @property
    def old_lengths(self) -> tuple[int, ...]:
        """Number of keys of each sequence before the append."""
        return tuple(length - new for length, new in zip(self.lengths, self.new_lengths))

    @property
    @override
    def shared_pages(self) -> tuple[int, ...]:
        """Number of leading pages of each sequence that are shared: full ones of the prefix, without new keys."""
        return tuple(min(self.prefix, length) // self.page_size for length in self.old_lengths)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Shape of K and of V, the pool."""
        return (self.pool_pages, self.kv_heads, self.page_size, self.head_dim)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The new tokens, where those of each sequence start, the page table, the lengths; and the pool, K and V."""
        token, pool = ("token", "head", "column"), ("page", "head", "row", "column")
        new_shape = (self.tokens, self.kv_heads, self.head_dim)
        return (
            Tensor("K_new", new_shape, self.dtype, INPUT, token),
            Tensor("V_new", new_shape, self.dtype, INPUT, token),
            Tensor("starts", (self.sequences + 1,), "int32", INPUT, ("boundary",)),
            Tensor("table", self.table_shape, "int32", INPUT, ("sequence", "place")),
            Tensor("lengths", (self.sequences,), "int32", INPUT, ("sequence",)),
            Tensor("K", self.kv_shape, self.dtype, IN_OUT, pool),
            Tensor("V", self.kv_shape, self.dtype, IN_OUT, pool),
        )

    @property
    def compulsory_read_bytes(self) -> int:
        """Bytes of the new tokens, `starts`, the lengths and the entries of pages with new keys, each read once."""
        size = self.page_size
        pages = sum(
            -(-length // size) - old // size
            for length, old, new in zip(self.lengths, self.old_lengths, self.new_lengths)
            if new
        )
        return self.compulsory_write_bytes + (2 * self.sequences + 1 + pages) * ELEMENT_BYTES["int32"]

    @property
    def compulsory_write_bytes(self) -> int:
        """Bytes of the rows of new keys and values, each written once."""
        return 2 * self.tokens * self.kv_heads * self.head_dim * self.itemsize_bytes

    @property
    @override
    def build_key(self) -> tuple[Hashable, ...]:
        return (self.dtype, self.head_dim, f"pages of {self.page_size}")

    @property
    @override
    def size_class(self) -> tuple[Hashable, ...]:
        """Order of magnitude of the number of sequences, of heads and of new tokens."""
        return (*self.build_key, *(size.bit_length() for size in (self.sequences, self.kv_heads, self.tokens)))

    @property
    def flops(self) -> int:
        """None: rows are copied."""
        return 0

    @property
    @override
    def headline(self) -> str:
        heads = "1 head" if self.kv_heads == 1 else f"{self.kv_heads} heads"
        apart = f", pages {in_powers(self.far)} elements apart" if self.far else ""
        shared = f", the first {self.prefix} shared" if any(self.shared_pages) else ""
        return (
            f"append to a paged cache, {lengths_in_words(self.lengths)}{shared}, {new_in_words(self.new_lengths)}, "
            f"{self.pages_in_use} of {self.pool_pages} pages of {self.page_size}, {heads}, head_dim {self.head_dim}, "
            f"{self.dtype}{apart}"
        )

    @override
    def to_fields(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return super().to_fields() | {"new_lengths": list(self.new_lengths)}


def new_in_words(new_lengths: Sequence[int]) -> str:
    """Describe numbers of new tokens, e.g. `1+20+512 of them new`; many by the least, the most and their sum."""
    if len(set(new_lengths)) == 1:
        return f"the last {new_lengths[0]} new" if new_lengths[0] else "none of them new"
    if len(new_lengths) <= MOST_SHOWN:
        return f"{'+'.join(map(str, new_lengths))} of them new"
    return f"{min(new_lengths)} to {max(new_lengths)} of them new, {sum(new_lengths):,} in all"
