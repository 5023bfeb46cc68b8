"""Variants of attention-backward that take score terms and sinks: answers, claims, rows without keys, registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulators import emulator
from lanes import exhaustive_unless
from right_answers import require_right
from twins import of_one_language

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.execution.planning.variant_calls import refusal_of
from harness.model.discovery import discover
from harness.model.operation import draw_inputs, operation_named
from harness.model.variant import Variant
from harness.operations.attention_backward.problem import BackwardProblem

ALL_VARIANTS = discover().registry.select(None, "attention-backward")
TAKING = ("bwd-fa2", "bwd-fa2-ordered", "bwd-mma")
VARIANTS = [v for v in ALL_VARIANTS if v.algorithm in TAKING]
BIASED = [v for v in VARIANTS if "bias" in v.takes]
EXECUTOR = emulator()
CAPPED = {"softcap": 2.0, "alibi": True, "sinks": True}
ALONE = ({"softcap": 0.5}, {"alibi": True})
ALL = {**CAPPED, "bias": "heads,q_len,kv_len"}
BIASES = ("heads,q_len,kv_len", "heads,kv_len", "q_len,kv_len", "heads,q_len", "kv_len", "q_len", "heads")
SHAPES: tuple[dict[str, Any], ...] = (
    {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 70, "kv_len": 101, "mask": "causal"},
    {"heads": 3, "kv_heads": 1, "q_len": 131, "kv_len": 66, "mask": "causal+window:33"},
    {"batch": 2, "heads": 2, "q_len": 70, "kv_len": 70, "mask": "documents:30+40/5+0+65"},
    {"heads": 2, "q_len": 1, "kv_len": 31},  # one head after the other
)


def mostly(variants: list[Variant]) -> pytest.MarkDecorator:
    chosen = of_one_language(lambda variant: variant.name == "bwd-fa2-cupy", variants)
    return pytest.mark.parametrize("variant", chosen, ids=lambda variant: variant.name)


def problem_of(variant: Variant, **fields: Any) -> BackwardProblem:
    takes_float32 = refusal_of(variant, BackwardProblem(head_dim=16)) is None
    return BackwardProblem(**({"head_dim": 16} if takes_float32 else {"head_dim": 24, "dtype": "float16"}), **fields)


def holds(variant: Variant, problem: BackwardProblem, regime: str = "normal", seed: int = 1) -> None:
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, regime, seed))
    require_right(done)
    assert done.claim_holds


def test_they_are_those_that_list_them():
    assert {v.algorithm for v in ALL_VARIANTS if "softcap" in v.takes} == set(TAKING)
    assert {v.algorithm for v in BIASED} == {"bwd-fa2", "bwd-fa2-ordered"}
    refused = refusal_of(discover().registry.get("bwd-mma-cupy"), BackwardProblem(bias="kv_len", dtype="float16"))
    assert refused is not None and "bias" in refused


REGIMES = ("normal", "non-finite", "hot", "constant", "one-gradient")


@mostly(VARIANTS)
@pytest.mark.parametrize("regime", exhaustive_unless(lambda regime: regime in REGIMES[:2], REGIMES))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.get("mask", "none"))
def test_answers_and_claims_are_right(variant: Variant, shape: dict[str, Any], regime: str):
    fields = ALL if "bias" in variant.takes else CAPPED
    holds(variant, problem_of(variant, **shape, **fields), regime, 3)


@mostly(BIASED)
@pytest.mark.parametrize("axes", BIASES)
def test_biases_of_any_axes(variant: Variant, axes: str):
    holds(variant, problem_of(variant, **SHAPES[0], bias=axes), "normal", 4)


@pytest.mark.parametrize("fields", exhaustive_unless(lambda fields: "softcap" in fields, ALONE), ids=str)
@mostly(VARIANTS)
def test_each_term_alone(variant: Variant, fields: dict[str, Any]):
    holds(variant, problem_of(variant, **SHAPES[1], **fields), "normal", 5)


@mostly(BIASED)
def test_rows_whose_keys_a_bias_hides_have_gradients_of_zero(variant: Variant):
    problem = problem_of(variant, batch=2, heads=2, q_len=40, kv_len=70, bias="q_len,kv_len")
    inputs = draw_inputs(problem, "normal", 2)
    bias = inputs["bias"].copy()
    bias[0, 7] = bias[0, :, 66] = -np.inf
    inputs |= {"bias": bias}
    answer = operation_named("attention").answer(problem, inputs)
    inputs |= {name: array.astype(np.float32) for name, array in answer.items()}
    done = attempt(variant, problem, EXECUTOR, question=Question.pose(problem, inputs))
    assert done.verdict == PASS and done.claim_holds, done.reason
    assert done.execution is not None
    outputs = done.execution.outputs
    for name, where in {
        "dQ": np.s_[:, :, 7],
        "dK": np.s_[:, :, 66],
        "dV": np.s_[:, :, 66],
        "dbias": np.s_[0, 7],
    }.items():
        assert np.all(outputs[name][where] == 0)
