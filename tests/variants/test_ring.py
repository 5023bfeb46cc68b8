"""Ring attention: every order over any number of devices is right, and claims and links are exact."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from attention_runs import EXECUTOR, SANITIZER
from lanes import exhaustive, thorough_unless

from harness.execution.attempt import Attempt, attempt
from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import make_plan
from harness.gpu.stamped_run import _run as stamped
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Plan
from harness.model.traffic import Link
from harness.operations.ring_attention.problem import RingProblem
from harness.support.errors import KernelFault, UnsupportedProblem

RING, RING_MMA, RING_FA3 = (discover().registry.get(name) for name in ("ring-cupy", "ring-mma-cupy", "ring-fa3-cupy"))
RING_NUMBA, RING_MMA_NUMBA = (discover().registry.get(name) for name in ("ring-numba", "ring-mma-numba"))
FEW = ((3, "zigzag", "causal"), (4, "striped", "causal"), (2, "contiguous", "none"))
MANY = [
    (devices, order, mask)
    for devices in (1, 2, 3, 4, 5, 8)
    for order in ("contiguous", "striped", "zigzag")
    for mask in ("none", "causal")
]


def ring(devices: int, order: str, mask: str, length: int = 45, **more: object) -> RingProblem:
    sizes = {"heads": 2, "kv_heads": 1, "q_len": length, "kv_len": length, "head_dim": 16, "dtype": "float16"}
    return RingProblem(**{**sizes, "devices": devices, "row_order": order, "mask": mask, **more})


def tried(problem: RingProblem, variant=RING) -> Attempt:
    return attempt(variant, problem, EXECUTOR, question=Question.draw(problem, "rising", 3))


def of_each_variant() -> list:
    """Eight devices take as long as fewer ones together: all orders of one variant, as who sends what is the same."""
    usual, further = [], []
    for case, variant in itertools.product(MANY, (RING, RING_MMA, RING_NUMBA, RING_MMA_NUMBA, RING_FA3)):
        is_usual = case[0] < 8 or variant is RING or case[1:] == ("zigzag", "causal")
        if variant.backend == "numba":  # who has the same plans
            is_usual = case in FEW
        (usual if is_usual else further).append((variant, *case))
    return [*thorough_unless(lambda case: case[1:] in FEW, usual), *exhaustive(further)]


@pytest.mark.parametrize(
    ("variant", "devices", "order", "mask"),
    of_each_variant(),
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_answer_is_right_and_its_bytes_are_those_claimed(variant, devices: int, order: str, mask: str):
    done = tried(ring(devices, order, mask), variant)
    assert done.failure is None, done.failure
    assert done.claim_holds and not done.accuracy.suspicious


@pytest.mark.parametrize("pair", [(RING, RING_NUMBA), (RING_MMA, RING_MMA_NUMBA)], ids=["ring", "ring-mma"])
def test_both_languages_give_the_same_bits_in_launches_that_match(pair):
    # 45 rows: slots have room for 8, and some blocks have 7, whose sequences lie closer together.
    problem = ring(3, "zigzag", "causal", batch=2)
    one, other = (tried(problem, variant).execution for variant in pair)
    for name in ("O", "lse"):
        assert np.array_equal(one.outputs[name].view("u2"), other.outputs[name].view("u2"))
    plans = [make_plan(variant, problem) for variant in pair]
    assert plans[0].buffers == plans[1].buffers and plans[0].copies == plans[1].copies
    launches = zip(*(plan.launches for plan in plans), strict=True)
    assert all((a.args, a.grid, a.device) == (b.args, b.grid, b.device) for a, b in launches)


@pytest.mark.parametrize("length", [48, 45])
def test_each_link_moves_the_blocks_of_all_devices_but_the_next_one(length: int):
    problem = ring(4, "zigzag", "causal", length)
    (execution, blocks) = tried(problem).execution, [problem.kv_bytes(device) for device in range(4)]
    expected = tuple(Link(d, (d + 1) % 4, sum(blocks) - blocks[(d + 1) % 4]) for d in range(4))
    assert execution.links == tuple(sorted(expected))
    if length % 8 == 0:  # shares are equal: N - 1 steps, each with a block
        assert {link.size_bytes for link in execution.links} == {3 * blocks[0]}
    assert RING.claim(problem).links == execution.links


def test_a_wrong_claim_of_a_link_is_a_failure():
    problem = ring(3, "zigzag", "causal")
    right = RING.claim(problem)
    wrong = dataclasses.replace(right, links=(*right.links[:-1], Link(2, 1, right.links[-1].size_bytes)))
    done = tried(problem, dataclasses.replace(RING, claim=lambda problem: wrong))
    assert done.verdict == "fail" and "between devices: claimed" in done.failure
    assert tried(problem).verdict == "pass"


def test_devices_hold_their_rows_visitors_and_a_sum_and_not_all_keys():
    problem = ring(8, "striped", "causal", 512)
    plan = make_plan(RING, problem)
    held, received = plan.device_bytes(problem), [copy.destination for copy in plan.copies]
    assert all(size <= problem.most_device_bytes(device) for device, size in enumerate(held))
    buffers = plan.all_buffers(problem)
    on_first = {name for name in received if buffers[name].device == 0}
    assert sum(buffers[name].size_bytes for name in on_first) == 2 * problem.kv_bytes(0)


def test_the_sanitizer_finds_nothing():
    problem = ring(3, "zigzag", "causal", 13, dtype="float32")
    assert SANITIZER.check(RING, problem, make_plan(RING, problem), draw_inputs(problem)) == ()


def changed(plan: Plan, **fields: int) -> Plan:
    return dataclasses.replace(plan, copies=tuple(dataclasses.replace(copy, **fields) for copy in plan.copies))


def test_what_meets_a_copy_in_flight_is_a_fault():
    problem = ring(3, "contiguous", "none", 12)
    plan, inputs = make_plan(RING, problem), draw_inputs(problem)
    end = len(plan.launches)
    with pytest.raises(KernelFault, match="K_visiting_1@0 while the copy of K_visiting_1@0 to K_visiting_0@1 reads"):
        EXECUTOR.run(problem, changed(plan, wait=end), inputs)
    first = dataclasses.replace(plan, copies=tuple(copy for copy in plan.copies if copy.start == 0))
    with pytest.raises(KernelFault, match=r"load from K_visiting_1@0 in launch 6, while the copy of K@2 to K_visiting"):
        EXECUTOR.run(problem, changed(first, wait=7), inputs)


def test_a_store_into_a_block_that_is_being_copied_is_a_fault():
    problem = ring(3, "contiguous", "none", 12, heads=1)
    plan = make_plan(RING, problem)
    Q, K, V, _, *rest = plan.launches[0].args
    overwriting = dataclasses.replace(plan.launches[0], args=(Q, K, V, "K@0", *rest))
    with pytest.raises(KernelFault, match=r"store into K@0 in launch 0, while the copy of K@0 to K_visiting_1@1 is in"):
        EXECUTOR.run(
            problem, dataclasses.replace(plan, launches=(overwriting, *plan.launches[1:])), draw_inputs(problem)
        )


def test_a_plan_of_several_devices_has_no_timeline_of_a_gpu():
    problem = ring(2, "contiguous", "none")
    with pytest.raises(UnsupportedProblem, match="has no timeline of one GPU") as refusal:
        stamped(None, problem, make_plan(RING, problem), {})
    assert "\n" not in str(refusal.value)
