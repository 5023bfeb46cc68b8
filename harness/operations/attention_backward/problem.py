"""Defines a backward problem, which has the fields of its forward problem."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from harness.model.problem import INPUT, OUTPUT, Tensor
from harness.operations.attention.masks import END_ROWS, FIRST_ROWS
from harness.operations.attention.problem import Problem
from harness.support.errors import ProblemError

FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
"""Matrix products: S and O; S, dP, dV, dQ and dK."""
GRADIENT_OF = "d"
"""Beginning of the name of a gradient: `dbias` is the gradient of the input `bias`."""


@dataclass(frozen=True, kw_only=True)
class BackwardProblem(Problem):
    """dQ, dK and dV of O = softmax(scale * Q K^T + mask) V, after Dao et al. 2022, arXiv 2205.14135, appendix B.2.

    Q, O, dO and dQ have shape (batch, heads, q_len, head_dim), K, V, dK and dV (batch, kv_heads, kv_len, head_dim), all
    C-contiguous in `dtype`; lse, the natural logarithm of sum exp(scores), has (batch, heads, q_len) in float32. dK and
    dV are sums over the query heads that share K and V. With dropout, O is the output after dropout, and the backward
    pass drops the same weights. The gradients of the bias and of sinks have their shapes, in float32.

    Raises `ProblemError` if a field is invalid, and for masks that differ between heads.
    """

    operation: ClassVar[str] = "attention-backward"
    VARLEN_LAYOUT = Problem.layout  # the default: gradients have no other one

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.layout.is_dense:
            raise ProblemError(f"attention-backward takes the layout bhsd only; {self.layout} is not")
        if self.v_head_dim is not None:
            raise ProblemError(
                f"attention-backward takes V as wide as K; v_head_dim is {self.v_head_dim} and head_dim {self.head_dim}"
            )
        if self.mask.tells_heads_apart:
            raise ProblemError(f"attention-backward takes masks that are the same for all heads; {self.mask} is not")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Q, K, V, O and lse of the forward pass, dO (the gradient of O); the outputs dQ, dK and dV.

        Score terms and sinks add their inputs, and outputs for the gradients of those that have one: `dbias`, `dsinks`.
        A mask that is not a band adds the inputs of the forward pass, such as `first_keys` and `end_keys`, and
        `first_rows` and `end_rows`, the run of rows that see each key, for kernels in which a block owns keys.
        """
        further = [tensor for tensor in super().tensors if tensor.role == INPUT and tensor.name not in tuple("QKV")]
        if not self.mask_within.runs.is_band:
            further += _runs_of_keys(self.batch, self.kv_len)
        return (*_tensors(self.q_shape, self.kv_shape, self.dtype), *further, *self.gradients_of_terms)

    @property
    def gradients_of_terms(self) -> tuple[Tensor, ...]:
        """The outputs that are gradients of inputs of score terms and sinks."""
        return tuple(
            Tensor(GRADIENT_OF + tensor.name, tensor.shape, tensor.dtype, OUTPUT, tensor.axes)
            for term in self.terms if term.has_gradient
            for tensor in term.inputs(self)
        )  # fmt: skip

    @property
    def flops(self) -> int:
        """Multiplications and additions of five products, over the keys that each row sees: 2.5 times the forward pass.

        As in FlashAttention's benchmarks (Dao 2023, arXiv 2307.08691, section 4.1).
        """
        return super().flops * BACKWARD_PRODUCTS // FORWARD_PRODUCTS


def _runs_of_keys(batch: int, kv_len: int) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, (batch, kv_len), "int32", INPUT, ("batch", "key")) for name in (FIRST_ROWS, END_ROWS))


@functools.lru_cache(maxsize=64)
def _tensors(q_shape: tuple[int, ...], kv_shape: tuple[int, ...], dtype: str) -> tuple[Tensor, ...]:
    """Return the tensors. Cached, because a run of a small problem needs them a dozen times."""
    rows = ("batch", "head", "row", "column")
    return (
        *(
            Tensor(name, shape, dtype, INPUT, rows)
            for name, shape in zip("QKVO", (q_shape, kv_shape, kv_shape, q_shape))
        ),
        Tensor("lse", q_shape[:3], "float32", INPUT, rows[:3]),
        Tensor("dO", q_shape, dtype, INPUT, rows),
        *(
            Tensor(name, shape, dtype, OUTPUT, rows)
            for name, shape in zip(("dQ", "dK", "dV"), (q_shape, kv_shape, kv_shape))
        ),
    )
