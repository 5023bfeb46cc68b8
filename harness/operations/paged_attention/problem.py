"""Defines a problem of attention over paged keys and values, without arrays."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.model.problem import ELEMENT_BYTES, INPUT, OPTIONAL_OUTPUT, OUTPUT, Tensor, option, require_extents
from harness.model.spread import FAR, elements_apart, in_powers
from harness.operations.attention.layout import STRIDES, alignment_bytes
from harness.operations.attention.masks import CU_SEQLENS_Q
from harness.operations.attention.problem import LAYOUT, VECTOR_BYTES
from harness.operations.attention.score_term import ScoreTerm
from harness.operations.attention.score_terms import TERMS_OF_HEADS, HeadScoreFields
from harness.operations.attention.sizes import checked_scale, require_groups
from harness.operations.paged_attention.chunks import Q_LENGTHS, parse_rows, placed_by_token, rows_in_words
from harness.operations.paged_attention.eight_bits import KV_DTYPES, SCALES, why_invalid
from harness.operations.paged_attention.pool_layout import (
    DENSE,
    POOL_LAYOUT_HELP,
    POOLS,
    PoolLayout,
    as_pool_layout,
    parse_pool_layout,
)
from harness.operations.paged_attention.sequences import (
    DTYPES,
    PAGE_SIZES,
    WINDOW,
    PagedSequences,
    lengths_in_words,
    parse_lengths,
)
from harness.support.errors import ProblemError
from harness.support.numbers import real_number, whole_number
from harness.support.override import override


@dataclass(frozen=True, kw_only=True)
class PagedSizes(PagedSequences):
    """The fields of `PagedProblem` that score terms and windows do not have."""

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
    q_lengths: tuple[int, ...] | None = option(
        None, "rows of Q of each sequence, at its last positions, 0 or more; Q is packed, (tokens, heads, head_dim). A "
        "single number applies to all", metavar="N[+N...]", parse=parse_rows, default_text="--q-len, padded",
    )  # fmt: skip
    """Query rows of each sequence and head, under a causal mask; rows of all sequences lie one after the other in Q. A
    single number applies to all sequences. `q_len` is then their maximum. None if all sequences have `q_len`."""
    lengths: tuple[int, ...] = option(
        (17, 300, 4096), "keys of each sequence, 0 or more; a single number applies to all", metavar="N[+N...]",
        parse=parse_lengths, default_text="17+300+4096",
    )  # fmt: skip
    """Number of keys of each sequence, at least 0. A single number applies to all `batch` sequences."""
    head_dim: int = option(64, "elements per row")
    """Elements per row of Q, K, V and O."""
    dtype: str = option("float16", ", ".join(DTYPES), metavar="DTYPE", parse=str)
    """Data type of Q and O, and of K and V unless there is a `kv_dtype`: float16, bfloat16 or float32."""
    kv_dtype: str | None = option(
        None,
        f"dtype of K and V if it differs from that of Q: {', '.join(KV_DTYPES)}, with one scale per key/value head",
        metavar="DTYPE", parse=str, default_text="the value of --dtype",
    )  # fmt: skip
    """How K and V are stored: `e4m3`, with float32 scales K_scale and V_scale per key/value head by which stored
    elements are multiplied. None if they have the dtype of Q and no scales."""
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


@dataclass(frozen=True, kw_only=True)
class PagedProblem(HeadScoreFields, PagedSizes):
    """O = softmax(scale * Q K^T + causal mask) V per sequence and head, with K and V of all sequences in one pool.

    Q and O have shape (sequences, heads, q_len, head_dim). Page p holds `page_size` rows of each key/value head: K and
    V have shape (pages, kv_heads, page_size, head_dim). Sequence b has lengths[b] keys, and key j is row j % page_size
    of page table[b, j // page_size]. The pages of a sequence are in any order, and sequences may share pages. Unused
    memory is garbage: pages of no sequence, rows after the last key, and table entries after the last page. Query rows
    are the last `q_len` positions of their sequence, such as a decoded token or a few speculated ones: row i sees key j
    if j <= i + lengths[b] - q_len. With a `window`, it sees only that many keys before its own position, and pages
    that lie before the window of every row are evicted: their entries in the table name no page. Query head h reads
    key/value head h // (heads // kv_heads). Score terms and sinks are those of attention (`Problem`); their inputs are
    float32, one element per query head. With a `kv_dtype`, K and V are stored elements times their head's scale.

    With `q_lengths`, sequence b has q_lengths[b] rows in place of `q_len`, at its last positions: a chunk of a prompt,
    a token, or nothing. Q and O have shape (1, heads, tokens, head_dim) for the rows of all sequences, and lie in
    memory as (tokens, heads, head_dim). The input cu_seqlens_q, int32 of shape (sequences + 1,), has the first row of
    each.

    After Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", arXiv
    2309.06180. `layout` says where the elements of K and V lie. By default pages have FlashInfer's HND layout, so that
    the rows of a page that a head reads are contiguous and start at a sector boundary. In vLLM's layout for
    FlashAttention (NHD), a head reads single rows.

    Raises `ProblemError` if a field is invalid or the fields contradict each other.
    """

    operation: ClassVar[str] = "paged-attention"
    ALWAYS_SHOWN = ("heads", "kv_heads", "lengths", "head_dim")
    TERMS: ClassVar[tuple[ScoreTerm, ...]] = TERMS_OF_HEADS

    window: int | None = option(
        None, "a row sees the LEFT keys before its position, and the key at it; pages before every window are evicted: "
        "their entries in the table are -1",
        metavar="LEFT", parse=whole_number, default_text="all keys before it",
    )  # fmt: skip
    """Number of keys before a row's position that it sees (Beltagy et al. 2020, arXiv 2004.05150). None for all."""
    far: int = option(
        0, "give kernels a pool so large that the last page in use begins at least N elements after the first, such "
        "as 2^31; without N: 2^32",
        parse=elements_apart, default_text="0, the pool has the size of --pages", if_alone=FAR,
    )  # fmt: skip
    """Distance in elements between the first and the last page of the pool that kernels get (`spread`). 0: kernels get
    this problem."""
    layout: PoolLayout = option(DENSE, POOL_LAYOUT_HELP, metavar="LAYOUT", parse=parse_pool_layout, default_text="hnd")
    """Where the elements of K and V lie, as a `PoolLayout` or as text, such as `kv-nhd`. Arrays keep their axes."""
    in_use: tuple[int, int] | None = None
    """Pages in use and their rows in use, if a given page table shares pages in another way than `prefix` does."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", as_pool_layout(self.layout))
        require_extents(self, "kv_heads", "head_dim")
        self._check_sequences()
        reason = None if self.kv_dtype is None else why_invalid(self.kv_dtype, self.dtype, self.head_dim)
        if reason is not None:
            raise ProblemError(reason)
        require_groups(self.heads, self.kv_heads)
        window = self.window
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 0):
            raise ProblemError(f"window is {window!r}; it has to be a whole number of at least 0")
        self._check_terms()
        object.__setattr__(self, "scale", checked_scale(self.scale, self.head_dim))
        if (reason := self.layout.why_invalid(self.kv_shape)) is not None:
            raise ProblemError(reason)
        if self.far and self.layout.order == STRIDES:
            raise ProblemError("far cannot be combined with strides, whose pages may lie in any order; name a layout")

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    @property
    @override
    def v_width(self) -> int:
        """Elements per row of V and O: as many as of K."""
        return self.head_dim

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Shape of K and of V, the pool."""
        return (self.pool_pages, self.kv_heads, self.page_size, self.head_dim)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Q, the pool's K and V, the table, the lengths, starts of packed rows, scales, inputs of `terms`; O, lse."""
        rows, pool = ("sequence", "head", "row", "column"), ("page", "head", "row", "column")
        packed = self.q_lengths is not None
        placed = {name: placed_by_token(name, self.q_shape) for name in "QO"} if packed else {}
        stored = self.dtype if self.kv_dtype is None else KV_DTYPES[self.kv_dtype]
        places = self.layout.placements(self.kv_shape)
        return (
            Tensor("Q", self.q_shape, self.dtype, INPUT, rows, placed.get("Q")),
            Tensor("K", self.kv_shape, stored, INPUT, pool, places["K"]),
            Tensor("V", self.kv_shape, stored, INPUT, pool, places["V"]),
            Tensor("table", self.table_shape, "int32", INPUT, ("sequence", "place")),
            Tensor("lengths", (self.sequences,), "int32", INPUT, ("sequence",)),
            *((Tensor(CU_SEQLENS_Q, (self.sequences + 1,), "int32", INPUT, ("sequence",)),) if packed else ()),
            *self.scales,
            *(tensor for term in self.terms for tensor in term.inputs(self)),
            Tensor("O", self.q_shape, self.dtype, OUTPUT, rows, placed.get("O")),
            Tensor("lse", self.lse_shape, "float32", OPTIONAL_OUTPUT, rows[:3]),
        )

    @property
    @override
    def features(self) -> tuple[str, ...]:
        return (*super().features, *(() if self.layout.is_dense else (LAYOUT,)))

    @property
    def row_alignment_bytes(self) -> int:
        """The largest power of two, up to 16 bytes, at whose multiples all rows of K and V begin."""
        return alignment_bytes((self.tensor(name) for name in POOLS), VECTOR_BYTES)

    @property
    def scales(self) -> tuple[Tensor, ...]:
        """K_scale and V_scale, the factors on stored elements of each key/value head; none without a `kv_dtype`."""
        names = () if self.kv_dtype is None else tuple(SCALES.values())
        return tuple(Tensor(name, (self.kv_heads,), "float32", INPUT, ("head",)) for name in names)

    @property
    def compulsory_read_bytes(self) -> int:
        """Bytes of Q, used rows of K and V, used table entries, lengths, scales and other inputs, each read once."""
        row_bytes = self.kv_heads * self.head_dim * self.kv_itemsize_bytes
        entries = self.entries_in_use + sum(rows > 0 for rows in self.rows)
        entries += 0 if self.q_lengths is None else self.sequences + 1
        q_bytes = math.prod(self.q_shape) * self.itemsize_bytes
        of_terms = (tensor for term in self.terms for tensor in term.inputs(self))
        head_bytes = sum(tensor.size_bytes for tensor in (*self.scales, *of_terms))
        return q_bytes + head_bytes + 2 * self.keys_in_use * row_bytes + entries * ELEMENT_BYTES["int32"]

    @property
    @override
    def build_key(self) -> tuple[Hashable, ...]:
        window = () if self.window is None else (WINDOW,)
        stored = () if self.kv_dtype is None else (f"K and V in {self.kv_dtype}",)
        packed = () if self.q_lengths is None else (Q_LENGTHS,)
        aligned = () if self.layout.is_dense else (f"rows at multiples of {self.row_alignment_bytes} bytes",)
        features = (*window, *self.score_features, *aligned)
        return (self.dtype, *stored, *packed, self.head_dim, f"pages of {self.page_size}", *features)

    @property
    @override
    def size_class(self) -> tuple[Hashable, ...]:
        """Order of magnitude of each size; the lengths count as their maximum and their sum."""
        sizes = (self.sequences * self.kv_heads, self.group * self.q_len, max(self.lengths), sum(self.lengths))
        layout = () if self.layout.is_dense else (self.layout.text,)
        return (*self.build_key, *layout, *(size.bit_length() for size in sizes))

    @property
    def flops(self) -> int:
        """Multiplications and additions of Q K^T and P V: 4 head_dim for each pair of a query row and a key it sees."""
        return 4 * self.heads * self.head_dim * sum(map(self.seen_pairs, self.lengths, self.rows))

    @property
    @override
    def headline(self) -> str:
        heads = "1 head" if self.heads == 1 else f"{self.heads} heads"
        grouped = "" if self.kv_heads == self.heads else f" over {self.kv_heads} of K and V"
        rows = "1 row" if self.q_len == 1 else f"{self.q_len} rows"
        rows = rows if self.q_lengths is None else rows_in_words(self.q_lengths)
        rules = "" if self.window is None else f", window {self.window}"
        rules += "".join(f", {term.in_words(self)}" for term in self.terms)
        stored = "" if self.kv_dtype is None else f" with K and V in {self.kv_dtype}"
        rules += "" if self.layout.is_dense else f", layout {self.layout}"
        apart = f", pages {in_powers(self.far)} elements apart" if self.far else ""
        shared = f", the first {self.prefix} shared" if any(self.shared_pages) else ""
        return (
            f"paged attention, {lengths_in_words(self.lengths)}{shared}, {self.pages_in_use} of {self.pool_pages} "
            f"pages of {self.page_size}, {heads}{grouped}, {rows}, head_dim {self.head_dim}, {self.dtype}{stored}"
            f"{rules}, scale {self.tau:.6g}{apart}"
        )

    @override
    def to_fields(self) -> dict[str, Any]:
        """Return the fields as JSON values; optional features, from `window` to `layout`, only if there are some."""
        fields = super().to_fields() | {"layout": self.layout.text}
        if self.layout.is_dense:
            del fields["layout"]
        terms = {term.field: fields.pop(term.field) for term in self.TERMS}
        for name in ("window", "kv_dtype", Q_LENGTHS):
            if fields[name] is None:
                del fields[name]
        if self.q_lengths is not None:
            del fields["q_len"]  # their maximum
            fields[Q_LENGTHS] = list(self.q_lengths)
        return fields | {term.field: term.as_json(terms[term.field]) for term in self.terms}
