"""Problems of gradients in a ring, and what campaigns of them meet."""

from __future__ import annotations

import random

import numpy as np
import pytest

from harness.model.cases.axes import NO_CHECK, REGIME
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.operation import draw_inputs, operation_named
from harness.operations._across_devices.cases import DEVICES
from harness.operations._across_devices.order import ORDERS, ZIGZAG
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.ring_attention.cases import BRIEF_VISITS, ORDER, visits
from harness.operations.ring_attention.problem import RingProblem
from harness.operations.ring_attention_backward.operation import CASES
from harness.operations.ring_attention_backward.problem import RingBackwardProblem
from harness.support.errors import ProblemError

OPERATION = operation_named("ring-attention-backward")
BUILDS = CASES.builds_of(0)


def test_a_problem_is_made_of_its_fields_again_and_is_no_forward_problem():
    sizes = {"heads": 4, "kv_heads": 2, "q_len": 40, "kv_len": 40, "dtype": "float16", "mask": "causal"}
    problem = RingBackwardProblem(**sizes, devices=3, row_order=ZIGZAG)
    assert RingBackwardProblem.from_fields(problem.to_fields()) == problem
    assert RingBackwardProblem.from_fields(problem.to_short_fields()) == problem
    assert problem != RingProblem(**sizes, devices=3, row_order=ZIGZAG)
    assert isinstance(problem.whole, BackwardProblem) and problem.flops == problem.whole.flops
    assert problem.headline.startswith("gradients of ring attention over 3 devices in zigzag order")
    with pytest.raises(ProblemError, match="takes none or causal"):
        RingBackwardProblem(mask="window:3")


def test_devices_hold_their_rows_of_inputs_and_outputs():
    problem = RingBackwardProblem(q_len=23, kv_len=23, heads=4, kv_heads=2, head_dim=3, devices=3, row_order=ZIGZAG)
    held, inputs = problem.sharing.held, draw_inputs(problem)
    names = {tensor.name.partition("@")[0] for tensor in held.tensors}
    assert names == {"Q", "K", "V", "O", "lse", "dO", "dQ", "dK", "dV"} and held.sharing is None
    parts = problem.sharing.split(inputs)
    assert {name: part.shape for name, part in parts.items()} == {each.name: each.shape for each in held.inputs}
    joined = problem.sharing.join(parts)
    assert all(np.array_equal(joined[name], inputs[name]) for name in inputs)


def test_campaigns_meet_every_number_of_devices_order_and_regime_of_gradients():
    axes, rng = CASES.axes(None, (), ("causal", "dropout")), random.Random(3)
    values = {axis: [value.name for value in of_axis] for axis, of_axis in axes.values.items()}
    assert "one-gradient" in values[REGIME]
    cases: list[Case] = []
    while len(cases) < 120:
        choice = {axis: rng.choice(names) for axis, names in values.items()}
        pairs = list(choice.items())
        if all(axes.meet(one, other) for place, one in enumerate(pairs) for other in pairs[place + 1 :]):
            cases.append(axes.case(BUILDS[0], choice, rng, brief=True))
    problems = [case.problem for case in cases]
    assert {type(problem) for problem in problems} == {RingBackwardProblem}
    assert {problem.devices for problem in problems} == set(range(1, 9))
    assert {problem.row_order for problem in problems} == set(ORDERS)
    assert {problem.mask.text for problem in problems} == {"none", "causal"}
    assert {case.regime for case in cases} > {"one-gradient", "non-finite-gradient", "normal"}
    assert max(map(visits, problems)) <= BRIEF_VISITS
    assert {edit.array for case in cases for edit in case.edits} == {"V"}


def test_every_value_of_the_axes_goes_with_the_plainest_of_the_others():
    axes = CASES.axes(None, (), ("causal",))
    plain = {axis: values[0].name for axis, values in axes.values.items()}
    assert plain["property"] == NO_CHECK and {DEVICES, ORDER} < plain.keys()
    for axis in (DEVICES, ORDER, REGIME):
        for value in axes.values[axis]:
            case = axes.case(BUILDS[0], {**plain, axis: value.name}, random.Random(0))
            assert Case.from_json(case.to_json()) == case


def test_a_failing_case_is_tried_on_fewer_devices_shorter_and_with_a_plainer_regime():
    build, builds = BUILDS[0], Builds(BUILDS[:1])
    fields = {**build.plain_problem.own_fields, "q_len": 70, "kv_len": 70, "devices": 5, "row_order": ZIGZAG}
    case = Case(RingBackwardProblem(**fields), regime="one-gradient")
    smaller = [
        each for each in OPERATION.simpler(case, builds) if OPERATION.size(each, builds) < OPERATION.size(case, builds)
    ]
    assert {each.problem.devices for each in smaller} >= {1, 2, 3, 4, 5}
    assert {each.problem.row_order for each in smaller} == set(ORDERS)
    assert "normal" in {each.regime for each in smaller} and min(each.problem.q_len for each in smaller) < 70
    (axis,) = OPERATION.probed_axes(case, builds)
    longer = axis.at(81)
    assert (longer.problem.q_len, longer.problem.kv_len, longer.regime) == (81, 81, "one-gradient")


def test_builds_of_rings_say_which_tile_is_assumed():
    for build in (operation_named("ring-attention").builds[0], BUILDS[0]):
        assert build.assumed_tile == build.forward.assumed_tile != ()
