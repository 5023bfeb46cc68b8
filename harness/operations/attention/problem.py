"""Defines an attention problem: its sizes and rules, without arrays.

A scaled score passes through the score terms, in the order of `TERMS`, and then through the mask. `sinks` add to the
denominator of the softmax, and `dropout` comes after it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.model.problem import INPUT, OPTIONAL_OUTPUT, OUTPUT, Tensor, option, require_extents
from harness.model.spread import FAR, Extent, Spread, elements_apart, in_powers, require_far
from harness.operations.attention.layout import (
    BSHD,
    DENSE,
    LAYOUT_HELP,
    STRIDES,
    TENSORS,
    Layout,
    Shape,
    alignment_bytes,
    as_layout,
    parse_layout,
)
from harness.operations.attention.masks import NO_MASK, parse_mask
from harness.operations.attention.masks.arrays import (
    BLOCKS,
    CU_SEQLENS_K,
    CU_SEQLENS_Q,
    END_KEYS,
    FIRST_KEYS,
    HIDDEN_ROWS,
)
from harness.operations.attention.masks.varlen import Varlen
from harness.operations.attention.score_term import ScoreTerm
from harness.operations.attention.score_terms import TERMS, ScoreFields
from harness.support.errors import ProblemError
from harness.support.numbers import real_number, whole_number
from harness.support.override import override

SCORE_FEATURES = tuple(term.field for term in TERMS)
"""Fields that change scores besides the scale and the mask; also features that a variant may list in `takes`."""
DROPOUT = "dropout"
V_HEAD_DIM = "v_head_dim"
"""Feature of rows of V and O that are longer or shorter than those of Q and K."""
LAYOUT = "layout"
"""Feature of a layout other than C-contiguous (batch, heads, len, head_dim)."""
COMPILED_FEATURES = (*SCORE_FEATURES, DROPOUT)
"""Fields of scores and weights that are compile-time parameters of kernels; also features that a variant may list in
`takes`. `LAYOUT` and `V_HEAD_DIM` are such features, too."""
SHARES = 2**8
"""`dropout` is a multiple of 1 / SHARES, because random numbers have 8 bits, as in FlashAttention."""
LARGEST_SEED = 2**64 - 1
VECTOR_BYTES = 16
"""The widest access of a thread."""


@dataclass(frozen=True, kw_only=True)
class Problem(ScoreFields):
    """O = softmax(scale * Q K^T + mask) V per (batch, head), after Vaswani et al. 2017, equation 1.

    Q has shape (batch, heads, q_len, head_dim), K (batch, kv_heads, kv_len, head_dim), V (batch, kv_heads, kv_len,
    v_width) and O (batch, heads, q_len, v_width), all in `dtype`, and `layout` says where their elements lie; v_width
    is `v_head_dim`, or `head_dim` if that is None. Query head h reads key/value head h // (heads // kv_heads). Inputs
    of score terms and sinks are float32: `bias` of shape `bias_shape`, the others (heads,).

    Raises `ProblemError` if a field is invalid or the fields contradict each other.
    """

    operation: ClassVar[str] = "attention"
    TERMS: ClassVar[tuple[ScoreTerm, ...]] = TERMS
    VARLEN_LAYOUT: ClassVar[Layout] = Layout(BSHD)
    """The layout that `varlen` sets unless another one is given."""

    v_head_dim: int | None = option(None, "elements per row of V and O", default_text="same as --head-dim")
    """Elements per row of V and O; `head_dim` is that of Q and K. None means as many as `head_dim`, and an equal number
    becomes None, so that a problem has one form."""
    dropout: float = option(
        0.0, "probability that a weight becomes 0; the other weights are multiplied by 1 / (1 - P)", metavar="P",
        parse=real_number, default_text="0",
    )  # fmt: skip
    """P, rounded to a multiple of 2^-8: after the softmax, each weight is set to 0 with this probability, and otherwise
    multiplied by 1 / (1 - P) (Srivastava et al. 2014, JMLR 15, 1929). lse does not depend on it. The module `dropout`
    defines which weights are set to 0."""
    dropout_seed: int = option(0, "selects which weights become 0; a whole number", parse=whole_number)
    """Key of dropout's random numbers, from 0 to 2^64 - 1. Ignored without dropout."""
    layout: Layout = option(DENSE, LAYOUT_HELP, metavar="LAYOUT", parse=parse_layout)
    """Where the elements of Q, K, V and O lie, as a `Layout` or as text, such as `bshd`. The axes of arrays keep their
    order, and their strides differ."""
    varlen: str | Varlen | None = option(
        None, "unpadded sequences of ROWS rows and KEYS keys each, one after the other, as flash_attn_varlen_func "
        "takes them: sets q_len, kv_len, layout bshd and a part of the mask",
        metavar="ROWS+ROWS+...[/KEYS+KEYS+...]", parse=str, default_text="one length for all",
    )  # fmt: skip
    """Rows and keys of each sequence, such as `100+0+57/120+8+57`, or `100+57` if every sequence has as many keys as
    rows. It becomes a part of `mask`, sets `q_len` and `kv_len` to the sums, and `layout` to `bshd` unless another one
    is given; afterwards it is None, and `sequences` has the lengths."""
    far: int = option(
        0, "give kernels a batch so large that the last sequence begins at least N elements after the first, such as "
        "2^31; without N: 2^32. The emulator runs only the blocks of the --batch sequences",
        parse=elements_apart, default_text="0, adjacent sequences", if_alone=FAR,
    )  # fmt: skip
    """Distance in elements, in the largest tensor, between the beginnings of the first and the last sequence of the
    batch that kernels get (`spread`). 0: kernels get this problem."""

    def __post_init__(self) -> None:
        self._set_sequences()
        super().__post_init__()
        if self.v_head_dim is not None:
            require_extents(self, "v_head_dim")
            if self.v_head_dim == self.head_dim:
                object.__setattr__(self, "v_head_dim", None)
        self._check_terms()
        object.__setattr__(self, "dropout", _share(self.dropout))
        seed = self.dropout_seed
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
            raise ProblemError(f"dropout_seed is {seed!r}; it has to be a whole number from 0 to 2^64 - 1")
        object.__setattr__(self, "layout", as_layout(self.layout))
        reason = self.layout.why_invalid(self.shapes)
        if reason is not None:
            raise ProblemError(reason)
        reason = None if self.sequences is None else self._why_no_sequences
        if reason is not None:
            raise ProblemError(f"varlen cannot be combined with {reason}; leave out one of them")
        require_far(self.far)
        reason = self._why_not_far if self.far else None
        if reason is not None:
            raise ProblemError(f"far cannot be combined with {reason}; leave out one of them")

    def _set_sequences(self) -> None:
        """Replace `varlen` by what it sets."""
        if self.varlen is None:
            return
        part = self.varlen if isinstance(self.varlen, Varlen) else Varlen.parse(self.varlen)
        assert isinstance(part, Varlen)
        layout = as_layout(self.layout)
        sizes = {"q_len": sum(part.q_lengths), "kv_len": sum(part.kv_lengths)}
        for name, length in sizes.items():
            if getattr(self, name) not in (type(self).__dataclass_fields__[name].default, length):
                raise ProblemError(f"varlen has {length} for {name}, and {name} is {getattr(self, name)}; leave it out")
        mask = parse_mask(self.mask) if isinstance(self.mask, str) else self.mask
        layout = self.VARLEN_LAYOUT if layout.is_dense else layout
        fields = {**sizes, "mask": mask & part, "layout": layout, "varlen": None}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def _why_no_sequences(self) -> str | None:
        """What varlen cannot be combined with, in words; None if there is nothing."""
        return "dropout" if self.dropout else "bias" if self.bias is not None else None

    @property
    def _why_not_far(self) -> str | None:
        """What keeps sequences from lying `far` apart, in words; None if nothing does."""
        if self.dropout:
            return "dropout: kernels get another batch"
        if self.sequences is not None:
            return f"mask {self.mask}: its sequences are the batch"
        if self.mask.sequences > 1:
            return f"mask {self.mask}, which differs between sequences: kernels get another batch"
        if STRIDES in (self.layout.order, self.layout.of_gradients.order):
            return "strides, which are those of this batch: kernels get another one"
        return None

    @property
    @override
    def spread(self) -> Spread | None:
        return self._spread if self.far else None

    @functools.cached_property
    def _spread(self) -> Spread:
        extent = Extent.of(self.tensors, "batch", self.far)

        def of(entries: int) -> Problem:
            return dataclasses.replace(self, batch=entries, far=0)

        near = dataclasses.replace(self, far=extent.next_to_each_other)
        return Spread(of(extent.entries), self.far, "batch", extent, of(extent.entries - 1), near)

    @property
    def v_width(self) -> int:
        """Elements per row of V and O: `v_head_dim` after its default was filled in."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def v_shape(self) -> Shape:
        """Shape of V."""
        return (*self.kv_shape[:3], self.v_width)

    @property
    def o_shape(self) -> Shape:
        """Shape of O."""
        return (*self.q_shape[:3], self.v_width)

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes of Q, K, V and O, by name."""
        return {"Q": self.q_shape, "K": self.kv_shape, "V": self.v_shape, "O": self.o_shape}

    @property
    def features(self) -> tuple[str, ...]:
        """Features that a variant must support (`Variant.takes`): kinds of masks, and `compiled_features`."""
        return (*dict.fromkeys(part.kind for part in self.mask.parts), *self.compiled_features)

    @property
    def compiled_features(self) -> tuple[str, ...]:
        """The features among `COMPILED_FEATURES`, `LAYOUT` and `V_HEAD_DIM` that are on."""
        layout = () if self.layout.is_dense else (LAYOUT,)
        width = () if self.v_head_dim is None else (V_HEAD_DIM,)
        return (*self.score_features, *((DROPOUT,) if self.dropout else ()), *layout, *width)

    @property
    def dropout_threshold(self) -> int:
        """A weight is dropped if its random number of 8 bits is below this."""
        return round(self.dropout * SHARES)

    @property
    def kept_factor(self) -> float:
        """Factor on the weights that are not dropped: 1 / (1 - P)."""
        return SHARES / (SHARES - self.dropout_threshold)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Q, K, V, O, and optionally lse, the natural logarithm of sum exp(scores).

        A mask that is not a band adds int32 inputs: `first_keys` and `end_keys`, the run of each row; `blocks`, which
        blocks of a mask are on; `hidden_rows`, which rows do not see a key. The inputs of `terms` follow.
        """
        blocks, flashmask = self.blocks, self.flashmask
        grid: tuple[int, ...] = ()
        if blocks is not None:
            grid = (self.heads if blocks.by_head else 1, *blocks.array_shape(self.q_len, self.kv_len))
        hidden = () if flashmask is None else (2 * flashmask.spans_per_key, self.kv_len)
        has_spans = not self.mask_within.runs.is_band
        sequences = 0 if self.sequences is None else self.sequences.sequence_count
        of_terms = tuple(tensor for term in self.terms for tensor in term.inputs(self))
        q_shape, k_shape, v_shape, o_shape = (self.shapes[name] for name in TENSORS)
        shapes = q_shape, k_shape, v_shape, o_shape
        return _tensors(shapes, self.dtype, has_spans, sequences, grid, hidden, of_terms, self.layout)

    @property
    def row_alignment_bytes(self) -> int:
        """The largest power of two, up to 16 bytes, at whose multiples all rows of Q, K, V, O and gradients begin."""
        return alignment_bytes((self.tensor(name) for name in self.shapes), VECTOR_BYTES)

    @property
    @override
    def build_key(self) -> tuple[Hashable, ...]:
        alignment = () if self.layout.is_dense else (self.row_alignment_bytes,)
        return (self.dtype, self.head_dim, *self.compiled_features, *self._other_width, *alignment)

    @property
    def _other_width(self) -> tuple[int, ...]:
        """`v_head_dim` if it is not `head_dim`."""
        return () if self.v_head_dim is None else (self.v_head_dim,)

    @property
    @override
    def size_class(self) -> tuple[Hashable, ...]:
        sizes = (self.batch * self.heads, self.group, self.q_len, self.kv_len)
        axes = (axis for term in self.terms for axis in term.axes(self))
        layout = () if self.layout.is_dense else (self.layout.text,)
        kinds = (self.mask.text, *self.compiled_features, *axes, *layout)
        return (self.head_dim, *self._other_width, self.dtype, *kinds, *(size.bit_length() for size in sizes))

    @property
    def flops(self) -> int:
        """Multiplications and additions of Q K^T and P V, over the keys that each row sees.

        2 (d + d_v) per query row and key for rows of d elements of Q and K, and d_v of V: with equal ones 4 d, as in
        FlashAttention's benchmarks (Dao 2023, arXiv 2307.08691, section 4.1), but exact for any mask. The softmax and
        changes of scores before it are not counted.
        """
        pairs = self.q_len * self.kv_len * self.batch * self.heads
        if self.mask != NO_MASK:
            seen = self.keys_seen
            pairs = int(seen.sum()) * (self.batch * self.heads // len(seen))
        return 2 * (self.head_dim + self.v_width) * pairs

    @property
    @override
    def headline(self) -> str:
        heads = "1 head" if self.heads == 1 else f"{self.heads} heads"
        if self.kv_heads != self.heads:
            heads += f" ({self.kv_heads} for K and V)"
        rules = [] if self.mask == NO_MASK else [str(self.mask)]
        rules += [term.in_words(self) for term in self.terms]
        rules += [f"dropout {self.dropout:.4g} (seed {self.dropout_seed})"] if self.dropout else []
        rules += [] if self.layout.is_dense else [f"layout {self.layout}"]
        rules += [f"sequences {in_powers(self.far)} elements apart"] if self.far else []
        widths = f"head_dim {self.head_dim}" + ("" if self.v_head_dim is None else f", v_head_dim {self.v_head_dim}")
        sizes = f"batch {self.batch}, {heads}, {self.q_len} x {self.kv_len}, {widths}, {self.dtype}"
        return ", ".join((sizes, *rules, f"scale {self.tau:.6g}"))

    @override
    def to_fields(self) -> dict[str, Any]:
        """Return the fields as JSON values. `causal` repeats part of `mask`, for readers that support no other mask."""
        fields: dict[str, Any] = {}
        for name, value in super().to_fields().items():
            fields |= {"causal": self.causal, "mask": self.mask.text} if name == "mask" else {name: value}
        fields["layout"] = self.layout.text
        del fields["varlen"]
        if not self.far:
            del fields["far"]
        if self.v_head_dim is None:
            del fields["v_head_dim"]
        return fields | {term.field: term.as_json(fields[term.field]) for term in TERMS}

    @override
    def to_short_fields(self) -> dict[str, Any]:
        """Return `to_fields` without defaults, but with all sizes. A mask that is only causal is given as `causal`."""
        # None stands for defaults that follow from other fields.
        plain = Problem(heads=self.heads, head_dim=self.head_dim).to_fields()
        sizes = ("heads", "q_len", "kv_len", "head_dim")
        short = {name: value for name, value in self.to_fields().items() if name in sizes or value != plain.get(name)}
        short.pop("mask" if self.mask.text == "causal" else "causal", None)
        return short

    @classmethod
    @override
    def from_fields(cls, fields: Mapping[str, Any]) -> Problem:
        """Return the problem with these fields; `causal` adds a causal mask. Raises `ProblemError` or `TypeError`."""
        given = dict(fields)
        causal = given.pop("causal", False)
        if not isinstance(causal, bool):
            raise ProblemError(f"causal is {causal!r}; it has to be true or false")
        problem = cls(**given)
        return dataclasses.replace(problem, mask=problem.mask & parse_mask("causal")) if causal else problem


@functools.lru_cache(maxsize=64)
def _tensors(
    shapes: tuple[Shape, Shape, Shape, Shape],
    dtype: str,
    has_spans: bool,
    sequences: int,
    grid: tuple[int, ...],
    hidden: tuple[int, ...],
    of_terms: tuple[Tensor, ...],
    layout: Layout,
) -> tuple[Tensor, ...]:
    """Return the tensors, given the shapes of Q, K, V and O.

    Cached, because a run of a small problem needs them a dozen times.
    """
    q_shape, k_shape, v_shape, o_shape = shapes
    rows = ("batch", "head", "row", "column")
    ends = (q_shape[0], q_shape[2])
    runs = (FIRST_KEYS, END_KEYS) if has_spans else ()
    starts = (CU_SEQLENS_Q, CU_SEQLENS_K) if sequences else ()
    placed = layout.placements(dict(zip("QKVO", shapes)))
    return (
        Tensor("Q", q_shape, dtype, INPUT, rows, placed["Q"]),
        Tensor("K", k_shape, dtype, INPUT, rows, placed["K"]),
        Tensor("V", v_shape, dtype, INPUT, rows, placed["V"]),
        *(Tensor(name, ends, "int32", INPUT, ("batch", "row")) for name in runs),
        *(Tensor(name, (sequences + 1,), "int32", INPUT, ("sequence",)) for name in starts),
        *((Tensor(BLOCKS, grid, "int32", INPUT, ("head", "row of blocks", "block")),) if grid else ()),
        *((Tensor(HIDDEN_ROWS, hidden, "int32", INPUT, ("start or end", "key")),) if hidden else ()),
        *of_terms,
        Tensor("O", o_shape, dtype, OUTPUT, rows, placed["O"]),
        Tensor("lse", q_shape[:3], "float32", OPTIONAL_OUTPUT, rows[:3]),
    )


def _share(value: object) -> float:
    """Round to a multiple of 1 / `SHARES` below 1. Raises `ProblemError`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1:  # type: ignore[operator]
        raise ProblemError(f"dropout is {value!r}; it has to be a number from 0 to below 1")
    parts = round(value * SHARES)  # type: ignore[operator]
    if parts == SHARES or (parts == 0 and value):
        remedy = "leave it out, or take more" if parts == 0 else "take less"
        raise ProblemError(
            f"dropout is {value!r}; it is rounded to a multiple of 1 / {SHARES}, here {parts // SHARES}: {remedy}"
        )
    return parts / SHARES
