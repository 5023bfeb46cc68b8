"""Variants whose rows of V and O have another length than those of Q and K: answers, and exact claims."""

from __future__ import annotations

import pytest
from attention_runs import EXECUTOR
from claimed_traffic import bytes_by_buffer, claimed, counted, traffic
from twins import of_one_language

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import compiled_launches, make_plan, refusal_of
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem

REGISTRY = discover().registry
TAKING = tuple(v.name for v in REGISTRY if v.operation == "attention" and "v_head_dim" in v.takes)
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 70, "kv_len": 100, "mask": "causal"}
CASES = {
    "narrower": {**SIZES, "head_dim": 96, "v_head_dim": 64},
    "wider": {**SIZES, "head_dim": 32, "v_head_dim": 64},
    "wider, rows apart": {**SIZES, "head_dim": 32, "v_head_dim": 64, "layout": "bshd+8"},
    "a lane copies more of K than of V": {**SIZES, "head_dim": 24, "v_head_dim": 20},
    "more of V than of K": {**SIZES, "head_dim": 18, "v_head_dim": 32},
    "odd": {**SIZES, "head_dim": 33, "v_head_dim": 17},
    "odd, rows apart": {**SIZES, "head_dim": 17, "v_head_dim": 33, "layout": "bhsd+1"},
    "one element": {**SIZES, "head_dim": 16, "v_head_dim": 1},
    "of DeepSeek-V3": {**SIZES, "head_dim": 192, "v_head_dim": 128},
}


def is_kept(case: tuple[str, str]) -> bool:
    return case in (("fa2-cupy", "wider"), ("fa2-cupy", "narrower"))


@pytest.mark.parametrize(
    ("name", "case"), of_one_language(is_kept, [(name, case) for name in TAKING for case in CASES])
)
def test_the_answer_is_right_and_the_claim_exact(name: str, case: str):
    variant = REGISTRY.get(name)
    dtype = "float32" if refusal_of(variant, Problem()) is None else "bfloat16"
    problem = Problem(**CASES[case], dtype=dtype)
    if (refusal := refusal_of(variant, problem)) is not None:
        pytest.skip(refusal)
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem))
    assert done.failure is None and done.claim_holds


@pytest.mark.parametrize("regime", ["non-finite", "needle", "exact"])
@pytest.mark.parametrize("name", of_one_language(lambda name: False, TAKING))
def test_hostile_inputs_stay_in_their_columns_and_rows(name: str, regime: str):
    """NaN and infinity in an element of V reach one column of O, in rows that see the key."""
    variant = REGISTRY.get(name)
    dtype = "float32" if refusal_of(variant, Problem()) is None else "bfloat16"
    problem = Problem(**CASES["wider"], dtype=dtype)
    assert attempt(variant, problem, EXECUTOR, question=Question.draw(problem, regime)).failure is None


def test_every_byte_of_v_is_counted_by_hand():
    """One tile of 16 keys for each of two heads: 32 elements of K, and 48 of V, each tile a run of whole sectors."""
    problem = Problem(heads=2, q_len=16, kv_len=16, head_dim=32, v_head_dim=48, dtype="float16")
    account = counted(REGISTRY.get("fa2-cupy"), problem)
    read, written = (bytes_by_buffer(account, kind) for kind in ("load", "store"))
    assert read["Q"] == read["K"] == 2 * 16 * 32 * 2
    assert read["V"] == written["O"] == 2 * 16 * 48 * 2
    assert traffic(account) == claimed(REGISTRY.get("fa2-cupy"), problem)


def test_o_may_need_more_room_than_q():
    """O is gathered where Q was: with rows four times as long it would not fit there, nor in all tiles behind it."""
    problem = Problem(heads=1, q_len=128, kv_len=8, head_dim=16, v_head_dim=64)
    variant = with_tile(REGISTRY.get("fa2-cupy"), {"Br": 128, "Bc": 8})
    question = Question.draw(problem)
    assert attempt(variant, problem, EXECUTOR, question=question).failure is None


@pytest.mark.parametrize("name", [name for name in TAKING if name.endswith("-cupy")])
@pytest.mark.parametrize("lengths", [(192, 128), (64, 128), (256, 8)])
def test_every_declared_tile_has_room_on_chip(name: str, lengths: tuple[int, int]):
    variant = REGISTRY.get(name)
    dtype = "float32" if refusal_of(variant, Problem()) is None else "bfloat16"
    problem = Problem(head_dim=lengths[0], v_head_dim=lengths[1], dtype=dtype)
    if refusal_of(variant, problem) is not None or variant.tiles is None:
        pytest.skip("it takes shorter rows, or has one tile")
    for tile in variant.tiles(problem):
        plan = make_plan(with_tile(variant, tile), problem, "sm_90")
        assert max(launch.shared_bytes for launch in plan.launches) <= 227 * 1024


@pytest.mark.parametrize("name", ["fa2-cupy"])
def test_equal_lengths_are_compiled_as_if_there_were_no_others(name: str):
    def ptx_of(**fields: int) -> str:
        problem = Problem(head_dim=64, **fields)
        ((_, compiled),) = compiled_launches(REGISTRY.get(name).plan(problem), problem, "sm_90")
        return compiled.ptx

    assert ptx_of() == ptx_of(v_head_dim=64) != ptx_of(v_head_dim=32)


@pytest.mark.parametrize("name", ["fa1-cupy", "row-wise-numba", "fa3-cupy"])
def test_others_say_why_they_refuse(name: str):
    assert refusal_of(REGISTRY.get(name), Problem(head_dim=64, v_head_dim=32, dtype="bfloat16")) == (
        "it does not support v_head_dim (not listed in Variant.takes)"
    )


def test_rows_too_long_for_shared_memory_are_named():
    refusal = refusal_of(REGISTRY.get("fa2-cupy"), Problem(head_dim=64, v_head_dim=512))
    assert refusal == "v_head_dim is 512; tiles of more than 256 elements per row do not fit shared memory"
