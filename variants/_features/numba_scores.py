"""Score terms: what happens to a score s = tau q.k before the softmax, and sinks. The CUDA twin is scores.cuh.

    score = scores.of_head(argument, head, q_len, kv_len)
    s = scores.apply(score, s, row, key)
    s, derivative = scores.with_derivative(score, s, row, key)

The gradient of the new s, multiplied by the derivative, is that of tau q.k. A term is a row of device functions in
`TERMS`. A kernel's parameter is a tuple of the first term's members and the others' tuple, and empty without terms.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda, float32

from variants._mma.numba_mma import tanh_approx

MINUS_INFINITY = np.float32(-np.inf)
ONE = np.float32(1)


# s = cap tanh(s). The plan divides tau by the cap.
@cuda.jit(device=True, forceinline=True)
def softcap_of_head(softcap, head, q_len, kv_len):
    return softcap


@cuda.jit(device=True, forceinline=True)
def apply_softcap(softcap, s, row, key):
    return softcap[0] * math.tanh(s)


# The same with one instruction for the tangent.
@cuda.jit(device=True, forceinline=True)
def approximate_softcap_with_derivative(softcap, s, row, key):
    t = tanh_approx(s)
    return softcap[0] * t, ONE - t * t


@cuda.jit(device=True, forceinline=True)
def softcap_with_derivative(softcap, s, row, key):
    t = math.tanh(s)
    return softcap[0] * t, ONE - t * t


# s = s - slope |distance|, with a slope per head: Press et al. 2022, arXiv 2108.12409. Row i lies on key
# i + kv_len - q_len.
@cuda.jit(device=True, forceinline=True)
def alibi_of_head(alibi, head, q_len, kv_len):
    return alibi[0][head], kv_len - q_len


@cuda.jit(device=True, forceinline=True)
def apply_alibi(alibi, s, row, key):
    return s - alibi[0] * float32(abs(key - row - alibi[1]))


# s = s + bias[head, row, key]. An axis that the bias does not vary over has length 1. A tile may have room for rows
# after the last.
@cuda.jit(device=True, forceinline=True)
def bias_of_head(bias, head, q_len, kv_len):
    values = bias[0]
    return values[head if values.shape[0] > 1 else 0], q_len - 1


@cuda.jit(device=True, forceinline=True)
def apply_bias(bias, s, row, key):
    values = bias[0]
    return s + values[min(row, bias[1]) if values.shape[0] > 1 else 0, key if values.shape[1] > 1 else 0]


TERMS = {
    "softcap": (softcap_of_head, apply_softcap, softcap_with_derivative),
    "approximate softcap": (softcap_of_head, apply_softcap, approximate_softcap_with_derivative),
    "alibi": (alibi_of_head, apply_alibi),
    "bias": (bias_of_head, apply_bias),
}
"""For each feature its functions of_head and apply, and with_derivative if the derivative is not 1."""


def _summand(apply: Any) -> Any:
    """Return with_derivative of a term that adds to s."""

    @cuda.jit(device=True, forceinline=True)
    def with_derivative(term, s, row, key):
        return apply(term, s, row, key), ONE

    return with_derivative


def _terms(names: tuple[str, ...]) -> tuple[Any, Any, Any]:
    if not names:

        @cuda.jit(device=True, forceinline=True)
        def of_head(argument, head, q_len, kv_len):
            return ()

        @cuda.jit(device=True, forceinline=True)
        def apply(score, s, row, key):
            return s

        return of_head, apply, _summand(apply)

    term_of_head, apply_term, *derived = TERMS[names[0]]
    (term_with_derivative,) = derived or (_summand(apply_term),)
    others_of_head, apply_others, others_with_derivative = _terms(names[1:])

    @cuda.jit(device=True, forceinline=True)
    def of_head(argument, head, q_len, kv_len):
        return (
            term_of_head(argument[0], head, q_len, kv_len),
            others_of_head(argument[1], head, q_len, kv_len),
        )

    @cuda.jit(device=True, forceinline=True)
    def apply(score, s, row, key):
        return apply_others(score[1], apply_term(score[0], s, row, key), row, key)

    @cuda.jit(device=True, forceinline=True)
    def with_derivative(score, s, row, key):
        s, derivative = term_with_derivative(score[0], s, row, key)
        s, of_others = others_with_derivative(score[1], s, row, key)
        return s, derivative * of_others

    return of_head, apply, with_derivative


@functools.cache
def numba_scores(terms: tuple[str, ...]) -> SimpleNamespace:
    """Device functions for these terms, names in `TERMS`, of which the first is applied first.

    READS_PAIRS: whether a term reads memory for each row and key, so that it is only applied to what rows see.
    """
    of_head, apply, with_derivative = _terms(terms)
    return SimpleNamespace(of_head=of_head, apply=apply, with_derivative=with_derivative, READS_PAIRS="bias" in terms)


@functools.cache
def numba_sink(sinks: bool) -> SimpleNamespace:
    """The device function `logit` and the constant WEIGHT of heads with or without sinks.

    A sink is a key before all others that has a logit per head and no value: it adds exp(logit - m) to l. A head whose
    logit is -infinity has none. WEIGHT: exp(logit - m) while the sink alone has been seen.
    """
    if sinks:

        @cuda.jit(device=True, forceinline=True)
        def logit(sink, head):
            return sink[0][head]

    else:

        @cuda.jit(device=True, forceinline=True)
        def logit(sink, head):
            return MINUS_INFINITY

    return SimpleNamespace(logit=logit, WEIGHT=np.float32(1 if sinks else 0))
