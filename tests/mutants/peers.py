"""What other projects accept, as their tests have it: one fixed tolerance, or twice another kernel's error.

- allclose: |got - answer| <= 1e-2 + 1e-2 |answer|, the usual choice.
- flash-attention (tests/test_flash_attn.py): the largest error is at most twice that of plain attention computed in the
  storage dtype, plus 1e-5.
- xformers (ops/fmha/common.py, AttentionFwOpBase): per dtype, ERROR_ATOL + ERROR_RTOL |answer|.
- Triton (tutorial 06, fused attention): |got - answer| <= 1e-2.

They look at O alone. A NaN or infinity that belongs to the answer is no error here, which is more than some grant.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from harness.operations.attention.problem import Problem

Float64Array = npt.NDArray[np.float64]
Inputs = Mapping[str, np.ndarray]
Accepts = Callable[[Problem, Inputs, Float64Array, Float64Array], bool]
"""Problem, inputs, what the kernel gave, the answer -> whether the rule takes it."""

XFORMERS = {"float32": (3e-4, 2e-5), "float16": (4e-3, 4e-4), "bfloat16": (2e-2, 5e-3)}
"""Absolute and relative tolerance."""


def _within(got: Float64Array, answer: Float64Array, absolute: float, relative: float) -> bool:
    return bool(np.allclose(got, answer, rtol=relative, atol=absolute, equal_nan=True))


def plain_attention(problem: Problem, inputs: Inputs) -> Float64Array:
    """softmax(tau Q K^T) V with every result rounded to the problem's dtype; the softmax's own steps are float32."""
    stored = inputs["Q"].dtype
    q, k, v = (inputs[name].astype(np.float32) for name in "QKV")
    k, v = (np.repeat(x, problem.group, axis=1) for x in (k, v))

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(stored).astype(np.float32)

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ml_dtypes warns of infinities by itself
        scores = rounded(rounded(q * np.float32(problem.tau)) @ k.mT)
        first, end = problem.span(np.arange(problem.q_len))
        keys = np.arange(problem.kv_len)
        scores = np.where((first[:, None] <= keys) & (keys < end[:, None]), scores, -np.inf)
        largest = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
        sums = weights.sum(axis=-1, keepdims=True)
        return rounded(rounded(weights / np.where(sums == 0, 1, sums)) @ v).astype(np.float64)


def _twice_the_error(problem: Problem, inputs: Inputs, got: Float64Array, answer: Float64Array) -> bool:
    finite = np.isfinite(answer)
    allowed = 2 * np.abs(plain_attention(problem, inputs) - answer)[finite].max(initial=0.0) + 1e-5
    return bool(np.abs(got - answer)[finite].max(initial=0.0) <= allowed)


RULES: dict[str, Accepts] = {
    "allclose": lambda problem, inputs, got, answer: _within(got, answer, 1e-2, 1e-2),
    "flash-attention": _twice_the_error,
    "xformers": lambda problem, inputs, got, answer: _within(got, answer, *XFORMERS[problem.dtype]),
    "triton": lambda problem, inputs, got, answer: _within(got, answer, 1e-2, 0.0),
}
"""Each peer's rule by its name."""
