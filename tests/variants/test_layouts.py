"""Variants on layouts other than bhsd: answers, exact claims, and what a kernel without a layout has of it."""

from __future__ import annotations

import re

import pytest
from attention_runs import EXECUTOR
from claimed_traffic import bytes_by_buffer, claimed, counted, traffic
from twins import of_one_language

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import compiled_launches, refusal_of
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem

REGISTRY = discover().registry
TAKING = tuple(v.name for v in REGISTRY if v.operation == "attention" and "layout" in v.takes)
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 70, "kv_len": 100, "mask": "causal"}
SQUARE = {"batch": 2, "heads": 2, "q_len": 70, "kv_len": 70, "mask": "causal"}
CASES = {
    "bshd": {**SIZES, "layout": "bshd"},
    "bshd, rows apart": {**SIZES, "layout": "bshd+8"},
    "bhsd, rows apart": {**SIZES, "layout": "bhsd+8"},
    "qkv": {**SQUARE, "layout": "qkv"},
    "qkv, rows apart": {**SQUARE, "layout": "qkv+24"},
    "strides": {
        **SQUARE,
        "layout": "strides:Q=16384/72/160/1,K=160/22400/320/1,V=64/9216/128/1,O=16384/8192/96/1",
    },
}
"""Rows are aligned to 16 bytes, wherever head_dim is a multiple of 8: one kernel for all."""
UNALIGNED = {
    "bshd, head_dim 20": {**SIZES, "head_dim": 20, "layout": "bshd+3"},
    "33": {**SIZES, "head_dim": 33, "layout": "qkv"},
}


def is_kept(case: tuple[str, str]) -> bool:
    return case[0] == "fa2-cupy" or case[1] == "qkv, rows apart"


@pytest.mark.parametrize(
    ("name", "case"), of_one_language(is_kept, [(name, case) for name in TAKING for case in CASES])
)
def test_the_answer_is_right_and_the_claim_exact(name: str, case: str):
    dtype = "float32" if refusal_of(REGISTRY.get(name), Problem()) is None else "bfloat16"
    hold(name, Problem(**CASES[case], head_dim=64, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", UNALIGNED)
@pytest.mark.parametrize("name", of_one_language(lambda name: False, TAKING))
def test_rows_may_begin_anywhere(name: str, case: str, dtype: str):
    fields = {**UNALIGNED[case], **({"kv_heads": 4, "kv_len": 70} if case == "33" else {})}
    problem = Problem(**fields, dtype=dtype)
    if refusal_of(REGISTRY.get(name), problem) is not None:
        pytest.skip("it takes other dtypes, or rows that are aligned")
    hold(name, problem)


def hold(name: str, problem: Problem) -> None:
    done = attempt(REGISTRY.get(name), problem, EXECUTOR, question=Question.draw(problem))
    assert done.failure is None and done.claim_holds


def test_rows_of_head_dim_20_take_more_sectors_apart_than_as_one_run():
    """Counted by hand: each row of bshd is a piece of its own, of 80 bytes at a multiple of 80, in 3 or 4 sectors."""
    sizes = {"heads": 2, "q_len": 16, "kv_len": 16, "head_dim": 20}
    variant = REGISTRY.get("fa2-cupy")
    dense, apart = (counted(variant, Problem(**sizes, layout=layout)) for layout in ("bhsd", "bshd"))
    # One run of 16 rows is 1,280 bytes, stored by requests of 128 bytes; of bshd rows begin 160 bytes apart.
    assert bytes_by_buffer(dense, "store")["O"] == 2 * 1280
    places = [[head * 80 + row * 160 + 4 * i for row in range(16) for i in range(20)] for head in range(2)]
    requests = [place[e : e + 32] for place in places for e in range(0, 320, 32)]
    by_hand = 32 * sum(len({byte // 32 for byte in request}) for request in requests)
    assert bytes_by_buffer(apart, "store")["O"] == by_hand > 2 * 1280
    assert traffic(apart) == claimed(variant, Problem(**sizes, layout="bshd"))  # type: ignore[arg-type]


def ptx_of(name: str, layout: str) -> tuple[str, str]:
    """The PTX of a variant's only launch, and the name of its last parameter."""
    variant, dtype = REGISTRY.get(name), "float32" if refusal_of(REGISTRY.get(name), Problem()) is None else "bfloat16"
    problem = Problem(head_dim=64, dtype=dtype, layout=layout)  # type: ignore[arg-type]
    ((_, compiled),) = compiled_launches(variant.plan(problem), problem, "sm_90")
    return compiled.ptx, compiled.parameters[-1].name


@pytest.mark.parametrize("name", ["fa2-cupy", "fa2-mma-cupy"])
def test_without_a_layout_nothing_of_it_is_left(name: str):
    """The type is empty: its parameter is declared and never read, and no row is looked for by strides."""
    text, parameter = ptx_of(name, "bhsd")
    assert re.search(rf"\.param \.align 1 \.b8 {parameter}\[1\]", text) and text.count(parameter) == 1
    text, parameter = ptx_of(name, "bshd")
    assert re.search(rf"\.b8 {parameter}\[96\]", text) and text.count(parameter) > 1


def test_sequences_are_an_axis_of_tensor_maps_only_with_a_layout():
    def ranks(layout: str) -> set[str]:
        return set(re.findall(r"cp\.async\.bulk\.tensor\.(\dd)", ptx_of("fa3-cupy", layout)[0]))

    assert ranks("bhsd") == {"3d", "4d"}  # K and V, Q and O
    assert ranks("bshd") == {"4d", "5d"}


def test_tensor_maps_need_rows_at_multiples_of_16_bytes():
    assert refusal_of(REGISTRY.get("fa3-cupy"), Problem(layout="bshd+3", dtype="bfloat16")) == (  # type: ignore[arg-type]
        "layout bshd+3 has rows that begin at multiples of 2 bytes; a tensor map wants multiples of 16"
    )


@pytest.mark.parametrize("name", ["fa1-cupy", "row-wise-numba", "lean-cupy"])
def test_others_say_why_they_refuse(name: str):
    assert refusal_of(REGISTRY.get(name), Problem(layout="bshd", dtype="bfloat16")) == (  # type: ignore[arg-type]
        "it does not support layout (not listed in Variant.takes)"
    )
