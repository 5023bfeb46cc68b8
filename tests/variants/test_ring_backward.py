"""Gradients of a ring: right in every order over any number of devices, with exact claims and links."""

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
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.traffic import Link
from harness.operations.ring_attention_backward.problem import RingBackwardProblem
from harness.support.errors import KernelFault, PlanError

REGISTRY = discover().registry
ALGORITHMS = ("ring-bwd", "ring-bwd-mma", "ring-bwd-fa3")
PAIRS = [tuple(REGISTRY.get(f"{name}-{language}") for language in ("cupy", "numba")) for name in ALGORITHMS]
(RING, RING_NUMBA), (RING_MMA, RING_MMA_NUMBA), (RING_FA3, _) = PAIRS
FEW = ((3, "zigzag", "causal"), (4, "striped", "causal"), (2, "contiguous", "none"))
MANY = [
    (devices, order, mask)
    for devices in (1, 2, 3, 4, 5, 8)
    for order in ("contiguous", "striped", "zigzag")
    for mask in ("none", "causal")
]


def ring(devices: int, order: str, mask: str, length: int = 45, **more: object) -> RingBackwardProblem:
    sizes = {"heads": 2, "kv_heads": 1, "q_len": length, "kv_len": length, "head_dim": 16, "dtype": "float16"}
    return RingBackwardProblem(**{**sizes, "devices": devices, "row_order": order, "mask": mask, **more})


def tried(problem: RingBackwardProblem, variant=RING) -> Attempt:
    return attempt(variant, problem, EXECUTOR, question=Question.draw(problem, "rising", 3))


def of_each_variant() -> list:
    """Eight devices take as long as fewer ones together: all orders of one variant, as who sends what is the same."""
    usual, further = [], []
    for case, variant in itertools.product(MANY, (RING, RING_NUMBA, RING_MMA, RING_MMA_NUMBA, RING_FA3)):
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
def test_gradients_are_right_and_their_bytes_are_those_claimed(variant, devices: int, order: str, mask: str):
    done = tried(ring(devices, order, mask), variant)
    assert done.failure is None, done.failure
    assert done.claim_holds and not done.accuracy.suspicious


@pytest.mark.parametrize("pair", PAIRS, ids=ALGORITHMS)
def test_both_languages_have_launches_that_match(pair):
    problem = ring(3, "zigzag", "causal", batch=2)
    plans = [make_plan(variant, problem) for variant in pair]
    assert plans[0].buffers == plans[1].buffers and plans[0].copies == plans[1].copies
    launches = zip(*(plan.launches for plan in plans), strict=True)
    assert all((a.args, a.grid, a.device) == (b.args, b.grid, b.device) for a, b in launches)


def test_each_link_moves_all_blocks_but_one_and_as_many_sums_in_float32():
    problem = ring(4, "striped", "none", 48)
    execution, block = tried(problem).execution, problem.kv_bytes(0)
    sent = 3 * (block + block // 2 * 4)
    assert execution.links == tuple(sorted(Link(d, (d + 1) % 4, sent) for d in range(4)))
    assert RING.claim(problem).links == execution.links


def test_a_sum_travels_from_the_first_device_that_has_a_part_of_it():
    problem = ring(4, "contiguous", "causal", 48)
    elements = problem.kv_bytes(0) // 2
    # Keys of device j are seen on devices j + 1 to 3, and those of device 3 on no other.
    hops = {(j + step) % 4: 0 for j in range(4) for step in range(4)}
    for j, step in itertools.product(range(3), range(1, 4)):
        hops[(j + step) % 4] += 1
    expected = tuple(sorted(Link(d, (d + 1) % 4, 3 * problem.kv_bytes(0) + hops[d] * 4 * elements) for d in range(4)))
    assert tried(problem).execution.links == expected


def test_copies_are_hidden_by_launches_of_every_device():
    problem = ring(4, "striped", "causal", 48)
    plan = make_plan(RING, problem)
    assert plan.copies
    for copy in plan.copies:
        assert {launch.device for launch in plan.launches[copy.start : copy.wait]} == set(range(4)), copy


def test_rows_are_prepared_and_rounded_once_however_many_blocks_they_see():
    plan = make_plan(RING_MMA, ring(4, "contiguous", "none", 48))
    counts = {}
    for launch in plan.launches:
        counts[launch.kernel_name] = counts.get(launch.kernel_name, 0) + 1
    assert counts == {
        "bwd_mma_prepare": 4, "bwd_mma_of_keys": 16, "ring_add": 12, "ring_store": 4, "bwd_mma_round": 4,
    }  # fmt: skip


@pytest.mark.parametrize("variant", [RING, RING_MMA], ids=lambda variant: variant.name)
def test_devices_hold_their_rows_visitors_and_sums_and_not_all_keys(variant):
    problem = ring(8, "striped", "causal", 512)
    plan = make_plan(variant, problem)
    held, buffers = plan.device_bytes(problem), plan.all_buffers(problem)
    assert all(size <= problem.most_device_bytes(device) for device, size in enumerate(held))
    received = {copy.destination for copy in plan.copies if buffers[copy.destination].device == 0}
    block = problem.kv_bytes(0)
    assert sum(buffers[name].size_bytes for name in received) == 2 * (block + 2 * block)
    assert problem.most_received_bytes == 2 * (block + 2 * block)
    too_large = dataclasses.replace(plan, buffers=(*plan.buffers, *_copy_of_all_keys(problem)))
    with pytest.raises(PlanError, match=r"device 0 holds .* bytes; at most .* are allowed"):
        too_large.all_buffers(problem)


def _copy_of_all_keys(problem: RingBackwardProblem):
    from harness.model.plan import Buffer

    return (Buffer("all_K", problem.whole.kv_shape, problem.dtype), Buffer("all_V", problem.whole.kv_shape, "float32"))


def test_the_sanitizer_finds_nothing():
    problem = ring(3, "zigzag", "causal", 13, dtype="float32")
    assert SANITIZER.check(RING, problem, make_plan(RING, problem), draw_inputs(problem)) == ()


def test_a_sum_that_is_added_to_before_it_has_come_is_a_fault():
    problem = ring(3, "contiguous", "none", 12, heads=1)
    plan, inputs = make_plan(RING, problem), draw_inputs(problem)
    late = tuple(
        dataclasses.replace(copy, wait=copy.wait + 1) if "dK_sum" in copy.source else copy for copy in plan.copies
    )
    with pytest.raises(KernelFault, match=r"dK_sum_visiting_\d@\d in launch \d+, while the copy of dK_sum"):
        EXECUTOR.run(problem, dataclasses.replace(plan, copies=late), inputs)


def test_one_device_gives_the_bits_of_the_gradients_of_attention():
    problem = ring(1, "contiguous", "causal", 45)
    inputs = draw_inputs(problem)
    own = EXECUTOR.run(problem, make_plan(RING, problem), inputs).outputs
    whole = REGISTRY.get("bwd-fa2-cupy")
    other = EXECUTOR.run(problem.whole, make_plan(whole, problem.whole), inputs).outputs
    assert all(np.array_equal(own[name].view("u2"), other[name].view("u2")) for name in ("dQ", "dK", "dV"))
