"""Sizes, data type, mask and scale of an attention problem: all that its products Q K^T and P V depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.problem import BaseProblem, option, require_extents
from harness.operations.attention.masks import NO_MASK, Integers, Mask, Visibility, mask_help, parse_mask
from harness.operations.attention.masks.blocks import Blocks
from harness.operations.attention.masks.flashmask import FlashMask
from harness.operations.attention.masks.varlen import Varlen
from harness.operations.attention.masks.visibility import keys_seen_by_rows, spans_of_rows, visible_keys
from harness.support.errors import ProblemError
from harness.support.numbers import real_number

MASK_HELP = f"{', '.join(spelling for spelling, _ in mask_help())}; join several with +"


@dataclass(frozen=True, kw_only=True)
class Sizes(BaseProblem):
    """The fields of `Problem` that scores and dropout do not have; `Problem` describes the arrays.

    Raises `ProblemError` if a field is invalid or the fields contradict each other.
    """

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
    """Elements per row of Q and K, and of V and O unless a problem has other ones for these."""
    dtype: str = option("float32", ", ".join(NUMPY_DTYPES), metavar="DTYPE", parse=str)
    """Data type of Q, K, V and O: float32, float16 or bfloat16."""
    mask: Mask = option(NO_MASK, MASK_HELP, metavar="MASK", parse=parse_mask)
    """Which keys each row sees, as a `Mask` or as text, such as `causal` or `causal+window:256`."""
    scale: float | None = option(
        None, "factor by which scores are multiplied", metavar="X", parse=real_number, default_text="1 / sqrt(head_dim)"
    )
    """Factor on the scores (tau). None means 1 / sqrt(head_dim)."""

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
            raise ProblemError(f"mask {self.mask}: kernels take one mask that is not a run of keys; combine them")
        object.__setattr__(self, "scale", checked_scale(self.scale, self.head_dim))

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
    def sequences(self) -> Varlen | None:
        """The unpadded sequences; None if the mask has none."""
        return next((part for part in self.mask.parts if isinstance(part, Varlen)), None)

    @property
    def mask_within(self) -> Mask:
        """The mask without `sequences`, which kernels get for the rows and keys of one sequence."""
        return self.mask.without(Varlen.kind)

    def own_keys(self, rows: Integers) -> Integers:
        """Return the key on which each of these rows lies."""
        return rows + self.diagonal if self.sequences is None else self.sequences.own_keys(rows)

    @property
    def itemsize_bytes(self) -> int:
        """Bytes per element of Q, K, V and O."""
        return NUMPY_DTYPES[self.dtype].itemsize

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """Shape of Q, and of O if V is as wide as K."""
        return (self.batch, self.heads, self.q_len, self.head_dim)

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """Shape of K, and of V if it is as wide."""
        return (self.batch, self.kv_heads_count, self.kv_len, self.head_dim)

    @property
    def lse_shape(self) -> tuple[int, int, int]:
        """Shape of the log-sum-exp, always float32."""
        return (self.batch, self.heads, self.q_len)


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


def _as_mask(mask: object) -> Mask:
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, str):
        return parse_mask(mask)
    raise ProblemError(f"mask is {mask!r}; it has to be a Mask, or text such as 'causal+window:256'")
