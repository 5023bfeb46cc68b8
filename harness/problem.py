"""What is to be computed: the sizes and rules of one attention problem, without any arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.errors import ProblemError

ITEMSIZE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """O = softmax(scale * Q K^T + mask) V per (batch, head), after Vaswani et al. 2017, equation 1.

    Q and O have shape (batch, heads, q_len, head_dim), K and V (batch, kv_heads, kv_len, head_dim), all
    C-contiguous in `dtype`. Query head h reads key/value head h // (heads // kv_heads).

    Raises `ProblemError` where the fields do not fit together.
    """

    batch: int = 1
    """How many independent sequences."""
    heads: int = 2
    """Query heads."""
    kv_heads: int | None = None
    """Key/value heads; divides `heads`. None means as many as `heads`."""
    q_len: int = 256
    """Query rows per head."""
    kv_len: int = 256
    """Key rows per head."""
    head_dim: int = 64
    """Elements per row of Q, K, V and O."""
    dtype: str = "float32"
    """How Q, K, V and O are stored: float32, float16 or bfloat16."""
    causal: bool = False
    """Query i sees key j where j <= i + kv_len - q_len (aligned bottom-right)."""
    scale: float | None = None
    """Factor on the scores (tau). None means 1 / sqrt(head_dim)."""

    def __post_init__(self) -> None:
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        for field in ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ProblemError(f"{field} is {value!r}; it has to be a whole number of at least 1")
        if self.heads % self.kv_heads_count:
            raise ProblemError(
                f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads}); "
                "each key/value head serves a whole group of query heads"
            )
        if self.dtype not in ITEMSIZE_BYTES:
            raise ProblemError(f"dtype is {self.dtype!r}; choose one of {', '.join(ITEMSIZE_BYTES)}")
        if self.scale is None:
            object.__setattr__(self, "scale", 1.0 / math.sqrt(self.head_dim))
        if not (isinstance(self.scale, (int, float)) and math.isfinite(self.scale)):
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
    def compulsory_read_bytes(self) -> int:
        """Q, K and V read once."""
        return (math.prod(self.q_shape) + 2 * math.prod(self.kv_shape)) * self.itemsize_bytes

    @property
    def compulsory_write_bytes(self) -> int:
        """O written once."""
        return math.prod(self.q_shape) * self.itemsize_bytes

    @property
    def compulsory_bytes(self) -> int:
        """Every input read once, the output written once."""
        return self.compulsory_read_bytes + self.compulsory_write_bytes
