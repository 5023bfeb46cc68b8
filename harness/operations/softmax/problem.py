"""Defines a softmax problem, without arrays."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.problem import INPUT, OUTPUT, BaseProblem, Tensor, option, require_extents
from harness.support.errors import ProblemError
from harness.support.override import override

FLOPS_PER_ELEMENT = 3
"""An exponential, an addition and a division, each counted as one: algorithm 1 of Milakov and Gimelshein 2018, arXiv
1805.02867. The maximum is not counted, because it is only needed to avoid overflow."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxProblem(BaseProblem):
    """Y = softmax(X) per row: y_i = exp(x_i) / sum_j exp(x_j).

    X and Y have shape (rows, columns), C-contiguous in `dtype`. Sums are float32 for any dtype.

    Raises `ProblemError` if a size is not a whole number of at least 1, or the dtype is unknown.
    """

    operation: ClassVar[str] = "softmax"

    rows: int = option(256, "rows of X, each with a softmax of its own")
    """Number of rows, each with an independent softmax."""
    columns: int = option(1024, "elements per row")
    """Elements per row of X and Y."""
    dtype: str = option("float32", ", ".join(NUMPY_DTYPES), metavar="DTYPE", parse=str)
    """Data type of X and Y: float32, float16 or bfloat16."""

    def __post_init__(self) -> None:
        require_extents(self, "rows", "columns")
        if self.dtype not in NUMPY_DTYPES:
            raise ProblemError(f"dtype is {self.dtype!r}; choose one of {', '.join(NUMPY_DTYPES)}")

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of X and of Y."""
        return (self.rows, self.columns)

    @property
    def itemsize_bytes(self) -> int:
        """Bytes per element of X and Y."""
        return NUMPY_DTYPES[self.dtype].itemsize

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """X and Y."""
        axes = ("row", "column")
        return (Tensor("X", self.shape, self.dtype, INPUT, axes), Tensor("Y", self.shape, self.dtype, OUTPUT, axes))

    @property
    def flops(self) -> int:
        """Floating-point operations, `FLOPS_PER_ELEMENT` per element of X."""
        return FLOPS_PER_ELEMENT * self.rows * self.columns

    @property
    @override
    def headline(self) -> str:
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        columns = "1 column" if self.columns == 1 else f"{self.columns} columns"
        return f"softmax, {rows} x {columns}, {self.dtype}"

    @property
    @override
    def build_key(self) -> tuple[Hashable, ...]:
        return (self.dtype,)

    @override
    def to_short_fields(self) -> dict[str, Any]:
        """Return `to_fields` without defaults, but with both sizes."""
        return {"rows": self.rows, "columns": self.columns, **super().to_short_fields()}
