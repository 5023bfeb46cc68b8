"""Defines a problem of absorbed multi-head latent attention over a paged cache, without arrays."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from harness.model.problem import ELEMENT_BYTES, INPUT, OPTIONAL_OUTPUT, OUTPUT, Tensor, option, require_extents
from harness.model.spread import FAR, elements_apart, in_powers
from harness.operations.attention.sizes import checked_scale
from harness.operations.paged_attention.sequences import (
    DTYPES,
    PAGE_SIZES,
    PagedSequences,
    lengths_in_words,
    parse_lengths,
)
from harness.support.numbers import real_number
from harness.support.override import override


@dataclass(frozen=True, kw_only=True)
class MlaProblem(PagedSequences):
    """O = softmax(scale * Q C^T + causal mask) C[:, :latent_dim] per sequence and head, where all heads share C.

    C, the compressed cache, has one row of latent_dim + rope_dim elements per key: the latent vector, from which keys
    and values of all heads would be expanded, and the part of the key that rotary position embeddings rotate. The
    expansion is absorbed: that of keys in Q, that of values in the projection after O. Q has shape (sequences, heads,
    q_len, latent_dim + rope_dim), O has shape (sequences, heads, q_len, latent_dim). The values are the first
    latent_dim columns of C, so a kernel needs to load a row only once.

    C has shape (pages, page_size, latent_dim + rope_dim). Sequence b has lengths[b] keys, and key j is row
    j % page_size of page table[b, j // page_size], as in paged attention (`PagedProblem`). Query rows are the last
    `q_len` positions of their sequence: row i sees key j if j <= i + lengths[b] - q_len.

    After DeepSeek-AI 2024, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", arXiv
    2405.04434, section 2.1 and appendix C. Sizes by default are those of its cache, and pages those of FlashMLA.

    Raises `ProblemError` if a field is invalid or the fields contradict each other.
    """

    operation: ClassVar[str] = "mla-decode"
    ALWAYS_SHOWN = ("heads", "lengths", "latent_dim", "rope_dim")

    batch: int | None = option(
        None, "number of sequences, if --lengths is a single number", default_text="as many as --lengths has"
    )
    """Number of sequences, by default the number of `lengths`."""
    heads: int = option(16, "query heads, which all read the same cache")
    """Number of query heads. DeepSeek-V2 and V3 have 128; on 8 devices each has 16."""
    q_len: int = option(1, "rows of Q per sequence, at its last positions; with more than one, the mask is causal")
    """Query rows per sequence and head, under a causal mask."""
    lengths: tuple[int, ...] = option(
        (17, 300, 1024), "keys of each sequence, 0 or more; a single number applies to all", metavar="N[+N...]",
        parse=parse_lengths, default_text="17+300+1024",
    )  # fmt: skip
    """Number of keys of each sequence, at least 0. A single number applies to all `batch` sequences."""
    latent_dim: int = option(512, "elements of a row of the cache that are values, and part of the key")
    """Elements of the latent vector of a key, and per row of O."""
    rope_dim: int = option(64, "further elements of a row, which are part of the key only")
    """Elements of a key that carry its position."""
    dtype: str = option("bfloat16", ", ".join(DTYPES), metavar="DTYPE", parse=str)
    """Data type of Q, C and O: float16, bfloat16 or float32."""
    page_size: int = option(64, f"rows of a page, a multiple of 16 up to {PAGE_SIZES[-1]}")
    """Rows per page, one of `PAGE_SIZES`."""
    pages: int | None = option(None, "pages in the pool", default_text="a quarter more than are in use")
    """Number of pages in the pool. None for a quarter more than are in use (`pool_pages`)."""
    prefix: int = option(0, "keys that all sequences begin with: whole pages of them are shared")
    """Number of first keys that all sequences have in common. Pages that lie entirely within them are shared."""
    table_len: int | None = option(
        None,
        "entries per row of the page table",
        metavar="N",
        default_text="number of pages of the longest sequence",
    )
    """Entries per row of the page table. None for as many as the longest sequence has pages (`table_shape`)."""
    scale: float | None = option(
        None, "factor on the scores", metavar="X", parse=real_number, default_text="1 / sqrt(latent_dim + rope_dim)"
    )
    """Factor on the scores (tau). None means 1 / sqrt(latent_dim + rope_dim). DeepSeek-V2 has 1 / sqrt(192), from the
    length of its keys before absorption."""
    far: int = option(
        0, "kernels get a pool so large that the last page in use lies N elements behind the first, such as 2^31 "
        "(alone: 2^32)",
        parse=elements_apart, default_text="0, as --pages says", if_alone=FAR,
    )  # fmt: skip
    """Distance in elements between the first and the last page of the pool that kernels get (`spread`). 0: kernels get
    this problem."""
    in_use: tuple[int, int] | None = None
    """Pages in use and their rows in use, if a given page table shares pages in another way than `prefix` does."""

    def __post_init__(self) -> None:
        require_extents(self, "latent_dim", "rope_dim")
        self._check_sequences()
        object.__setattr__(self, "scale", checked_scale(self.scale, self.head_dim))

    @property
    @override
    def kv_heads(self) -> int:
        """One: all heads share the cache."""
        return 1

    @property
    @override
    def head_dim(self) -> int:
        """Elements per row of Q and of the cache."""
        return self.latent_dim + self.rope_dim

    @property
    @override
    def v_width(self) -> int:
        """Elements per row of values and of O: `latent_dim`."""
        return self.latent_dim

    @property
    def group(self) -> int:
        """Query heads that share the cache: all."""
        return self.heads

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Shape of C, the pool."""
        return (self.pool_pages, self.page_size, self.head_dim)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Q, the pool C, the page table and the lengths; O, and optionally lse."""
        rows = ("sequence", "head", "row", "column")
        return (
            Tensor("Q", self.q_shape, self.dtype, INPUT, rows),
            Tensor("C", self.cache_shape, self.dtype, INPUT, ("page", "row", "column")),
            Tensor("table", self.table_shape, "int32", INPUT, ("sequence", "place")),
            Tensor("lengths", (self.sequences,), "int32", INPUT, ("sequence",)),
            Tensor("O", self.o_shape, self.dtype, OUTPUT, rows),
            Tensor("lse", self.lse_shape, "float32", OPTIONAL_OUTPUT, rows[:3]),
        )

    @property
    def compulsory_read_bytes(self) -> int:
        """Bytes of Q, the used rows of C, the used table entries and the lengths, each read once."""
        entries = sum(self.sequence_pages) + self.sequences
        elements = math.prod(self.q_shape) + self.keys_in_use * self.head_dim
        return elements * self.itemsize_bytes + entries * ELEMENT_BYTES["int32"]

    @property
    @override
    def build_key(self) -> tuple[Hashable, ...]:
        return (self.dtype, f"{self.latent_dim}+{self.rope_dim}", f"pages of {self.page_size}")

    @property
    @override
    def size_class(self) -> tuple[Hashable, ...]:
        """Order of magnitude of each size; the lengths count as their maximum and their sum."""
        sizes = (self.sequences, self.heads * self.q_len, max(self.lengths), sum(self.lengths))
        return (*self.build_key, *(size.bit_length() for size in sizes))

    @property
    def flops(self) -> int:
        """2 (2 latent_dim + rope_dim) for each pair of a query row and a key it sees: its score and its value."""
        pairs = self.heads * sum(map(self.seen_pairs, self.lengths, self.rows))
        return 2 * (self.head_dim + self.latent_dim) * pairs

    @property
    @override
    def headline(self) -> str:
        heads = "1 head" if self.heads == 1 else f"{self.heads} heads"
        rows = "1 row" if self.q_len == 1 else f"{self.q_len} rows"
        apart = f", pages {in_powers(self.far)} elements apart" if self.far else ""
        shared = f", the first {self.prefix} shared" if any(self.shared_pages) else ""
        return (
            f"latent attention, {lengths_in_words(self.lengths)}{shared}, {self.pages_in_use} of {self.pool_pages} "
            f"pages of {self.page_size}, {heads}, {rows}, rows of {self.latent_dim} + {self.rope_dim}, {self.dtype}, "
            f"scale {self.tau:.6g}{apart}"
        )
