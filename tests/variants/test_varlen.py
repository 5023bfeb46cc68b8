"""Variants on unpadded sequences: answers, exact claims, what a kernel without them has of them, and who refuses."""

from __future__ import annotations

import re

import pytest
from attention_runs import EXECUTOR
from twins import of_one_language

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import compiled_launches, refusal_of
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem

REGISTRY = discover().registry
TAKING = tuple(v.name for v in REGISTRY if v.operation == "attention" and "varlen" in v.takes)
SIZES = {"heads": 4, "kv_heads": 2, "head_dim": 64}
CASES = {
    "causal": {"varlen": "70+0+33+1/100+7+33+0", "mask": "causal"},
    "empty at the end": {"varlen": "70+0+33+1+0/100+7+33+0+0"},
    "packed, tiles' edges": {"varlen": "5+64+65+130", "mask": "causal", "layout": "qkv", "kv_heads": 4},
    "window, heads first": {"varlen": "5+64+65+13", "mask": "causal+window:20", "layout": "bhsd+8"},
    "decoding and terms": {
        "varlen": "1+1+1+140/65+129+31+140", "mask": "causal", "alibi": True, "sinks": True, "softcap": 20.0,
    },
    "one sequence": {"varlen": "3/5"},
    "contiguous heads": {"mask": "varlen:70+0+33/100+7+33", "q_len": 103, "kv_len": 140},
}  # fmt: skip


def is_kept(case: tuple[str, str]) -> bool:
    return case[1] == "causal" and case[0].endswith("cupy")


@pytest.mark.parametrize(
    ("name", "case"), of_one_language(is_kept, [(name, case) for name in TAKING for case in CASES])
)
def test_the_answer_is_right_and_the_claim_exact(name: str, case: str):
    dtype = "float32" if refusal_of(REGISTRY.get(name), Problem()) is None else "bfloat16"
    problem = Problem(**{**SIZES, **CASES[case]}, dtype=dtype)
    if refusal_of(REGISTRY.get(name), problem) is not None:
        pytest.skip("it takes not all of these features together")
    done = attempt(REGISTRY.get(name), problem, EXECUTOR, question=Question.draw(problem))
    assert done.failure is None and done.claim_holds


@pytest.mark.parametrize(
    ("name", "place"), [("fa2-cupy", -2), ("fa2-mma-cupy", -2), ("fa3-cupy", -1), ("split-kv-cupy", -2)]
)
def test_without_sequences_nothing_of_them_is_left(name: str, place: int):
    """The type is empty: its parameter is declared and never read."""

    def parameter_of(**fields: str) -> tuple[str, str]:
        variant = REGISTRY.get(name)
        dtype = "float32" if refusal_of(variant, Problem()) is None else "bfloat16"
        problem = Problem(head_dim=64, dtype=dtype, **fields)  # type: ignore[arg-type]
        *_, (_, compiled) = compiled_launches(variant.plan(problem), problem, "sm_90")
        return compiled.ptx, compiled.parameters[place].name

    text, parameter = parameter_of()
    assert re.search(rf"\.param \.align 1 \.b8 {parameter}\[1\]", text) and text.count(parameter) == 1
    text, parameter = parameter_of(varlen="3+5")
    assert re.search(rf"\.b8 {parameter}\[(16|24|48)\]", text) and text.count(parameter) > 1


@pytest.mark.parametrize("name", ["fa1-cupy", "row-wise-numba", "lean-cupy", "three-pass-cupy"])
def test_others_say_why_they_refuse(name: str):
    reason = refusal_of(REGISTRY.get(name), Problem(varlen="3+5", dtype="bfloat16"))  # type: ignore[arg-type]
    assert reason is not None and "varlen" in reason
