"""Layouts of pools: where elements lie, which layouts a problem can have, and how campaigns draw and simplify them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.operation import draw_inputs
from harness.model.placed_tensors import placed_inputs, view
from harness.operations.paged_attention.axes import PagedAxes
from harness.operations.paged_attention.build import PagedBuild
from harness.operations.paged_attention.pool_layout import DRAWN, PoolLayout, parse_pool_layout
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.paged_attention.simplification import simpler, size
from harness.support.errors import ProblemError

pytestmark = pytest.mark.compiles(False)
H, S, D = 3, 16, 8


def problem_in(layout: str, **fields: object) -> PagedProblem:
    return PagedProblem(
        lengths=(20, 5),
        heads=H,
        kv_heads=H,
        head_dim=D,
        page_size=S,
        layout=layout,
        **fields,  # type: ignore[arg-type]
    )


PLACES = {
    "nhd": ("K", lambda v, p, h, r, i: ((p * S + r) * H + h) * D + i),
    "hnd+3": ("K", lambda v, p, h, r, i: ((p * H + h) * S + r) * (D + 3) + i),
    "kv-hnd": ("KV", lambda v, p, h, r, i: (((p * 2 + v) * H + h) * S + r) * D + i),
    "kv-nhd+8x4": ("KV", lambda v, p, h, r, i: ((((p * 4 + 2) * 2 + v) * S + r) * H + h) * (D + 8) + i),
    "hndx3": ("K", lambda v, p, h, r, i: (((p * 3 + 1) * H + h) * S + r) * D + i),
}
"""Where element i of row r of head h of page p of K (v = 0) or V (v = 1) lies, written down by hand."""


@pytest.mark.parametrize("layout", PLACES)
def test_every_element_lies_where_the_layout_says(layout: str):
    problem, (buffer, place) = problem_in(layout), PLACES[layout]
    inputs = draw_inputs(problem)
    buffers = placed_inputs(problem, inputs)
    for number, name in enumerate("KV"):
        tensor = problem.tensor(name)
        assert tensor.buffer == (buffer if len(buffer) == 2 else name)
        found = view(tensor, np.arange(tensor.placement.elements))
        expected = np.array([place(number, *index) for index in np.ndindex(tensor.shape)]).reshape(tensor.shape)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(view(tensor, buffers[tensor.buffer]), inputs[name])


def test_values_may_have_a_layout_of_their_own():
    problem = problem_in("nhd/hnd+8x2")
    assert problem.tensor("K").strides == (S * H * D, D, H * D, 1)
    assert problem.tensor("V").strides == (2 * H * S * 16, S * 16, 16, 1)
    assert parse_pool_layout("nhd/nhd") == parse_pool_layout("nhd")


@pytest.mark.parametrize(
    "text", ["hnd", "nhd", "kv-nhd+8x4", "hndx3/hndx2", "hnd/nhd+8", "strides:K=500/8/30/1,V=400/128/8/1"]
)
def test_a_layout_is_written_as_it_is_read(text: str):
    problem = problem_in(text)
    assert problem.layout.text == text and problem.layout.is_dense is (text == "hnd")
    assert problem.features == (() if text == "hnd" else ("layout",))
    for fields in (problem.to_fields(), problem.to_short_fields()):
        assert PagedProblem.from_fields(json.loads(json.dumps(fields))) == problem
        assert ("layout" in fields) is (text != "hnd")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layout": "ndh"}, "layout 'ndh': there is none"),
        ({"layout": "nhd+x"}, "is not hnd, nhd, kv-hnd or kv-nhd"),
        ({"layout": "kv-nhd/hnd"}, "K and V have layouts of their own only as hnd or nhd"),
        ({"layout": "nhdx0"}, "layers is 0"),
        ({"layout": 3}, "it has to be a PoolLayout"),
        ({"layout": "strides:K=500/8/30/1"}, "is not hnd"),
        ({"layout": "strides:K=500/8/30/2,V=400/128/8/1"}, "the last axis of K has stride 2"),
        ({"layout": "strides:K=500/8/30/1,V=200/128/8/1"}, "rows of V overlap"),
        ({"layout": "strides:K=500/8/30/1,V=400/128/8/1", "far": 2**32}, "far cannot be combined with strides"),
    ],
)  # fmt: skip
def test_what_no_kernel_can_take_is_refused(fields: dict, said: str):
    with pytest.raises(ProblemError, match=said):
        problem_in(**fields)


def test_far_pages_keep_their_layout():
    for layout in ("kv-nhdx3", "hndx3/hndx2"):
        huge = problem_in(layout, far=2**32).spread.problem
        assert huge.layout.text == layout
        assert huge.tensor("K").strides == problem_in(layout).tensor("K").strides
        assert max(huge.tensor(name).strides[0] for name in "KV") * (huge.pool_pages - 1) >= 2**32


@pytest.mark.parametrize("layout", DRAWN, ids=str)
def test_simpler_layouts_are_not_dense_and_end(layout: PoolLayout):
    assert not layout.is_dense
    for simpler_one in layout.simplified():
        assert simpler_one.complexity < layout.complexity and not simpler_one.is_dense


def test_campaigns_draw_layouts_and_leave_them_out_of_smaller_cases():
    build = PagedBuild("float16", 24, 32, features=("layout",))
    assert build.plain_problem.layout.text == "nhd" and build.of_problem(build.plain_problem).features == ("layout",)
    far = [case.problem.layout.text for case in PagedAxes(None, (), ("layout",)).far_cases((build,), 0)]
    assert far == ["hnd", "kv-nhdx3", "hndx3/hndx2"]
    builds = Builds((PagedBuild("float16", D, S, features=("layout",)),))
    case = Case(problem_in("kv-nhd+8x2"), tile=None)
    other = [each for each in simpler(case, builds) if each.problem.layout != case.problem.layout]
    assert all(size(each, builds) < size(case, builds) for each in other)
    assert {"nhd", "kv-hnd", "kv-nhdx2", "nhd+8x2"} <= {each.problem.layout.text for each in other}
