"""Defines a backward problem, which has the fields of its forward problem."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from harness.model.problem import INPUT, OUTPUT, Tensor
from harness.operations.attention.layout import GRADIENTS, TENSORS, Layout, Shape
from harness.operations.attention.masks import END_ROWS, FIRST_ROWS
from harness.operations.attention.problem import Problem
from harness.support.errors import ProblemError
from harness.support.override import override

GRADIENT_OF = "d"
"""Beginning of the name of a gradient: `dbias` is the gradient of the input `bias`."""


@dataclass(frozen=True, kw_only=True)
class BackwardProblem(Problem):
    """dQ, dK and dV of O = softmax(scale * Q K^T + mask) V, after Dao et al. 2022, arXiv 2205.14135, appendix B.2.

    Q and dQ have shape (batch, heads, q_len, head_dim), K and dK (batch, kv_heads, kv_len, head_dim), V and dV (batch,
    kv_heads, kv_len, v_width), O and dO (batch, heads, q_len, v_width), all in `dtype`, and `layout` says where their
    elements lie; lse, the natural logarithm of sum exp(scores), has (batch, heads, q_len) in float32. dK and dV are
    sums over the query heads that share K and V. With dropout, O is the output after dropout, and the backward pass
    drops the same weights. The gradients of the bias and of sinks have their shapes, in float32.

    Raises `ProblemError` if a field is invalid, and for masks that differ between heads.
    """

    operation: ClassVar[str] = "attention-backward"
    VARLEN_LAYOUT = Problem.layout  # the default

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask.tells_heads_apart:
            raise ProblemError(f"attention-backward takes masks that are the same for all heads; {self.mask} is not")

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes of Q, K, V, O and their gradients, by name."""
        own = super().shapes
        return {**own, **{name: own[name[-1]] for name in GRADIENTS}}

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
        rows = _tensors(tuple(self.shapes.items()), self.dtype, self.layout)
        return (*rows, *further, *self.gradients_of_terms)

    @property
    @override
    def _why_not_far(self) -> str | None:
        summed = [term.field for term in self.terms if term.has_gradient]
        return f"{summed[0]}, whose gradient is a sum over another batch" if summed else super()._why_not_far

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
        """Multiplications and additions of five products, over the keys that each row sees.

        Those of S, dQ and dK have rows of Q and K, and those of dP and dV rows of V. With equal ones 2.5 times the
        forward pass, as in FlashAttention's benchmarks (Dao 2023, arXiv 2307.08691, section 4.1).
        """
        return super().flops // (self.head_dim + self.v_width) * (3 * self.head_dim + 2 * self.v_width)


def _runs_of_keys(batch: int, kv_len: int) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, (batch, kv_len), "int32", INPUT, ("batch", "key")) for name in (FIRST_ROWS, END_ROWS))


@functools.lru_cache(maxsize=64)
def _tensors(shapes: tuple[tuple[str, Shape], ...], dtype: str, layout: Layout) -> tuple[Tensor, ...]:
    """Return the tensors. Cached, because a run of a small problem needs them a dozen times."""
    rows, of = ("batch", "head", "row", "column"), dict(shapes)
    placed = layout.placements(of)
    by_name = {
        name: Tensor(name, shape, dtype, OUTPUT if name in ("dQ", "dK", "dV") else INPUT, rows, placed[name])
        for name, shape in shapes
    }
    lse = Tensor("lse", of["Q"][:3], "float32", INPUT, rows[:3])
    return (*(by_name[name] for name in TENSORS), lse, *(by_name[name] for name in GRADIENTS))
