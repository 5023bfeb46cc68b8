"""Factors of 8 bits: what rounding them costs is known, what is derived besides is enough for a right kernel."""

from __future__ import annotations

import dataclasses
import functools

import ml_dtypes
import numpy as np
import pytest
from attention_answers import hold
from lanes import exhaustive_unless

from harness.execution.judging.accuracy import Accuracy
from harness.model.numerics import Numerics
from harness.model.operation import Part, draw_inputs
from harness.model.reference import Reference
from harness.operations.attention.budget.e4m3_factors import rounded_factors
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.oracle import attention, blocks_of
from harness.operations.attention.problem import Problem
from harness.support.errors import PluginError

NUMERICS = Numerics(scores="float32", one_score=True, divides_last=True, factors="e4m3")
Inputs = dict[str, np.ndarray]


def e4m3(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return x.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


def cut_off(x: np.ndarray, unit: np.ndarray) -> np.ndarray:
    return np.where(unit > 0, np.trunc(x / np.where(unit > 0, unit, 1)) * unit, 0.0)


def step_of(x: np.ndarray, bits: int) -> np.ndarray:
    """2^-bits of each number's power of two; 0 of 0."""
    return np.where(x == 0, 0.0, np.ldexp(1.0, np.frexp(x)[1] - 1 - bits))


def product(a: np.ndarray, b: np.ndarray, c: np.ndarray, bits: int) -> np.ndarray:
    """c + a b^T as a tensor core adds it up, 32 products at a time; rows of a and b are in units of their scales."""
    for first in range(0, a.shape[-1], 32):
        x, y = a[:, None, first : first + 32], b[None, :, first : first + 32]
        normal_x, normal_y = (np.where(z == 0, 0, np.maximum(np.abs(z), 2.0**-6)) for z in (x, y))
        unit = np.maximum((step_of(normal_x, bits) * step_of(normal_y, 0)).max(axis=-1), step_of(c, bits))
        total = cut_off(x * y, unit[..., None]).sum(axis=-1) + cut_off(c, unit)
        c = cut_off(total, step_of(total, bits))
    return c


def kernel(
    problem: Problem,
    inputs: Inputs,
    *,
    tile: int = 64,
    offset: int = 6,
    bits: int = 13,
    scale_of_v: float = 1.0,
    in_order: bool = True,
    coarser: int = 0,
) -> dict[str, np.ndarray]:
    """One head after the other. The keywords but `tile` plant mistakes; `coarser`: larger scales, by powers of 2."""
    O, lse = np.zeros(problem.q_shape), np.zeros(problem.lse_shape)
    for b, h in np.ndindex(problem.batch, problem.heads):
        rows = [inputs["Q"][b, h], *(inputs[x][b, h // problem.group] for x in "KV")]
        scales, factors = [], []
        for x in (row.astype(np.float64) for row in rows):
            scale = 2.0**-140
            while np.abs(x).max() > 448 * scale:
                scale *= 2
            scale *= 2.0**coarser
            scales.append(scale)
            factors.append(e4m3(x / scale))
        q, k, v = factors
        m, l = np.full(len(q), -np.inf), np.zeros(len(q))
        acc = np.zeros((len(q), problem.head_dim))
        first, end = problem.span(np.arange(len(q)))
        for j in range(0, problem.kv_len, tile):
            keys = np.arange(j, min(j + tile, problem.kv_len))
            s = product(q, k[keys], np.zeros((len(q), len(keys))), bits) * scales[0] * scales[1] * problem.tau
            s[(keys < first[:, None]) | (keys >= end[:, None])] = -np.inf
            new = np.maximum(m, s.max(axis=1))
            shift = np.where(new == -np.inf, 0, new)
            p = np.exp(s - shift[:, None]) * 2.0**offset
            l = l * np.exp(m - shift) + p.sum(axis=1)
            acc = (acc * np.exp(m - shift)[:, None]).astype(np.float32).astype(np.float64)
            # Within each 16 keys, as a permutation that was forgotten on one side.
            order = np.arange(len(keys)) if in_order else (np.arange(len(keys)) ^ 4) % len(keys)
            acc, m = product(e4m3(p), v[keys][order].T, acc, bits), new
        with np.errstate(divide="ignore"):
            O[b, h] = np.where(l[:, None] > 0, acc / np.where(l > 0, l, 1)[:, None], 0) * scales[2] * scale_of_v
            lse[b, h] = np.where(l > 0, m + np.log(l), -np.inf) - offset * np.log(2)
    return {"O": O.astype(inputs["Q"].dtype), "lse": lse.astype(np.float32)}


SHAPES = (
    {"heads": 1, "q_len": 40, "kv_len": 70},
    {"heads": 4, "kv_heads": 2, "q_len": 33, "kv_len": 80, "mask": "causal"},
    {"heads": 1, "q_len": 70, "kv_len": 33, "mask": "causal", "head_dim": 24},
    {"heads": 1, "q_len": 20, "kv_len": 300, "scale": -0.3, "mask": "window:60,9"},
)


@functools.cache
def asked(problem: Problem, regime: str) -> tuple[Inputs, Reference]:
    inputs = draw_inputs(problem, regime, 1)
    return inputs, attention(problem, inputs)


def judge(problem: Problem, regime: str, **planted: object) -> Accuracy:
    return held(problem, *asked(problem, regime), **planted)


def held(problem: Problem, inputs: Inputs, reference: Reference, **planted: object) -> Accuracy:
    return hold(kernel(problem, inputs, **planted), reference, error_budget(problem, inputs, reference, NUMERICS))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("regime", [name for name in REGIMES if name != "non-finite"])
@pytest.mark.parametrize("dtype", exhaustive_unless(lambda dtype: dtype == "bfloat16", ["bfloat16", "float16"]))
def test_a_right_kernel_is_within_both_tiers(dtype: str, regime: str, shape: dict[str, object]):
    result = judge(Problem(dtype=dtype, **{"head_dim": 64} | shape), regime)
    assert result.passed, result.reason
    assert not result.suspicious, result


@pytest.mark.parametrize(
    ("kv_len", "least"), exhaustive_unless(lambda case: case[0] == 1000, [(1000, 3.5), (4000, 2.0)])
)
@pytest.mark.parametrize("regime", ["normal", "uniform", "constant", "hot"])
def test_a_right_kernel_of_many_keys_is_expected_and_zeros_are_not(regime: str, kv_len: int, least: float):
    problem = Problem(heads=1, q_len=5, kv_len=kv_len, head_dim=24, dtype="float16")
    inputs, reference = asked(problem, regime)
    right = held(problem, inputs, reference)
    assert right.passed and not right.suspicious, right
    zeros = {"O": np.zeros(problem.q_shape, np.float16)}
    wrong = hold(zeros, reference, error_budget(problem, inputs, reference, NUMERICS))
    # Uniform values have one sign, and what is cut off adds up.
    assert wrong.error_over_expected > (1.2 if regime == "uniform" else least)


PLANTED = {
    "V's scale left out by one power": {"scale_of_v": 0.5},
    "keys of V in another order": {"in_order": False},
    "sums cut off to 9 bits": {"bits": 9},
    "scales too large by 2^12": {"coarser": 12},
}
PROBLEM = Problem(heads=1, q_len=40, kv_len=70, dtype="bfloat16")


@pytest.mark.parametrize("bug", PLANTED)
def test_mistakes_are_beyond_the_budget_somewhere(bug: str):
    regimes = ("normal", "rising", "needle", "uniform", "offset", "hot")
    problems = (PROBLEM, dataclasses.replace(PROBLEM, kv_len=1000, q_len=5, scale=1.0))
    assert not all(judge(p, regime, **PLANTED[bug]).passed for p in problems for regime in regimes)


def test_losing_many_small_weights_is_detected():
    # One key has e^7.5 times the weight of each of 299 others: half of the smallest number of e4m3, without the offset.
    problem = Problem(heads=1, q_len=5, kv_len=300, head_dim=32, dtype="float16", scale=1.0)
    shapes = {"Q": problem.q_shape, "K": problem.kv_shape, "V": problem.kv_shape}
    inputs = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
    inputs["Q"][..., 0], inputs["K"][:, :, 0, 0], inputs["V"][:, :, 1:] = 1, 7.5, 1
    reference = attention(problem, inputs)
    assert held(problem, inputs, reference).passed
    assert not held(problem, inputs, reference, offset=0).passed


@pytest.mark.parametrize("kv_len", [70, 300])
def test_a_right_kernel_uses_a_fair_part_of_its_budget(kv_len: int):
    assert judge(dataclasses.replace(PROBLEM, kv_len=kv_len), "normal").error_over_budget > 0.05


def test_scales_are_the_least_powers_of_two_that_leave_nothing_beyond_448():
    problem = Problem(batch=1, heads=4, q_len=2, kv_len=2, head_dim=4, dtype="float32")
    inputs = {name: np.zeros(problem.kv_shape, np.float32) for name in "QKV"}
    inputs["V"][0, :, 1, 0] = 448, 449, 0, 2.0**-120
    inputs["V"][0, :, 0, 1] = 17, 17, 0, 17 * 2.0**-130
    inputs["V"][0, 0, 0, 2] = np.inf
    (block,) = blocks_of(problem, inputs)
    v = rounded_factors(problem, block, inputs).block.v[0]
    assert v[:, 1, 0].tolist() == [448, 448, 0, 2.0**-120]  # of two neighbours of 224.5 the even one
    assert v[:, 0, 1].tolist() == [16, 16, 0, 16 * 2.0**-130]
    assert np.isinf(v[0, 0, 2])


def test_the_scale_of_q_is_that_of_all_rows_also_in_a_part():
    problem = Problem(heads=2, q_len=50, kv_len=20, head_dim=8, dtype="float32")
    inputs = draw_inputs(problem, "normal", 1)
    inputs["Q"][0, 1, 0, 0] = 1e8  # elements of other rows are 0 beside it
    whole = error_budget(problem, inputs, attention(problem, inputs), NUMERICS)
    part = Part((slice(0, 1), slice(1, 2), slice(30, 50)), "some rows")
    some = error_budget(problem, inputs, attention(problem, inputs, part), NUMERICS, part)
    np.testing.assert_allclose(some["O"].allowed, whole["O"].allowed[:1, 1:2, 30:50], rtol=1e-3)
    assert some["lse"].allowed.max() > 1


def test_what_weights_and_sums_would_say_otherwise_is_refused():
    for more in ({"weights": "float32"}, {"sums": "nearest"}):
        with pytest.raises(PluginError, match="P is then a factor, and tensor cores truncate"):
            Numerics(factors="e4m3", **more)
    with pytest.raises(PluginError, match="choose problem or e4m3"):
        Numerics(factors="e5m2")
