"""Defines an attention problem: its sizes and rules, without arrays.

A scaled score passes through `softcap`, `alibi`, `bias` and the mask, in this order. `sinks` add to the denominator of
the softmax, and `dropout` comes after it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.problem import INPUT, OPTIONAL_OUTPUT, OUTPUT, BaseProblem, Tensor, option, require_extents
from harness.operations.attention.bias import AXES, BIAS, bias_in_words, checked_axes, parse_axes
from harness.operations.attention.masks import NO_MASK, Integers, Mask, Visibility, mask_help, parse_mask
from harness.operations.attention.masks.arrays import BLOCKS, END_KEYS, FIRST_KEYS, HIDDEN_ROWS
from harness.operations.attention.masks.blocks import Blocks
from harness.operations.attention.masks.flashmask import FlashMask
from harness.operations.attention.masks.visibility import keys_seen_by_rows, spans_of_rows, visible_keys
from harness.support.errors import ProblemError
from harness.support.numbers import real_number, whole_number
from harness.support.override import override

MASK_HELP = f"{', '.join(spelling for spelling, _ in mask_help())}; several joined by +"
SLOPES, SINKS = "slopes", "sinks"
"""Names of the inputs for ALiBi and for sinks: float32, one element per query head."""
SCORE_FEATURES = ("softcap", "alibi", BIAS, "sinks")
"""Fields that change scores besides the scale and the mask; also features that a variant may list in `takes`."""
DROPOUT = "dropout"
COMPILED_FEATURES = (*SCORE_FEATURES, DROPOUT)
"""Fields that are compile-time parameters of kernels; also features that a variant may list in `takes`."""
SHARES = 2**8
"""`dropout` is a multiple of 1 / SHARES, because random numbers have 8 bits, as in FlashAttention."""
LARGEST_SEED = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class Problem(BaseProblem):
    """O = softmax(scale * Q K^T + mask) V per (batch, head), after Vaswani et al. 2017, equation 1.

    Q and O have shape (batch, heads, q_len, head_dim), K and V (batch, kv_heads, kv_len, head_dim), all
    C-contiguous in `dtype`. Query head h reads key/value head h // (heads // kv_heads). `slopes` and `sinks`, if they
    are on, are float32 of shape (heads,), and `bias` is float32 of shape `bias_shape`.

    Raises `ProblemError` if a field is invalid or the fields contradict each other.
    """

    operation: ClassVar[str] = "attention"

    batch: int = option(1, "sequences")
    """Number of independent sequences."""
    heads: int = option(2, "query heads")
    """Number of query heads."""
    kv_heads: int | None = option(None, "key/value heads, a divisor of --heads", default_text="same as --heads")
    """Number of key/value heads, a divisor of `heads`. None means as many as `heads`."""
    q_len: int = option(256, "rows of Q (default: --seq-len)")
    """Query rows per head."""
    kv_len: int = option(256, "rows of K and V (default: --seq-len)")
    """Key rows per head."""
    head_dim: int = option(64, "elements per row")
    """Elements per row of Q, K, V and O."""
    dtype: str = option("float32", ", ".join(NUMPY_DTYPES), metavar="DTYPE", parse=str)
    """Data type of Q, K, V and O: float32, float16 or bfloat16."""
    mask: Mask = option(NO_MASK, MASK_HELP, metavar="MASK", parse=parse_mask)
    """Which keys each row sees, as a `Mask` or as text, such as `causal` or `causal+window:256`."""
    scale: float | None = option(
        None, "factor on the scores", metavar="X", parse=real_number, default_text="1 / sqrt(head_dim)"
    )
    """Factor on the scores (tau). None means 1 / sqrt(head_dim)."""
    softcap: float | None = option(
        None, "scores become C tanh(score / C), as in Gemma 2", metavar="C", parse=real_number, default_text="no cap"
    )
    """C: a score s = tau q.k becomes C tanh(s / C) (Gemma Team 2024, arXiv 2408.00118, section 2). None for no cap."""
    alibi: bool = option(False, "scores fall with distance: minus slope |row's position - key|", is_flag=True)
    """Whether score s of row i, key j and head h becomes s - slopes[h] abs(i + kv_len - q_len - j) (Press, Smith and
    Lewis 2022, ALiBi, arXiv 2108.12409, section 3). Without a causal mask this includes keys after the position."""
    bias: tuple[str, ...] | None = option(
        None, f"adds an input bias[h, i, j] to the scores, which varies over AXES, some of {','.join(AXES)}",
        metavar="AXES", parse=parse_axes, if_alone=AXES, default_text="no bias; all of these without AXES",
    )  # fmt: skip
    """The axes over which the input `bias` varies, as a tuple or as text such as `heads,kv_len`; None for no bias. The
    score of row i, key j and head h becomes s + bias[h, i, j]. A bias of -infinity hides the key from the row."""
    sinks: bool = option(
        False, "adds one logit per head to the softmax's denominator, without a row of V, as in gpt-oss", is_flag=True
    )
    """Whether exp(sinks[h]) is added to the denominator of head h's rows (gpt-oss; Xiao et al. 2024, arXiv 2309.17453,
    call such a key a sink). It is part of lse. A row that sees no key has O = 0 and lse = sinks[h]."""
    dropout: float = option(
        0.0, "probability with which each weight becomes 0; the others are multiplied by 1 / (1 - P)", metavar="P",
        parse=real_number, default_text="0, none",
    )  # fmt: skip
    """P, rounded to a multiple of 2^-8: after the softmax, each weight is set to 0 with this probability, and otherwise
    multiplied by 1 / (1 - P) (Srivastava et al. 2014, JMLR 15, 1929). lse does not depend on it. The module `dropout`
    defines which weights are set to 0."""
    dropout_seed: int = option(0, "which weights drop out; a whole number", parse=whole_number)
    """Key of dropout's random numbers, from 0 to 2^64 - 1. Ignored without dropout."""

    def __post_init__(self) -> None:
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        require_extents(self, "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
        require_groups(self.heads, self.kv_heads_count)
        if self.dtype not in NUMPY_DTYPES:
            raise ProblemError(f"dtype is {self.dtype!r}; choose one of {', '.join(NUMPY_DTYPES)}")
        object.__setattr__(self, "mask", _as_mask(self.mask))
        reason = self.mask.why_invalid(self.batch, self.q_len, self.kv_len)
        if reason is not None:
            raise ProblemError(reason)
        if self.blocks is not None and self.blocks.heads not in (None, self.heads):
            raise ProblemError(
                f"mask {self.mask}: its file has blocks of {self.blocks.heads} heads, heads is {self.heads}"
            )
        if sum(not part.is_run for part in self.mask.parts) > 1:
            raise ProblemError(f"mask {self.mask}: kernels take one mask that is no run of keys; put them into one")
        object.__setattr__(self, "scale", checked_scale(self.scale, self.head_dim))
        if self.softcap is not None and not _is_positive(self.softcap):
            raise ProblemError(
                f"softcap is {self.softcap!r}; it has to be a positive number, and is left out where there is no cap"
            )
        object.__setattr__(self, BIAS, checked_axes(self.bias))
        for field in ("alibi", "sinks"):
            if not isinstance(getattr(self, field), bool):
                raise ProblemError(f"{field} is {getattr(self, field)!r}; it has to be true or false")
        object.__setattr__(self, "dropout", _share(self.dropout))
        seed = self.dropout_seed
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
            raise ProblemError(f"dropout_seed is {seed!r}; it has to be a whole number from 0 to 2^64 - 1")

    @property
    def diagonal(self) -> int:
        """The key on which row 0 lies: row i lies on key i + diagonal, so that the last row lies on the last key."""
        return self.kv_len - self.q_len

    @property
    def kv_heads_count(self) -> int:
        """`kv_heads` after its default was filled in."""
        assert self.kv_heads is not None
        return self.kv_heads

    @property
    def tau(self) -> float:
        """`scale` after its default was filled in."""
        assert self.scale is not None
        return self.scale

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads_count

    @property
    def causal(self) -> bool:
        """Whether the mask is causal, alone or combined with others."""
        return any(part.kind == "causal" for part in self.mask.parts)

    @property
    def features(self) -> tuple[str, ...]:
        """Features that a variant must support (`Variant.takes`): kinds of masks, and `compiled_features`."""
        return (*dict.fromkeys(part.kind for part in self.mask.parts), *self.compiled_features)

    @property
    def compiled_features(self) -> tuple[str, ...]:
        """The features among `COMPILED_FEATURES` that are on."""
        return (*self.score_features, *((DROPOUT,) if self.dropout else ()))

    @property
    def score_features(self) -> tuple[str, ...]:
        """The features among `SCORE_FEATURES` that are on."""
        on = (self.softcap is not None, self.alibi, self.bias is not None, self.sinks)
        return tuple(name for name, is_on in zip(SCORE_FEATURES, on) if is_on)

    @property
    def dropout_threshold(self) -> int:
        """A weight is dropped if its random number of 8 bits is below this."""
        return round(self.dropout * SHARES)

    @property
    def kept_factor(self) -> float:
        """Factor on the weights that are not dropped: 1 / (1 - P)."""
        return SHARES / (SHARES - self.dropout_threshold)

    def span(self, rows: Integers, sequence: int = 0) -> tuple[Integers, Integers]:
        """Return the keys that each of these rows sees, as (first, end). A row that sees no key has end <= first.

        `sequence` is an index into the batch, for masks that differ between sequences (`Mask.sequences`).
        """
        return self.mask.of_sequence(sequence).span(rows, self.q_len, self.kv_len)

    @property
    def spans(self) -> tuple[Integers, Integers]:
        """(first, end) of all rows, each of shape (sequences, q_len), with sequences = 1 if all see the same.

        Under a mask whose rows do not see a run of keys, the keys that a row sees lie within, and `keys_seen` counts
        them.
        """
        return spans_of_rows(self.mask, self.q_len, self.kv_len)

    def seen(self, sequence: int = 0, head: int = 0) -> Visibility:
        """Return which keys each row sees, as booleans of shape (q_len, kv_len)."""
        return visible_keys(self.mask.of_sequence(sequence).of_head(head), self.q_len, self.kv_len)

    @property
    def keys_seen(self) -> Integers:
        """Number of keys that each row sees, (sequences x heads, q_len), for the sequences and heads that differ."""
        heads = self.heads if self.mask.tells_heads_apart else 1
        return keys_seen_by_rows(self.mask, heads, self.q_len, self.kv_len)

    @property
    def blocks(self) -> Blocks | None:
        """The mask of blocks; None if the mask has none."""
        return next((part for part in self.mask.parts if isinstance(part, Blocks)), None)

    @property
    def flashmask(self) -> FlashMask | None:
        """The FlashMask; None if the mask has none."""
        return next((part for part in self.mask.parts if isinstance(part, FlashMask)), None)

    @property
    def itemsize_bytes(self) -> int:
        """Bytes per element of Q, K, V and O."""
        return NUMPY_DTYPES[self.dtype].itemsize

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """Shape of Q and of O."""
        return (self.batch, self.heads, self.q_len, self.head_dim)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Shape of K and of V."""
        return (self.batch, self.kv_heads_count, self.kv_len, self.head_dim)

    @property
    def lse_shape(self) -> tuple[int, int, int]:
        """Shape of the log-sum-exp, always float32."""
        return (self.batch, self.heads, self.q_len)

    @property
    def bias_shape(self) -> tuple[int, ...]:
        """Shape of the input `bias`: an extent of 1 along each axis over which it does not vary. () without bias."""
        return () if self.bias is None else tuple(getattr(self, axis) if axis in self.bias else 1 for axis in AXES)

    @property
    def bias_strides(self) -> tuple[int, int, int]:
        """Elements of `bias` between neighbouring heads, rows and keys; 0 along axes over which it does not vary."""
        heads, rows, keys = (axis in (self.bias or ()) for axis in AXES)
        per_row = self.kv_len if keys else 1
        return heads * per_row * (self.q_len if rows else 1), rows * per_row, int(keys)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Q, K, V, O, and optionally lse, the natural logarithm of sum exp(scores).

        A mask that is not a band adds int32 inputs: `first_keys` and `end_keys`, the run of each row; `blocks`, which
        blocks of a mask are on; `hidden_rows`, which rows do not see a key. `slopes`, `bias` and `sinks` exist if they
        are on.
        """
        blocks, flashmask = self.blocks, self.flashmask
        grid: tuple[int, ...] = ()
        if blocks is not None:
            grid = (self.heads if blocks.by_head else 1, *blocks.array_shape(self.q_len, self.kv_len))
        hidden = () if flashmask is None else (2 * flashmask.spans_per_key, self.kv_len)
        has_spans = not self.mask.runs.is_band
        return _tensors(
            self.q_shape, self.kv_shape, self.dtype, has_spans, grid, hidden, self.alibi, self.bias_shape, self.sinks
        )

    @property
    @override
    def build_key(self) -> tuple[Hashable, ...]:
        return (self.dtype, self.head_dim, *self.compiled_features)

    @property
    @override
    def size_class(self) -> tuple[Hashable, ...]:
        sizes = (self.batch * self.heads, self.group, self.q_len, self.kv_len)
        kinds = (self.mask.text, *self.compiled_features, *(self.bias or ()))
        return (self.head_dim, self.dtype, *kinds, *(size.bit_length() for size in sizes))

    @property
    def flops(self) -> int:
        """Multiplications and additions of Q K^T and P V, over the keys that each row sees.

        4 d per query row and key, as in FlashAttention's benchmarks (Dao 2023, arXiv 2307.08691, section 4.1), but
        exact for any mask. The softmax and changes of scores before it are not counted.
        """
        pairs = self.q_len * self.kv_len * self.batch * self.heads
        if self.mask != NO_MASK:
            seen = self.keys_seen
            pairs = int(seen.sum()) * (self.batch * self.heads // len(seen))
        return 4 * self.head_dim * pairs

    @property
    @override
    def headline(self) -> str:
        heads = "1 head" if self.heads == 1 else f"{self.heads} heads"
        if self.kv_heads != self.heads:
            heads += f" ({self.kv_heads} for K and V)"
        rules = [] if self.mask == NO_MASK else [str(self.mask)]
        rules += [] if self.softcap is None else [f"softcap {self.softcap:g}"]
        rules += [*(["ALiBi"] * self.alibi), *bias_in_words(self.bias), *(["sinks"] * self.sinks)]
        rules += [f"dropout {self.dropout:.4g} (seed {self.dropout_seed})"] if self.dropout else []
        return ", ".join(
            (f"batch {self.batch}, {heads}, {self.q_len} x {self.kv_len}, head_dim {self.head_dim}, {self.dtype}",
             *rules, f"scale {self.tau:.6g}")
        )  # fmt: skip

    @override
    def to_fields(self) -> dict[str, Any]:
        """Return the fields as JSON values. `causal` repeats part of `mask`, for readers that support no other mask."""
        fields: dict[str, Any] = {}
        for name, value in super().to_fields().items():
            fields |= {"causal": self.causal, "mask": self.mask.text} if name == "mask" else {name: value}
        fields[BIAS] = None if self.bias is None else ",".join(self.bias)
        return fields

    @override
    def to_short_fields(self) -> dict[str, Any]:
        """Return `to_fields` without defaults, but with all sizes. A mask that is only causal is given as `causal`."""
        # None stands for defaults that follow from other fields.
        plain = Problem(heads=self.heads, head_dim=self.head_dim).to_fields()
        sizes = ("heads", "q_len", "kv_len", "head_dim")
        short = {name: value for name, value in self.to_fields().items() if name in sizes or value != plain[name]}
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
    q_shape: tuple[int, ...],
    kv_shape: tuple[int, ...],
    dtype: str,
    has_spans: bool,
    grid: tuple[int, ...],
    hidden: tuple[int, ...],
    alibi: bool,
    bias: tuple[int, ...],
    sinks: bool,
) -> tuple[Tensor, ...]:
    """Return the tensors. Cached, because a run of a small problem needs them a dozen times."""
    rows = ("batch", "head", "row", "column")
    ends = (q_shape[0], q_shape[2])
    runs = (FIRST_KEYS, END_KEYS) if has_spans else ()
    return (
        Tensor("Q", q_shape, dtype, INPUT, rows),
        Tensor("K", kv_shape, dtype, INPUT, rows),
        Tensor("V", kv_shape, dtype, INPUT, rows),
        *(Tensor(name, ends, "int32", INPUT, ("batch", "row")) for name in runs),
        *((Tensor(BLOCKS, grid, "int32", INPUT, ("head", "row of blocks", "block")),) if grid else ()),
        *((Tensor(HIDDEN_ROWS, hidden, "int32", INPUT, ("start or end", "key")),) if hidden else ()),
        *((Tensor(SLOPES, q_shape[1:2], "float32", INPUT, ("head",)),) if alibi else ()),
        *((Tensor(BIAS, bias, "float32", INPUT, ("head", "row", "key")),) if bias else ()),
        *((Tensor(SINKS, q_shape[1:2], "float32", INPUT, ("head",)),) if sinks else ()),
        Tensor("O", q_shape, dtype, OUTPUT, rows),
        Tensor("lse", q_shape[:3], "float32", OPTIONAL_OUTPUT, rows[:3]),
    )


def require_groups(heads: int, kv_heads: int) -> None:
    """Raise `ProblemError` unless every key/value head serves the same number of query heads."""
    if heads % kv_heads:
        raise ProblemError(
            f"heads ({heads}) is not a multiple of kv_heads ({kv_heads}); "
            "each key/value head serves a whole group of query heads"
        )


def default_scale(head_dim: int) -> float:
    """Return the factor on the scores if none is given."""
    return 1.0 / math.sqrt(head_dim)


def checked_scale(scale: Any, head_dim: int) -> float | int:
    """Return `scale`, or the default for None. Raises `ProblemError` unless it is a finite number."""
    if scale is None:
        return default_scale(head_dim)
    if isinstance(scale, bool) or not (isinstance(scale, (int, float)) and math.isfinite(scale)):
        raise ProblemError(f"scale is {scale!r}; it has to be a finite number")
    return scale


def heads_in_words(problem: Any) -> list[str]:
    """Describe the heads of a problem that has several; for attention on pages, too."""
    if problem.heads == 1:
        return []
    grouped = f" over {problem.kv_heads} of K and V" if problem.kv_heads != problem.heads else ""
    return [f"{problem.heads} heads{grouped}"]


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value > 0


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


def _as_mask(mask: object) -> Mask:
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, str):
        return parse_mask(mask)
    raise ProblemError(f"mask is {mask!r}; it has to be a Mask, or text such as 'causal+window:256'")
