"""Variants that take caps, ALiBi and sinks: answers, bytes, rows without keys, NaN behind masks, registers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_resources import assert_fits
from lanes import exhaustive_unless, is_exhaustive
from twins import of_one_language

from harness.compilers import DevicePointer
from harness.execution.planning.variant_calls import compiled_launches, make_plan, refusal_of
from harness.execution.protocol import Execution
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem
from variants._mma import LOG2_E
from variants.attention.fa2_mma import default_tile, unit_of

TAKING = ("fa2", "two-pass", "three-pass", "fa2-mma", "fa3", "split-kv")
VARIANTS = [v for v in discover().registry.select(None, "attention") if v.algorithm in TAKING]
EXECUTOR = emulator()
ALL = {"softcap": 3.0, "alibi": True, "sinks": True}
SINGLE = ({"softcap": 3.0}, {"alibi": True}, {"sinks": True})
"""Each is a compilation of every kernel."""
DROPPING = ({"dropout": 0.1}, {"dropout": 0.1, **ALL})

each_variant = pytest.mark.parametrize(
    "variant",
    of_one_language(lambda variant: variant.name in ("fa2-cupy", "fa2-mma-cupy"), VARIANTS),
    ids=lambda variant: variant.name,
)


def build_of(variant: Variant) -> dict[str, object]:
    """One per variant in the default lane."""
    takes_float32 = refusal_of(variant, Problem(head_dim=64)) is None
    return {"dtype": "float32", "head_dim": 64} if takes_float32 else {"dtype": "float16", "head_dim": 48}


def run(variant: Variant, problem: Problem, inputs: dict[str, np.ndarray]) -> Execution:
    return EXECUTOR.run(problem, make_plan(variant, problem), inputs)


def assert_right(variant: Variant, problem: Problem, regime: str, seed: int) -> None:
    """Every output within what is expected, every byte claimed."""
    inputs = draw_inputs(problem, regime, seed)
    done = run(variant, problem, inputs)
    answer = attention(problem, inputs)
    result = hold(done.outputs, answer, error_budget(problem, inputs, answer, variant.numerics))
    assert result.passed, result.reason
    assert not result.suspicious, result
    assert variant.claim is not None
    assert done.read_bytes is not None and done.write_bytes is not None
    assert variant.claim(problem).holds(done.read_bytes, done.write_bytes)


LENGTHS = st.one_of(st.sampled_from((1, 2, 16, 31, 33, 64, 65, 128, 129)), st.integers(1, 150))
MASKS = ("none", "causal", "window:20,3", "causal+window:33", "window:0,40")


@each_variant
@pytest.mark.parametrize("fields", exhaustive_unless(lambda fields: fields is ALL, (ALL, *SINGLE)), ids=str)
def test_answers_and_bytes_whatever_the_shape(variant: Variant, fields: dict[str, object]):
    @given(
        heads=st.sampled_from(((1, 1), (3, 3), (4, 2), (12, 3), (10, 1))),
        lengths=st.tuples(LENGTHS, LENGTHS),
        rest=st.tuples(st.integers(1, 2), st.sampled_from(MASKS), st.sampled_from((None, 1.0, -0.25, 0.0))),
        drawn=st.tuples(st.sampled_from(sorted(REGIMES)), st.integers(0, 2**16)),
    )
    @settings(
        max_examples=40 if is_exhaustive() else 8,
        deadline=None,
        derandomize=True,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.differing_executors),
    )
    def draw(
        heads: tuple[int, int],
        lengths: tuple[int, int],
        rest: tuple[int, str, float | None],
        drawn: tuple[str, int],
    ) -> None:
        batch, mask, scale = rest
        sizes = {"heads": heads[0], "kv_heads": heads[1], "q_len": lengths[0], "kv_len": lengths[1], "batch": batch}
        assert_right(variant, Problem(**sizes, mask=mask, scale=scale, **build_of(variant), **fields), *drawn)

    draw()


@each_variant
def test_rows_without_keys_have_their_sinks(variant: Variant):
    problem = Problem(heads=4, kv_heads=2, q_len=70, kv_len=3, mask="causal", **build_of(variant), **ALL)
    inputs = draw_inputs(problem, "normal", 1)
    inputs["sinks"][:] = (2.5, -np.inf, 90.0, -200.0)
    outputs = run(variant, problem, inputs).outputs
    assert np.all(outputs["O"][0, :, :67] == 0)
    assert np.all(outputs["O"][0, 0, 67:].astype(np.float64) != 0)
    if "lse" in outputs:
        expected = np.broadcast_to(inputs["sinks"][:, None], (4, 67))
        np.testing.assert_allclose(outputs["lse"][0, :, :67], expected, rtol=1e-6)


@each_variant
def test_slopes_and_sinks_are_those_of_the_query_head(variant: Variant):
    """Of heads that share keys, one without a sink and a slope is as a plain one; the others are not."""
    problem = Problem(heads=4, kv_heads=2, batch=2, q_len=33, kv_len=40, **build_of(variant), **ALL)
    inputs = draw_inputs(problem, "normal", 1)
    inputs["slopes"][:] = (0.5, 0.0, 0.25, 0.0)
    inputs["sinks"][:] = (3.0, -np.inf, 1.0, -np.inf)
    # Slopes and sinks are read, not worked out.
    answer = attention(problem, inputs)
    result = hold(run(variant, problem, inputs).outputs, answer, error_budget(problem, inputs, answer))
    assert result.passed, result.reason
    other = attention(problem, inputs | {"slopes": np.roll(inputs["slopes"], 2)})
    assert np.abs(other["O"] - answer["O"])[:, [0, 2]].max() > 0.01 and np.array_equal(
        other["O"][:, 1], answer["O"][:, 1]
    )


@each_variant
@pytest.mark.parametrize("mask", ["causal", "window:12,9"])
def test_what_a_row_does_not_see_does_not_reach_it(variant: Variant, mask: str):
    problem = Problem(heads=2, q_len=90, kv_len=90, mask=mask, **build_of(variant), **ALL)
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(variant, problem, inputs).outputs["O"]
    first, end = problem.span(np.arange(problem.q_len))
    blind = (first > 49) | (end <= 49)
    for name in "KV":
        poisoned = inputs | {name: inputs[name].copy()}
        poisoned[name][:, :, 49] = np.nan
        dirty = run(variant, problem, poisoned).outputs["O"]
        assert np.array_equal(dirty[:, :, blind], clean[:, :, blind])
        assert not np.any(np.isfinite(dirty[:, :, ~blind].astype(np.float32)))


@each_variant
def test_they_say_so_and_others_refuse(variant: Variant):
    assert {*ALL} < {*variant.takes}
    far = dataclasses.replace(Problem(softcap=2.0**70), **build_of(variant))
    assert "softcap is 1.18059e+21" in (refusal_of(variant, far) or "")
    with pytest.raises(UnsupportedProblem, match="does not support softcap and sinks"):
        make_plan(discover().registry.get("fa1-cupy"), Problem(softcap=1.0, sinks=True))


@each_variant
def test_what_is_off_is_no_argument(variant: Variant):
    build = build_of(variant)
    off, on = (variant.plan(Problem(**build, **fields)) for fields in ({}, ALL))
    arguments = [[a for launch in plan.launches for a in _members(launch.args)] for plan in (off, on)]
    assert not {"slopes", "sinks"} & {a for a in arguments[0] if isinstance(a, str)}
    assert {"slopes", "sinks"} < {a for a in arguments[1] if isinstance(a, str)}
    assert len(arguments[1]) - len(arguments[0]) == len(("cap", "slopes", "sinks"))


@each_variant
def test_scores_have_a_unit_only_where_kernels_know_all_terms(variant: Variant, monkeypatch: pytest.MonkeyPatch):
    """Tensor-core kernels with log2 e in their scores multiply slopes themselves, so `Alibi.members` ignores it."""
    (alibi,) = (term for term in Problem.TERMS if term.field == "alibi")
    units = set()
    monkeypatch.setattr(type(alibi), "members", lambda self, problem, unit: units.add(unit) or self.input_names)
    variant.plan(Problem(**build_of(variant), alibi=True))
    assert units == {LOG2_E if variant.algorithm in ("fa2-mma", "fa3") else 1.0}
    assert unit_of(Problem(alibi=True, bias=("heads",))) == 1.0


def _members(args: tuple[Any, ...]) -> Iterator[Any]:
    """All arguments, those in tuples among them."""
    for argument in args:
        if isinstance(argument, tuple):
            yield from _members(argument)
        else:
            yield argument


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "head_dim", "fields"),
    exhaustive_unless(
        lambda case: case[0] == "fa2-mma-cupy" and case[1] in (64, 128) and case[2] in (ALL, SINGLE[0]),
        [
            (name, head_dim, fields)
            for name in ("fa2-mma-cupy", "fa2-mma-numba")
            for head_dim in (64, 128, 256)
            for fields in (ALL, *SINGLE, {"softcap": 3.0, "sinks": True}, {"alibi": True, "sinks": True}, *DROPPING)
        ],
    ),
    ids=str,
)
def test_nothing_spills(name: str, head_dim: int, fields: dict[str, object]):
    variant = discover().registry.get(name)
    problem = Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype="bfloat16", **fields)
    plan = variant.plan(problem)
    (launch,) = plan.launches
    args = tuple(_stand_in(plan, problem, argument) for argument in launch.args)
    assert_fits(dataclasses.replace(launch, args=args), default_tile(head_dim).blocks_per_sm)


def _stand_in(plan: Plan, problem: Problem, argument: object) -> object:
    """Numba compiles for what it is given."""
    if isinstance(argument, tuple):
        return tuple(_stand_in(plan, problem, member) for member in argument)
    if not isinstance(argument, str):
        return argument
    buffer = plan.all_buffers(problem)[argument]
    return DevicePointer(0, buffer.shape, buffer.dtype)


# Numba keeps a local array in memory where a kernel has much to do: it has to be the kernel's own, not its functions'.
@pytest.mark.parametrize("name", ["fa2-cupy", "fa2-numba"])
def test_all_terms_on_listed_tiles(name: str):
    sizes = {"heads": 2, "kv_heads": 1, "q_len": 62, "kv_len": 64, "head_dim": 20, "dtype": "float16"}
    problem = Problem(**sizes, mask=parse_mask("blocks:65x63,2"), softcap=30.0, alibi=True, bias=("q_len", "kv_len"))
    assert_right(discover().registry.get(name), problem, "normal", 0)


def test_a_numba_term_takes_no_branch_for_each_pair():
    (variant,) = (v for v in VARIANTS if v.name == "fa2-numba")

    def branches(**fields: Any) -> int:
        problem = Problem(heads=2, q_len=64, kv_len=64, **fields)
        ((_, kernel),) = compiled_launches(make_plan(variant, problem), problem, "sm_90")
        return kernel.ptx.count("bra")

    assert branches(alibi=True) == branches() < branches(bias=("heads", "q_len", "kv_len"))
