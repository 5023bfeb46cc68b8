"""Campaigns meet 1 to 8 devices in every order, lengths that are no multiples, causal and not; and shrink them."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.model.cases.axes import NO_CHECK
from harness.model.cases.build import Builds
from harness.model.cases.case import Case, Edit
from harness.model.operation import operation_named
from harness.operations._across_devices.cases import DEVICES
from harness.operations._across_devices.order import ORDERS
from harness.operations.ring_attention.cases import BRIEF_VISITS, ORDER, lighter, visits
from harness.operations.ring_attention.operation import CASES
from harness.operations.ring_attention.problem import RingProblem

OPERATION = operation_named("ring-attention")
BUILDS = CASES.builds_of(0)


def drawn(count: int) -> list[Case]:
    axes, rng = CASES.axes(None, (), ("causal", "window", "layout")), random.Random(3)
    values = {axis: [value.name for value in of_axis] for axis, of_axis in axes.values.items()}
    choices = []
    while len(choices) < count:
        choice = {axis: rng.choice(names) for axis, names in values.items()}
        pairs = list(choice.items())
        if all(axes.meet(one, other) for place, one in enumerate(pairs) for other in pairs[place + 1 :]):
            choices.append(choice)
    return [axes.case(BUILDS[0], choice, rng, brief=True) for choice in choices]


def test_campaigns_meet_every_number_of_devices_order_and_remainder():
    cases = drawn(150)
    problems = [case.problem for case in cases]
    assert {problem.devices for problem in problems} == set(range(1, 9))
    assert {problem.row_order for problem in problems} == set(ORDERS)
    assert {problem.mask.text for problem in problems} == {"none", "causal"}
    assert {problem.q_len % problem.devices > 0 for problem in problems} == {True, False}
    assert any(case.edits for case in cases)
    assert max(map(visits, problems)) <= BRIEF_VISITS and max(problem.devices for problem in problems) == 8
    assert {problem.heads > problem.kv_heads for problem in problems} == {problem.batch > 1 for problem in problems}


def test_every_value_of_the_axes_goes_with_the_plainest_of_the_others():
    axes = CASES.axes(None, (), ("causal",))
    plain = {axis: values[0].name for axis, values in axes.values.items()}
    assert plain["property"] == NO_CHECK and {DEVICES, ORDER} < plain.keys()
    for axis in (DEVICES, ORDER):
        for value in axes.values[axis]:
            assert axes.case(BUILDS[0], {**plain, axis: value.name}, random.Random(0)).problem is not None


@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=(HealthCheck.too_slow,))
def test_drawn_cases_have_inputs_and_become_json_and_back(data: st.DataObject):
    case = data.draw(OPERATION.cases(BUILDS, 6, (), ("causal",)))
    assert 1 <= case.problem.devices <= 8
    assert Case.from_json(case.to_json()) == case
    assert {array.shape[2] for array in case.inputs().values()} == {case.problem.q_len}


def test_a_failing_case_is_tried_on_fewer_devices_in_a_plainer_order_and_shorter():
    problem = RingProblem(heads=2, q_len=70, kv_len=70, head_dim=16, devices=5, row_order="zigzag", mask="causal")
    case, builds = Case(problem, edits=(Edit("V", (0, 0, 69, 0), 3.0),)), Builds(BUILDS[:1])
    case = Case(problem=RingProblem(**{**fields_of(problem), "head_dim": BUILDS[0].plain_problem.head_dim}))
    smaller = [each for each in OPERATION.simpler(case, builds) if OPERATION.size(each, builds) < size(case, builds)]
    assert {each.problem.devices for each in smaller} >= {1, 2, 3, 4, 5}
    assert {each.problem.row_order for each in smaller} == set(ORDERS)
    assert min(each.problem.q_len for each in smaller) < 70
    assert {each.problem.mask.text for each in smaller} == {"none", "causal"}


def size(case: Case, builds: Builds) -> tuple[object, ...]:
    return OPERATION.size(case, builds)


def fields_of(problem: RingProblem) -> dict[str, object]:
    return {name: value for name, value in problem.to_fields().items() if name != "causal"}


def test_what_is_peculiar_about_a_case_names_devices_and_the_remainder():
    problem = RingProblem(heads=1, q_len=23, kv_len=23, head_dim=16, devices=5, row_order="striped")
    words = OPERATION.peculiarities(Case(problem), (1, 1))
    assert words[:3] == ["5 devices", "striped order", "23 rows, 3 more than a multiple of the devices"]


def test_a_problem_is_made_lighter_until_it_takes_no_longer_than_it_may():
    heavy = RingProblem(batch=33, heads=24, kv_heads=3, q_len=700, kv_len=700, head_dim=64, devices=2, mask="causal")
    assert lighter(heavy, visits(heavy)) == heavy
    light = lighter(heavy, 20)
    assert visits(light) <= 20 < visits(dataclasses.replace(light, q_len=2 * light.q_len, kv_len=2 * light.kv_len))
    assert (light.batch, light.devices, light.causal) == (1, 2, True)
