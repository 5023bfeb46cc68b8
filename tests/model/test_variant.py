from __future__ import annotations

import pytest

from harness.model.numerics import Numerics
from harness.model.plan import Buffer, Launch, Plan
from harness.model.traffic import Traffic
from harness.model.variant import Registry, Variant
from harness.operations.attention.problem import Problem
from harness.support.errors import PlanError, PluginError, UsageError

PROBLEM = Problem(batch=1, heads=2, q_len=8, kv_len=8, head_dim=4)


class Kernel:
    name = "kernel"


def launch(*args: object) -> Launch:
    return Launch(Kernel(), (1,), (32,), args)


def variant(name: str) -> Variant:
    return Variant(name=name, plan=lambda problem: Plan(()))


def test_allocated_is_scratch_and_outputs_but_not_inputs():
    plan = Plan((launch("Q", "scratch"),), (Buffer("scratch", (3, 5), "float16"),))
    assert plan.allocated_bytes(PROBLEM) == 3 * 5 * 2 + 2 * 8 * 4 * 4


def test_a_plan_knows_its_buffers():
    with pytest.raises(PlanError, match=r"'W'.*it has Q, K, V, O"):
        Plan((launch("W"),)).all_buffers(PROBLEM)
    with pytest.raises(PlanError, match="two buffers named 'Q'"):
        Plan((), (Buffer("Q", (1,), "float32"),)).all_buffers(PROBLEM)
    with pytest.raises(PlanError, match="'lse'"):
        Plan((), (Buffer("lse", (1, 2, 9), "float32"),)).all_buffers(PROBLEM)


@pytest.mark.parametrize(
    ("grid", "block", "words"),
    [
        ((0,), (32,), "grid"),
        ((1,), (32, 0), "block"),
        ((1, 1, 1, 1), (1,), "grid"),
        ((1,), (64, 32), "1024"),
        ((1, 65536), (32,), "65535"),
        ((1,), (1, 1, 65), "64"),
    ],
)
def test_impossible_launches_are_refused(grid: tuple[int, ...], block: tuple[int, ...], words: str):
    with pytest.raises(PlanError, match=words):
        Launch(Kernel(), grid, block, ())


def test_buffers_are_of_a_known_dtype():
    with pytest.raises(PlanError, match="float8"):
        Buffer("x", (1,), "float8")
    with pytest.raises(PlanError, match="negative"):
        Buffer("x", (-1,), "float32")


@pytest.mark.parametrize("name", ["", "a b", "a,b", "fa*", "a?"])
def test_names_that_a_pattern_could_not_mean_are_refused(name: str):
    with pytest.raises(PluginError):
        variant(name)


def test_two_variants_of_one_name_clash_loudly():
    registry = Registry()
    registry.origin = "module one"
    registry.add(variant("fa2"))
    registry.origin = "module two"
    with pytest.raises(PluginError, match=r"module two .*'fa2'.* module one"):
        registry.add(variant("fa2"))
    assert registry.origin_of("fa2") == "module one"


def test_an_unknown_name_gets_the_nearest():
    registry = Registry()
    registry.add(variant("fa2-cupy"))
    registry.add(variant("three-pass-numba"))
    with pytest.raises(UsageError, match="'fa-cupy'; did you mean 'fa2-cupy'"):
        registry.get("fa-cupy")
    with pytest.raises(UsageError, match="'list' shows all"):
        registry.get("zzz")


def test_select_takes_patterns_in_order_and_each_once():
    registry = Registry()
    for name in ("fa1-cupy", "fa2-cupy", "fa2-numba"):
        registry.add(variant(name))
    assert [v.name for v in registry.select("fa2-*, fa*-cupy")] == ["fa2-cupy", "fa2-numba", "fa1-cupy"]
    assert len(registry.select(None)) == 3
    with pytest.raises(UsageError, match=r"fa3\*"):
        registry.select("fa2-*,fa3*")


def test_traffic_adds_up():
    assert Traffic(3, 4).total_bytes == 7


@pytest.mark.parametrize("name", ["esc\x1b]0;t\x07", "zero\u200bwidth", "over\u202eride", "half\ud800", "x" * 129])
def test_unprintable_and_overlong_names_are_refused(name: str):
    with pytest.raises(PluginError, match=r"is not usable|characters; it may have 128") as refused:
        variant(name)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200


def test_what_bits_do_not_depend_on_is_one_of_three():
    assert variant("it").invariant_to == ("batch",)
    with pytest.raises(PluginError, match="choose from batch, splits, padding, not 'heads'"):
        Variant(name="it", plan=lambda problem: Plan(()), invariant_to=("batch", "heads"))


def test_further_bytes_are_those_of_some_inputs():
    claim = Traffic(100, 10, further_read_bytes=50)
    assert claim.holds(100, 10) and claim.holds(150, 10)
    assert not any(claim.holds(*moved) for moved in ((99, 10), (151, 10), (100, 11)))
    assert not Traffic(100, 10).holds(101, 10)


@pytest.mark.parametrize("given", [(0.0, -4.0), (0.0, 1.0, 11.0), (0.0, -4.0, 81.0), (float("nan"), -4.0, 11.0), "phi"])
def test_a_constant_in_place_of_the_maximum_has_a_range(given: object):
    with pytest.raises(PluginError, match=r"it has to be \(phi, a, b\)"):
        Numerics(constant_maximum=given)  # type: ignore[arg-type]
    assert Numerics(constant_maximum=[1, -4, 11]).constant_maximum == (1.0, -4.0, 11.0)  # type: ignore[arg-type]
