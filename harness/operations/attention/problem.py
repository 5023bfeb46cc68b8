"""What is to be computed: the sizes and rules of one attention problem, without any arrays."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from harness.model.problem import INPUT, OPTIONAL_OUTPUT, OUTPUT, BaseProblem, Tensor, option, require_extents
from harness.operations.attention.masks import NO_MASK, Integers, Mask, mask_help, parse_mask
from harness.support.errors import ProblemError
from harness.support.numbers import real_number

MASK_HELP = f"{', '.join(spelling for spelling, _ in mask_help())}; several joined by +"
ITEMSIZE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class Problem(BaseProblem):
    """O = softmax(scale * Q K^T + mask) V per (batch, head), after Vaswani et al. 2017, equation 1.

    Q and O have shape (batch, heads, q_len, head_dim), K and V (batch, kv_heads, kv_len, head_dim), all
    C-contiguous in `dtype`. Query head h reads key/value head h // (heads // kv_heads).

    Raises `ProblemError` where the fields do not fit together.
    """

    operation: ClassVar[str] = "attention"

    batch: int = option(1, "sequences")
    """How many independent sequences."""
    heads: int = option(2, "query heads")
    """Query heads."""
    kv_heads: int | None = option(None, "key/value heads, a divisor of --heads", default_text="as many")
    """Key/value heads; divides `heads`. None means as many as `heads`."""
    q_len: int = option(256, "rows of Q, where it is not --seq-len")
    """Query rows per head."""
    kv_len: int = option(256, "rows of K and V, where it is not --seq-len")
    """Key rows per head."""
    head_dim: int = option(64, "elements per row")
    """Elements per row of Q, K, V and O."""
    dtype: str = option("float32", ", ".join(ITEMSIZE_BYTES), metavar="DTYPE", parse=str)
    """How Q, K, V and O are stored: float32, float16 or bfloat16."""
    mask: Mask = option(NO_MASK, MASK_HELP, metavar="MASK", parse=parse_mask)
    """Which keys a row sees, or the text of it, such as `causal` or `causal+window:256`."""
    scale: float | None = option(
        None, "factor on the scores", metavar="X", parse=real_number, default_text="1 / sqrt(head_dim)"
    )
    """Factor on the scores (tau). None means 1 / sqrt(head_dim)."""

    def __post_init__(self) -> None:
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        require_extents(self, "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
        if self.heads % self.kv_heads_count:
            raise ProblemError(
                f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads}); "
                "each key/value head serves a whole group of query heads"
            )
        if self.dtype not in ITEMSIZE_BYTES:
            raise ProblemError(f"dtype is {self.dtype!r}; choose one of {', '.join(ITEMSIZE_BYTES)}")
        object.__setattr__(self, "mask", _as_mask(self.mask))
        if self.scale is None:
            object.__setattr__(self, "scale", 1.0 / math.sqrt(self.head_dim))
        if isinstance(self.scale, bool) or not (isinstance(self.scale, (int, float)) and math.isfinite(self.scale)):
            raise ProblemError(f"scale is {self.scale!r}; it has to be a finite number")

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
        """Whether the mask is the causal one, alone or with others."""
        return any(part.kind == "causal" for part in self.mask.parts)

    @property
    def features(self) -> tuple[str, ...]:
        """What a variant has to take (`Variant.takes`) besides the plainest problem: the kinds of its masks."""
        return tuple(dict.fromkeys(part.kind for part in self.mask.parts))

    def span(self, rows: Integers) -> tuple[Integers, Integers]:
        """The run of keys that each of these rows sees: (first, end). A row that sees nothing has end <= first."""
        return self.mask.span(rows, self.q_len, self.kv_len)

    @property
    def itemsize_bytes(self) -> int:
        """Bytes per element of Q, K, V and O."""
        return ITEMSIZE_BYTES[self.dtype]

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
    def tensors(self) -> tuple[Tensor, ...]:
        """Q, K and V, O, and lse: the natural logarithm of sum exp(scores), which not all variants store."""
        return _tensors(self.q_shape, self.kv_shape, self.dtype)

    @property
    def build_key(self) -> tuple[Hashable, ...]:
        """See `BaseProblem.build_key`."""
        return (self.dtype, self.head_dim)

    @property
    def size_class(self) -> tuple[Hashable, ...]:
        """See `BaseProblem.size_class`."""
        sizes = (self.batch * self.heads, self.group, self.q_len, self.kv_len)
        return (self.head_dim, self.dtype, self.mask.text, *(size.bit_length() for size in sizes))

    @property
    def flops(self) -> int:
        """Multiplications and additions of Q K^T and P V, over the keys that each row sees.

        4 d per query row and key, as FlashAttention's own benchmarks count (Dao 2023, arXiv 2307.08691, section 4.1);
        a mask counts exactly. The softmax is left out.
        """
        pairs = self.q_len * self.kv_len
        if self.mask != NO_MASK:
            first, end = self.span(np.arange(self.q_len, dtype=np.int64))
            pairs = int(np.maximum(end - first, 0).sum())
        return 4 * self.batch * self.heads * self.head_dim * pairs

    @property
    def headline(self) -> str:
        """See `BaseProblem.headline`."""
        heads = "1 head" if self.heads == 1 else f"{self.heads} heads"
        if self.kv_heads != self.heads:
            heads += f" ({self.kv_heads} for K and V)"
        mask = "" if self.mask == NO_MASK else f", {self.mask}"
        return (
            f"batch {self.batch}, {heads}, {self.q_len} x {self.kv_len}, head_dim {self.head_dim}, {self.dtype}{mask}, "
            f"scale {self.tau:.6g}"
        )

    def to_fields(self) -> dict[str, Any]:
        """See `BaseProblem.to_fields`. `causal` repeats what `mask` says, for readers who know no other mask."""
        fields: dict[str, Any] = {}
        for name, value in super().to_fields().items():
            fields |= {"causal": self.causal, "mask": self.mask.text} if name == "mask" else {name: value}
        return fields

    def to_short_fields(self) -> dict[str, Any]:
        """See `BaseProblem.to_short_fields`. The sizes are always there; `causal` is, where it is all of the mask."""
        # None stands for defaults that follow from other fields.
        plain = Problem(heads=self.heads, head_dim=self.head_dim).to_fields()
        sizes = ("heads", "q_len", "kv_len", "head_dim")
        short = {name: value for name, value in self.to_fields().items() if name in sizes or value != plain[name]}
        short.pop("mask" if self.mask.text == "causal" else "causal", None)
        return short

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Problem:
        """See `BaseProblem.from_fields`. `causal` is taken, too: true adds that mask."""
        given = dict(fields)
        causal = given.pop("causal", False)
        if not isinstance(causal, bool):
            raise ProblemError(f"causal is {causal!r}; it has to be true or false")
        problem = cls(**given)
        return dataclasses.replace(problem, mask=problem.mask & parse_mask("causal")) if causal else problem


@functools.lru_cache(maxsize=64)
def _tensors(q_shape: tuple[int, ...], kv_shape: tuple[int, ...], dtype: str) -> tuple[Tensor, ...]:
    """Made once: a run of a small problem asks for them a dozen times."""
    rows = ("batch", "head", "row", "column")
    return (
        Tensor("Q", q_shape, dtype, INPUT, rows),
        Tensor("K", kv_shape, dtype, INPUT, rows),
        Tensor("V", kv_shape, dtype, INPUT, rows),
        Tensor("O", q_shape, dtype, OUTPUT, rows),
        Tensor("lse", q_shape[:3], "float32", OPTIONAL_OUTPUT, rows[:3]),
    )


def _as_mask(mask: object) -> Mask:
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, str):
        return parse_mask(mask)
    raise ProblemError(f"mask is {mask!r}; it has to be a Mask, or text such as 'causal+window:256'")
