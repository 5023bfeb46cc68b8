"""Attention's own answer and budget, held against outputs as every operation's are; products as a loop adds them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.execution.judging.accuracy import Accuracy, measure_accuracy
from harness.model.operation import Tolerance
from harness.operations.attention.problem import Problem


def hold(
    outputs: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray], budget: Mapping[str, Tolerance]
) -> Accuracy:
    """O and, where it is there, lse."""
    return measure_accuracy(Problem().tensors, outputs, reference, budget)


def products_in_order(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """(rows, d) and (keys, d) -> (rows, keys): products added one by one, each sum rounded to float32."""
    sums = np.zeros((len(q), len(k)), np.float32)
    for of_q, of_k in zip(q.T, k.T, strict=True):
        sums += of_q[:, None] * of_k
    return sums
