"""Kernels over pages in layouts of pools: answers, exact claims, and why others refuse."""

from __future__ import annotations

import pytest
from attention_runs import EXECUTOR
from lanes import thorough_unless

from harness import PagedProblem
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import refusal_of
from harness.model.discovery import discover

REGISTRY = discover().registry
NAMES = ("paged-cupy", "paged-split-kv-cupy", "paged-lean-cupy", "paged-numba", "paged-lean-numba")
SIZES = {"lengths": (100, 7, 40, 0), "heads": 6, "kv_heads": 2, "q_len": 2, "dtype": "float16"}
CASES = {
    "rows of one and a half sectors": {"layout": "nhd", "head_dim": 24, "page_size": 32},
    "V apart, under a window": {"layout": "hnd/nhd+8", "head_dim": 24, "window": 20},
    "rows at odd elements": {"layout": "kv-nhd+1", "head_dim": 33},
    "8 bits": {"layout": "kv-nhd+3x2", "head_dim": 24, "kv_dtype": "e4m3"},
    "strides": {"layout": "strides:K=5000/72/150/1,V=6008/1200/74/1", "head_dim": 64},
}


@pytest.mark.parametrize(
    ("name", "case"),
    thorough_unless(
        lambda each: each[1] == "V apart, under a window" and each[0].endswith("cupy"),
        [
            (name, case) for name in NAMES for case in CASES
            if not (name.endswith("numba") and case in ("strides", "rows of one and a half sectors"))
            and not (name.startswith(("paged-cupy", "paged-numba")) and case == "8 bits")
        ],
    ),
)  # fmt: skip
def test_the_answer_is_right_and_the_claim_exact(name: str, case: str):
    problem = PagedProblem(**{**SIZES, **CASES[case]})
    done = attempt(REGISTRY.get(name), problem, EXECUTOR, question=Question.draw(problem))
    # With these strides, pages begin at different bytes of a sector: which ones the table names counts.
    assert done.failure is None and done.claim_holds is (None if case == "strides" else True)


@pytest.mark.compiles(False)
def test_others_say_why_they_refuse():
    reason = "it does not support layout (not listed in Variant.takes)"
    others = [v.name for v in REGISTRY if v.operation == "paged-attention" and v.name not in NAMES]
    assert others and {refusal_of(REGISTRY.get(name), PagedProblem(layout="nhd")) for name in others} == {reason}
