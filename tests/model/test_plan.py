"""What a plan is built of is checked where it is built, and the message says which part of it is wrong."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from harness.compilers.tensor_maps import native_arguments
from harness.model.peer_copy import PeerCopy
from harness.model.plan import Buffer, Launch, Plan, Reshaped
from harness.operations.attention.layout import Layout
from harness.operations.attention.problem import Problem
from harness.support.errors import PlanError

KERNEL = SimpleNamespace(name="adds")


def launch(**changed: object) -> Launch:
    return Launch(**{"kernel": KERNEL, "grid": (2,), "block": (32,), "args": ("Q",), **changed})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"grid": (1.5,)}, r"kernel adds: its grid is \(1.5,\); .* 1.5 is a float"),
        ({"grid": (1.0,)}, r"kernel adds: its grid is \(1.0,\)"),
        ({"grid": (True,)}, r"its grid is \(True,\)"),
        ({"grid": 4}, r"its grid is 4; it has to be a tuple"),
        ({"grid": None}, r"its grid is None"),
        ({"grid": (2, None)}, r"its grid is \(2, None\)"),
        ({"block": (32, "4")}, r"kernel adds: its block is \(32, '4'\)"),
        ({"block": (0,)}, r"its block is \(0,\); it needs one to three"),
        ({"shared_bytes": -1}, r"kernel adds: its shared_bytes is -1; it has to be at least 0"),
        ({"shared_bytes": 2.0}, r"kernel adds: its shared_bytes is 2.0; .* is a float"),
        ({"shared_bytes": None}, r"its shared_bytes is None"),
        ({"args": None}, r"kernel adds: its args are None"),
        ({"args": "Q"}, r"kernel adds: its args are 'Q'"),
        ({"overlaps_previous": 1}, r"kernel adds: its overlaps_previous is 1; it has to be True or False"),
    ],
)
def test_a_launch_of_the_wrong_kind_is_refused(changed: dict[str, object], words: str):
    with pytest.raises(PlanError, match=words):
        launch(**changed)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (("x", (2.5,), "float32"), r"buffer 'x': its shape is \(2.5,\)"),
        (("x", (-2,), "float32"), r"negative extent"),
        (("x", None, "float32"), r"buffer 'x': its shape is None"),
        (("x", (2,), np.float32), r"buffer 'x' has dtype"),
        ((None, (2,), "float32"), r"a buffer is named None"),
    ],
)
def test_a_buffer_of_the_wrong_kind_is_refused(fields: tuple[object, ...], words: str):
    with pytest.raises(PlanError, match=words):
        Buffer(*fields)


@pytest.mark.parametrize(
    ("launches", "buffers", "words"),
    [
        (None, (), r"the plan's launches are None"),
        ((launch(), None), (), r"the plan's launches\[1\] is None; each of them has to be a Launch"),
        ((launch(),), (None,), r"the plan's buffers\[0\] is None; each of them has to be a Buffer"),
        ((launch(),), 3, r"the plan's buffers are 3"),
    ],
)
def test_a_plan_holds_launches_and_buffers_alone(launches: object, buffers: object, words: str):
    with pytest.raises(PlanError, match=words):
        Plan(launches, buffers)


def test_a_launch_overlaps_the_one_right_before_it_on_its_device():
    first, second = launch(), launch(overlaps_previous=True)
    copies = [PeerCopy("x", "y", 4, start, wait) for start, wait in ((0, 2), (1, 2), (0, 1))]
    Plan((first, second, first), copies=copies[:1])
    for launches, copy, words in (
        ((second, first), (), "is launched first"),
        ((first, launch(overlaps_previous=True, device=1)), (), "is launched first"),
        ((first, second), copies[1:2], "a copy between devices starts or is waited for in between"),
        ((first, second), copies[2:], "a copy between devices starts or is waited for in between"),
    ):
        with pytest.raises(PlanError, match=words):
            Plan(launches, copies=copy)


def test_whole_numbers_of_numpy_and_lists_are_as_good():
    built = launch(grid=[np.int64(3), 2], shared_bytes=np.int32(16), args=["Q"])
    assert (built.grid, built.shared_bytes, built.args) == ((3, 2), 16, ("Q",))
    assert all(type(extent) is int for extent in (*built.grid, built.shared_bytes))
    assert Plan([built], [Buffer("x", [np.int64(2)], "int32")]).buffers[0].shape == (2,)


@pytest.mark.parametrize(
    ("buffer", "shape"), [("K", [2, 3]), ("K", (2, 1.5)), ("K", (-1,)), ("K", (True,)), (None, (2,))]
)
def test_what_is_no_shape_of_a_buffer_is_refused(buffer: object, shape: object):
    with pytest.raises(PlanError, match="has to be"):
        Reshaped(buffer, shape)


def test_a_buffer_is_given_in_another_shape_if_it_has_room():
    problem = Problem(heads=2, q_len=7, kv_len=7, head_dim=4)
    given = Reshaped("K", (1, 2, 6, 4))
    Plan((launch(args=("Q", (given,))),)).all_buffers(problem)
    (array,) = native_arguments(launch(args=(given,)), {"K": np.arange(2 * 7 * 4).reshape(1, 2, 7, 4)})
    assert array.shape == (1, 2, 6, 4) and array[0, 1, 0, 0] == 6 * 4
    with pytest.raises(PlanError, match="of 64 elements; K has 56"):
        Plan((launch(args=(Reshaped("K", (8, 8)),)),)).all_buffers(problem)
    with pytest.raises(PlanError, match="given a buffer 'k' that the plan does not have"):
        Plan((launch(args=(Reshaped("k", (2,)),)),)).all_buffers(problem)
    strided = Problem(heads=2, q_len=7, kv_len=7, head_dim=4, layout=Layout("bshd"))
    with pytest.raises(PlanError, match="K is not C-contiguous"):
        Plan((launch(args=(given,)),)).all_buffers(strided)
