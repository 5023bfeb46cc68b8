"""Gradients in layouts other than bhsd, and of rows of V of another length: answers, exact claims, and who refuses."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from attention_runs import EXECUTOR
from claimed_traffic import bytes_by_buffer, claimed, counted, traffic
from lanes import exhaustive_unless

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import compiled_launches, make_plan, refusal_of
from harness.model.discovery import discover
from harness.operations.attention_backward.problem import BackwardProblem

REGISTRY = discover().registry
TAKING = tuple(v.name for v in REGISTRY if v.operation == "attention-backward" and "layout" in v.takes)
OF_16_BITS = tuple(name for name in TAKING if refusal_of(REGISTRY.get(name), BackwardProblem()) is not None)
"""Those on tensor cores."""
OPTIONAL = ("varlen", "v_head_dim", "bias")
"""What not all of them take."""
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 70, "kv_len": 100, "mask": "causal"}
SQUARE = {"batch": 2, "heads": 2, "q_len": 70, "kv_len": 70, "mask": "causal"}
OWN = "Q=16384/72/160/1,K=160/22400/320/1,V=64/9216/128/1,O=16384/8192/96/1"
OTHER = "dO=16384/72/160/1,dQ=160/22400/320/1,dK=64/9216/128/1,dV=16384/8192/96/1"
CASES = {
    "gradients in another layout": {**SIZES, "layout": "bshd+8/bhsd"},
    "gradients alone": {**SIZES, "layout": "bhsd/bshd"},
    "packed": {**SQUARE, "layout": "qkv"},
    "gradients packed, rows apart": {**SQUARE, "layout": "bshd/qkv+8"},
    "strides": {**SQUARE, "layout": f"strides:{OWN},{OTHER}"},
    "unaligned": {**SIZES, "head_dim": 20, "layout": "bshd+3"},
    "sequences": {"heads": 4, "kv_heads": 2, "varlen": "5+0+60/7+2+40", "layout": "bshd"},
    "wider": {**SIZES, "head_dim": 32, "v_head_dim": 64},
    "narrower": {**SIZES, "head_dim": 96, "v_head_dim": 64},
    "odd, rows apart": {**SIZES, "head_dim": 17, "v_head_dim": 33, "layout": "bhsd+1"},
    "a bias, rows of V wider and apart": {
        **SIZES, "head_dim": 24, "v_head_dim": 40, "layout": "bshd/bhsd", "bias": "heads,kv_len", "sinks": True,
    },
    "listed tiles, rows of V narrower and apart": {
        "heads": 2, "q_len": 128, "kv_len": 128, "mask": "flashmask:4,3", "head_dim": 40, "v_head_dim": 24,
        "layout": "bshd",
    },
}  # fmt: skip
KEPT = {
    ("bwd-fa2-cupy", "gradients in another layout"),
    ("bwd-fa2-cupy", "odd, rows apart"),
    ("bwd-fa2-ordered-cupy", "a bias, rows of V wider and apart"),
    ("bwd-mma-cupy", "gradients in another layout"),
}
ON_TENSOR_CORES = ("gradients packed, rows apart", "unaligned", "sequences")
"""What is compiled for tensor cores in each thorough run: in CUDA all of these, and in Numba the first."""
IN_NUMBA = ("gradients in another layout", "packed", "odd, rows apart")
"""What is compiled in Numba in each thorough run: places, one place for all, and rows of two lengths."""


def takes_all_of(name: str, case: str) -> bool:
    return all(field in REGISTRY.get(name).takes for field in OPTIONAL if field in CASES[case])


def lane_of(name: str, case: str) -> Any:
    """The parameters of a test, in the default lane if they are kept, else where they are worth a compilation."""
    if (name, case) in KEPT:
        return name, case
    if name in OF_16_BITS:
        often = case in (ON_TENSOR_CORES if name.endswith("-cupy") else ON_TENSOR_CORES[:1])
    else:
        often = name.endswith("-cupy") or case in IN_NUMBA
    return pytest.param(name, case, marks=pytest.mark.thorough if often else pytest.mark.exhaustive)


@pytest.mark.parametrize(
    "dtype", [pytest.param("float32", id=""), pytest.param("bfloat16", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(
    ("name", "case"),
    [lane_of(name, case) for name in TAKING for case in CASES if takes_all_of(name, case)],
)
def test_the_answer_is_right_and_the_claim_exact(name: str, case: str, dtype: str):
    problem = BackwardProblem(**CASES[case], dtype="float16" if name in OF_16_BITS and dtype == "float32" else dtype)
    done = attempt(REGISTRY.get(name), problem, EXECUTOR, question=Question.draw(problem))
    assert done.failure is None and done.claim_holds


@pytest.mark.thorough
@pytest.mark.parametrize("regime", ["non-finite", "non-finite-gradient", "few-gradients"])
@pytest.mark.parametrize("name", exhaustive_unless(lambda name: name.endswith("-cupy"), TAKING))
def test_hostile_inputs_stay_in_their_columns_and_rows(name: str, regime: str):
    on_tensor_cores = name in OF_16_BITS
    fields = CASES["unaligned" if on_tensor_cores else "odd, rows apart"]
    problem = BackwardProblem(**fields, dtype="float16" if on_tensor_cores else "float32")
    assert attempt(REGISTRY.get(name), problem, EXECUTOR, question=Question.draw(problem, regime)).failure is None


def test_rows_of_dK_that_are_apart_take_the_sectors_that_are_counted_by_hand():
    """Rows of dK begin 160 bytes apart, at a multiple of 80: each is a piece of its own of 80 bytes."""
    variant = REGISTRY.get("bwd-fa2-cupy")
    problem = BackwardProblem(heads=2, q_len=16, kv_len=16, head_dim=20, layout="bhsd/bshd")
    places = [[head * 80 + row * 160 + 4 * i for row in range(16) for i in range(20)] for head in range(2)]
    requests = [place[e : e + 32] for place in places for e in range(0, 320, 32)]
    account = counted(variant, problem)  # type: ignore[arg-type]
    by_hand = 32 * sum(len({byte // 32 for byte in request}) for request in requests)
    assert bytes_by_buffer(account, "store")["dK"] == by_hand > 2 * 1280
    assert traffic(account) == claimed(variant, problem)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bwd-fa2-cupy", "bwd-mma-cupy"])
def test_without_a_layout_nothing_of_it_is_left(name: str):
    """The types are empty: their parameters are declared and never read."""

    def ptx_of(layout: str) -> tuple[str, list[str]]:
        dtype = "float16" if name in OF_16_BITS else "float32"
        problem = BackwardProblem(head_dim=64, layout=layout, dtype=dtype)  # type: ignore[arg-type]
        _, (_, compiled), *_ = compiled_launches(REGISTRY.get(name).plan(problem), problem, "sm_90")
        return compiled.ptx, [parameter.name for parameter in compiled.parameters[-2:]]

    text, parameters = ptx_of("bhsd")
    for parameter in parameters:
        assert re.search(rf"\.param \.align 1 \.b8 {parameter}\[1\]", text) and text.count(parameter) == 1
    text, parameters = ptx_of("bshd")
    assert all(re.search(rf"\.b8 {parameter}\[96\]", text) and text.count(parameter) > 1 for parameter in parameters)


@pytest.mark.parametrize("name", ["bwd-fa2-cupy", "bwd-fa2-ordered-cupy"])
@pytest.mark.parametrize("lengths", [(192, 128), (64, 128), (256, 8)])
def test_every_declared_tile_has_room_on_chip(name: str, lengths: tuple[int, int]):
    variant = REGISTRY.get(name)
    problem = BackwardProblem(head_dim=lengths[0], v_head_dim=lengths[1])
    assert variant.tiles is not None
    for tile in variant.tiles(problem):
        plan = make_plan(with_tile(variant, tile), problem, "sm_90")
        assert max(launch.shared_bytes for launch in plan.launches) <= 227 * 1024


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *itertools.product(("bwd-fa1-cupy", "bwd-fa3-cupy"), ({"layout": "bshd"}, {"v_head_dim": 32})),
        ("bwd-mma-cupy", {"v_head_dim": 32}),
    ],
)
def test_others_say_why_they_refuse(name: str, field: dict):
    (feature,) = field
    assert refusal_of(REGISTRY.get(name), BackwardProblem(head_dim=64, dtype="bfloat16", **field)) == (
        f"it does not support {feature} (not listed in Variant.takes)"
    )
