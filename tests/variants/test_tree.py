"""Tree attention: right over any number of devices, with exact claims and links, in log2(N) steps."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from attention_runs import EXECUTOR, SANITIZER
from lanes import exhaustive_unless, thorough_unless

from harness.execution.attempt import Attempt, attempt
from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import make_plan
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Plan
from harness.model.traffic import Link
from harness.operations.tree_attention.problem import TreeProblem
from harness.support.errors import KernelFault

NAMES = ("tree-cupy", "tree-numba", "tree-mma-cupy", "tree-mma-numba")
TREE, TREE_NUMBA, TREE_MMA, TREE_MMA_NUMBA = map(discover().registry.get, NAMES)
FEW = ((6, "causal", 9), (4, "none", 1))
MANY = [(devices, mask, rows) for devices in range(1, 9) for mask in ("none", "causal") for rows in (1, 9, 45)]


def tree(devices: int, mask: str, rows: int = 3, **more: object) -> TreeProblem:
    sizes = {"heads": 2, "kv_heads": 1, "q_len": rows, "kv_len": 45, "head_dim": 16, "dtype": "float16", "batch": 2}
    return TreeProblem(**{**sizes, "devices": devices, "mask": mask, **more})


def tried(problem: TreeProblem, variant=TREE) -> Attempt:
    return attempt(variant, problem, EXECUTOR, question=Question.draw(problem, "rising", 3))


def is_kept(case: tuple) -> bool:
    return case[1:] in FEW


def of_each_variant() -> list:
    """Those in Numba, which have the same plans, in few cases."""
    usual = [(variant, *case) for variant in (TREE, TREE_MMA) for case in MANY]
    in_numba = [(variant, *case) for variant in (TREE_NUMBA, TREE_MMA_NUMBA) for case in MANY]
    return [*thorough_unless(is_kept, usual), *exhaustive_unless(is_kept, in_numba)]


@pytest.mark.parametrize(
    ("variant", "devices", "mask", "rows"), of_each_variant(), ids=lambda value: getattr(value, "name", str(value))
)
def test_the_answer_is_right_and_its_bytes_are_those_claimed(variant, devices: int, mask: str, rows: int):
    done = tried(tree(devices, mask, rows), variant)
    assert done.failure is None, done.failure
    assert done.claim_holds and not done.accuracy.suspicious


@pytest.mark.parametrize("pair", [(TREE, TREE_NUMBA), (TREE_MMA, TREE_MMA_NUMBA)], ids=["tree", "tree-mma"])
def test_both_languages_give_the_same_bits_in_launches_that_match(pair):
    problem = tree(6, "causal", 9)
    one, other = (tried(problem, variant).execution for variant in pair)
    for name in ("O", "lse"):
        assert np.array_equal(one.outputs[name].view("u2"), other.outputs[name].view("u2"))
    plans = [make_plan(variant, problem) for variant in pair]
    assert plans[0].buffers == plans[1].buffers and plans[0].copies == plans[1].copies
    launches = zip(*(plan.launches for plan in plans), strict=True)
    assert all((a.args, a.grid, a.device) == (b.args, b.grid, b.device) for a, b in launches)


def test_each_device_but_the_first_sends_once_to_its_parent():
    problem = tree(6, "none")
    rows = 2 * 2 * 3
    of_keys, merged = rows * (16 * 2 + 4), rows * (16 * 4 + 4)
    expected = (Link(1, 0, of_keys), Link(2, 0, merged), Link(3, 2, of_keys), Link(4, 0, merged), Link(5, 4, of_keys))
    assert tried(problem).execution.links == expected == TREE.claim(problem).links


@pytest.mark.parametrize("devices", range(1, 9))
def test_results_travel_in_as_many_steps_as_the_logarithm_while_others_work(devices: int):
    plan = make_plan(TREE, tree(devices, "none"))
    assert len({copy.wait for copy in plan.copies}) == math.ceil(math.log2(devices))
    assert len(plan.copies) == 2 * (devices - 1)
    places = plan.all_buffers(tree(devices, "none"))
    for copy in plan.copies:
        flight = {launch.device for launch in plan.launches[copy.start : copy.wait]}
        assert places[copy.destination].device in flight and places[copy.source].device not in flight


def test_a_device_holds_its_keys_and_two_arriving_results():
    problem = tree(8, "none", kv_len=512)
    plan = make_plan(TREE, problem)
    held, buffers = plan.device_bytes(problem), plan.all_buffers(problem)
    assert all(size <= problem.most_device_bytes(device) for device, size in enumerate(held))
    received = {copy.destination for copy in plan.copies if buffers[copy.destination].device == 0}
    # One step's results have 16 bits; those of the other two are merged, and arrive in turn.
    rows = 2 * 2 * 3
    assert sum(buffers[name].size_bytes for name in received) == rows * (16 * 2 + 4) + 2 * rows * (16 * 4 + 4)


def test_the_sanitizer_finds_nothing():
    problem = tree(5, "causal", dtype="float32", batch=1, kv_len=13)
    assert SANITIZER.check(TREE, problem, make_plan(TREE, problem), draw_inputs(problem)) == ()


def test_a_merge_that_does_not_wait_is_a_fault():
    problem = tree(4, "none", batch=1)
    plan = make_plan(TREE, problem)
    late = tuple(dataclasses.replace(copy, wait=copy.wait + 1) for copy in plan.copies)
    with pytest.raises(KernelFault, match=r"O_float16_0@2 in launch 4, while the copy of O_own@3 to O_float16_0@2"):
        EXECUTOR.run(problem, dataclasses.replace(plan, copies=late), draw_inputs(problem))


def test_rows_that_see_no_key_of_a_device_do_not_read_its_result():
    """Under a causal mask of as many rows as keys, row 0 sees the keys of device 0 alone."""
    square, few = tree(4, "causal", 45), tree(4, "causal", 1)
    (merge,) = [launch for launch in make_plan(TREE, square).launches if launch.kernel_name == "tree_merge"][-1:]
    assert merge.device == 0 and tried(square).claim_holds and tried(few).claim_holds
    none = TREE.claim(dataclasses.replace(square, mask="none"))
    assert none.read_bytes > TREE.claim(square).read_bytes and none.links == TREE.claim(square).links


def test_one_device_merges_nothing():
    plan = make_plan(TREE, tree(1, "causal"))
    assert isinstance(plan, Plan) and len(plan.launches) == 1 and not plan.copies
