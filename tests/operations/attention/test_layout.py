"""Layouts: where elements lie, which layouts a problem can have, and that nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.execution.judging.kept_inputs import require_unused_kept
from harness.model.cases.build import Builds
from harness.model.operation import draw_inputs
from harness.model.placed_tensors import placed_inputs, unused_elements, view
from harness.operations.attention.cases.build import FIRST, fitted
from harness.operations.attention.cases.far_cases import far_cases
from harness.operations.attention.cases.simplification import simpler
from harness.operations.attention.layout import DENSE, DRAWN, GRADIENTS, TENSORS, Layout, overlaps, parse_layout
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.problem import Problem
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.errors import KernelFault, ProblemError

Place = Callable[[int, int, int, int], int]
B, H, N, D = 2, 3, 5, 4


def places(layout: str, gap: int) -> dict[str, Place]:
    """Where element (b, h, row, i) of Q, K, V and O lies in its buffer, written down by hand; K and V have N keys."""
    e = D + gap
    if layout == "bhsd":
        return dict.fromkeys("QKVO", lambda b, h, r, i: ((b * H + h) * N + r) * e + i)
    if layout == "bshd":
        return dict.fromkeys("QKVO", lambda b, h, r, i: ((b * N + r) * H + h) * e + i)
    packed: dict[str, Place] = {
        name: lambda b, h, r, i, n=number: (((b * N + r) * 3 + n) * H + h) * e + i for number, name in enumerate("QKV")
    }
    return {**packed, "O": lambda b, h, r, i: ((b * N + r) * H + h) * e + i}


@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "qkv"])
def test_every_element_lies_where_the_layout_says(layout: str, gap: int):
    text = f"{layout}+{gap}" if gap else layout
    problem = Problem(batch=B, heads=H, q_len=N, kv_len=N, head_dim=D, layout=text)  # type: ignore[arg-type]
    inputs = draw_inputs(problem)
    buffers = placed_inputs(problem, inputs)
    assert set(buffers) == ({"QKV"} if layout == "qkv" else set("QKV"))
    for name, place in places(layout, gap).items():
        tensor = problem.tensor(name)
        size = 1 + max(place(*index) for index in np.ndindex(tensor.shape))
        memory = np.arange(tensor.placement.elements if tensor.placement else tensor.size_bytes // 4)
        assert size <= memory.size
        found = view(tensor, memory)
        for index in np.ndindex(tensor.shape):
            assert found[index] == place(*index)
            if name != "O":
                assert buffers[tensor.buffer].reshape(-1)[place(*index)] == inputs[name][index]
    for name, memory in buffers.items():
        own = {places(layout, gap)[t.name](*i) for t in problem.inputs if t.buffer == name for i in np.ndindex(t.shape)}
        unused = unused_elements(problem.tensors, name)
        rest = set(range(memory.size)) - own
        assert rest == (set() if unused is None else set(np.flatnonzero(unused)))
        assert np.isnan(memory.reshape(-1)[sorted(rest)]).all()  # so that a row read too far shows


def test_explicit_strides_are_taken_as_they_are():
    strides = {name: (3000 if name == "O" else 2000, 7, 41, 1) for name in "QKVO"}
    layout = Layout.of_strides(**strides)
    assert (
        parse_layout(layout.text)
        == layout
        == Problem(batch=B, heads=H, q_len=N, kv_len=N, head_dim=D, layout=layout).layout
    )
    problem = Problem(batch=B, heads=H, q_len=N, kv_len=N, head_dim=D, layout=layout)
    assert [problem.tensor(name).strides for name in "QKVO"] == [*strides.values()]
    placement = problem.tensor("O").placement
    assert placement is not None and placement.elements == 1 + 3000 + 2 * 7 + 4 * 41 + 3


@pytest.mark.parametrize(
    "text", ["bhsd", "bshd", "qkv", "bshd+8", "bhsd+1", "strides:Q=40/20/5/1,K=40/20/5/1,V=40/20/5/1,O=40/20/5/1"]
)
def test_a_layout_is_written_as_it_is_read(text: str):
    layout = parse_layout(text)
    assert layout.text == str(layout) == text
    problem = Problem(heads=2, q_len=4, kv_len=4, head_dim=5, layout=text)  # type: ignore[arg-type]
    assert problem.layout == layout and layout.is_dense is (text == "bhsd")
    for fields in (problem.to_fields(), problem.to_short_fields()):
        assert Problem.from_fields(json.loads(json.dumps(fields))) == problem
    assert ("layout" in problem.to_short_fields()) is not layout.is_dense
    assert problem.features == (() if layout.is_dense else ("layout",))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layout": "bsdh"}, "layout 'bsdh': there is none; did you mean 'bshd'?"),
        ({"layout": "strides:Q=1/1"}, "layout strides:Q=1/1 is not bhsd, bshd or qkv"),
        ({"layout": 3}, "layout is 3; it has to be a Layout"),
        ({"layout": "qkv", "kv_heads": 1}, r"kv_heads \(1\) has to be heads \(2\) and kv_len \(256\) q_len \(256\)"),
        ({"layout": "qkv", "kv_len": 7}, r"kv_len \(7\) q_len \(256\)"),
        (
            {"layout": "strides:Q=1/512/1/256,K=9/9/9/1,V=9/9/9/1,O=9/9/9/1"},
            "the last axis of Q has stride 256, and kernels need 1; make a copy whose last axis is dense",
        ),
        (
            {"layout": "strides:Q=32768/16384/64/1,K=32768/16384/63/1,V=32768/16384/64/1,O=32768/16384/64/1"},
            "rows of K overlap: strides",
        ),
    ],
)  # fmt: skip
def test_what_no_kernel_can_take_is_refused(fields: dict, said: str):
    with pytest.raises(ProblemError, match=said) as refused:
        Problem(**fields)
    assert "\n" not in str(refused.value)


def strides_of(layout: str) -> dict[str, tuple[int, ...]]:
    problem = BackwardProblem(heads=2, q_len=4, kv_len=4, head_dim=8, layout=layout)  # type: ignore[arg-type]
    return {tensor.name: tensor.strides for tensor in problem.tensors if tensor.name.removeprefix("d") in "QKVO"}


def test_gradients_lie_like_their_tensors_or_as_the_second_layout_says():
    alike, other = strides_of("bshd"), strides_of("bshd/bhsd")
    assert all(alike[name] == alike[f"d{name}"] == (64, 8, 16, 1) for name in "QKVO")
    assert all(other[name] == alike[name] and other[f"d{name}"] == (64, 32, 8, 1) for name in "QKVO")
    assert strides_of("bhsd/bhsd") == strides_of("bhsd") and Layout("bhsd", gradients=DENSE) == DENSE
    packed = {tensor.name: tensor.buffer for tensor in BackwardProblem(layout="qkv").tensors}  # type: ignore[arg-type]
    assert packed["dV"] == packed["dQ"] == "dQKV" and packed["K"] == "QKV" and packed["dO"] == "dO"
    given = "Q=64/32/8/1,K=64/32/8/1,V=64/32/8/1,O=64/8/16/1"
    assert strides_of(f"strides:{given}")["dO"] == (64, 8, 16, 1)
    apart = strides_of(f"strides:{given},dO=128/64/16/1,dQ=64/32/8/1,dK=64/8/16/1,dV=64/32/8/1")
    assert (apart["O"], apart["dO"], apart["dK"]) == ((64, 8, 16, 1), (128, 64, 16, 1), (64, 8, 16, 1))


ALL_STRIDES = f"strides:{','.join(f'{name}=8/4/4/1' for name in (*TENSORS, *GRADIENTS))}"


@pytest.mark.parametrize("text", ["bshd/bhsd", "bhsd/qkv+8", "bshd+3/bshd", ALL_STRIDES])
def test_a_layout_of_gradients_is_a_text_and_back(text: str):
    assert parse_layout(text).text == text


@pytest.mark.parametrize(
    ("problem", "layout", "said"),
    [
        (Problem, "bshd/bhsd", "layout bshd/bhsd places gradients, which the problem does not have"),
        (BackwardProblem, "bshd/bsdh", "layout 'bsdh': there is none"),
        (BackwardProblem, "bshd/strides:Q=1/1/1/1", "there is none"),
        (BackwardProblem, "strides:Q=8/8/8/1,K=8/8/8/1,V=8/8/8/1,O=8/8/8/1,dO=8/8/8/1", "of none or all of dO, dQ"),
    ],
)
def test_where_gradients_cannot_lie_is_refused_in_one_line(problem: type, layout: str, said: str):
    with pytest.raises(ProblemError, match=said) as refused:
        problem(layout=layout)
    assert "\n" not in str(refused.value)


def test_layouts_of_gradients_are_fitted_and_simplified():
    grouped = BackwardProblem(heads=4, kv_heads=2)
    assert Layout("bshd", gradients=Layout("qkv")).fitted_to(grouped.shapes) == Layout("bshd")
    mixed = Layout("bshd", 8, gradients=Layout("bhsd", 8))
    simpler = list(mixed.simplified())
    assert {mixed.gradients, Layout("bshd", 8), Layout("bshd", 8, gradients=DENSE)} <= {*simpler}


def test_a_layout_that_does_not_fit_becomes_one_that_does():
    square, grouped = (1, 4, 8, 16), (1, 2, 8, 16)
    assert Layout("qkv", 8).fitted_to(dict.fromkeys("QKVO", square)) == Layout("qkv", 8)
    assert Layout("qkv", 8).fitted_to({"Q": square, "K": grouped, "V": grouped, "O": square}) == Layout("bshd", 8)
    assert DRAWN[0] == Layout("bshd") and DENSE not in DRAWN


@given(
    shape=st.tuples(*[st.integers(1, 4)] * 3),
    strides=st.tuples(*[st.integers(1, 30)] * 3),
)
def test_rows_that_do_not_overlap_are_never_taken_for_overlapping_ones(shape: tuple, strides: tuple):
    """The rule is sufficient, and not necessary: it accepts no array in which two elements share a place."""
    found = [sum(i * s for i, s in zip(index, strides)) for index in np.ndindex(shape)]
    if not overlaps(shape, strides):
        assert len(found) == len(set(found))


def test_campaigns_draw_layouts_with_all_else_and_later_with_less():
    sets = [FIRST.with_features(("softcap", "sinks", "layout"), place).features for place in range(8)]
    assert sets[:4] == [(), ("softcap", "sinks", "layout"), ("softcap",), ("sinks",)]
    assert [place for place, features in enumerate(sets) if "layout" in features] == [1, 4, 6]
    assert FIRST.with_features(("softcap", "sinks"), 1).features == ("softcap", "sinks")


def test_sequences_lie_far_apart_in_a_layout_and_stay_so_while_cases_are_made_smaller():
    plain = replace(FIRST, features=("sinks",))
    in_layouts = replace(FIRST, dtype="float16", features=("sinks", "layout"))
    strided = [each.problem for each in far_cases(in_layouts, 0)]
    assert all(each.far and each.layout == DRAWN[0] and each.heads == 2 for each in strided)
    (case, _) = far_cases(plain, 0)
    assert case.problem.far and case.problem.layout.is_dense
    smaller = list(simpler(case, Builds((in_layouts, plain))))
    rebuilt = [each.problem for each in smaller if each.problem.dtype == "float16"]
    assert any(problem.far and not problem.layout.is_dense for problem in rebuilt)


@pytest.mark.parametrize("layout", DRAWN, ids=str)
def test_a_drawn_layout_is_a_problem_s_whatever_the_sizes(layout: Layout):
    problem = fitted(
        batch=2, heads=4, kv_heads=2, q_len=9, kv_len=7, head_dim=8, mask=parse_mask("causal"), layout=layout
    )
    assert problem.layout == layout
    assert (problem.kv_heads, problem.q_len) == ((4, 7) if layout.order == "qkv" else (2, 9))


def test_a_store_between_rows_is_found():
    problem = Problem(heads=2, q_len=3, kv_len=3, head_dim=4, layout="bshd+2")  # type: ignore[arg-type]
    tensor = problem.tensor("O")
    assert tensor.placement is not None
    memory = np.full(4 * tensor.placement.elements, 0xFF, np.uint8).view(np.float32)
    view(tensor, memory)[...] = 1.0
    require_unused_kept(problem.tensors, "O", memory, "kernel k")
    memory[5] = 0.0
    with pytest.raises(KernelFault, match=r"kernel k: store between the rows of O: 1 elements .* at byte offset 20"):
        require_unused_kept(problem.tensors, "O", memory, "kernel k")
