"""What variants declare about bits: the rest of a batch and further rows of queries do not change them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from emulators import emulator
from lanes import thorough_unless

from harness.execution.planning.variant_calls import refusal_of
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.model.arithmetic.ulps import ulps_apart
from harness.model.discovery import discover
from harness.model.invariance import BATCH, PADDING
from harness.model.operation import draw_inputs, operation_of
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.operations.mla_decode.problem import MlaProblem
from harness.operations.paged_attention.problem import PagedProblem

REGISTRY = discover().registry
FEW = ("fa2-cupy", "split-kv-cupy", "unified-max-cupy", "paged-split-kv-cupy")
PROBLEM = Problem(batch=2, heads=6, kv_heads=2, q_len=5, kv_len=150, head_dim=48, dtype="float16")
PAGED = PagedProblem(heads=6, kv_heads=2, q_len=3, lengths=(70, 17, 150), head_dim=48)
PROBLEMS: tuple[BaseProblem, ...] = (
    dataclasses.replace(PROBLEM, mask="causal"),
    dataclasses.replace(PROBLEM, q_len=1, mask="window:60,3"),
    PAGED,
    MlaProblem(heads=6, q_len=3, lengths=(70, 17, 150), latent_dim=128, dtype="float16", page_size=48),
)
PLAIN = (
    Problem(batch=2, heads=2, q_len=5, kv_len=150, head_dim=64, dtype="float16"),
    Problem(batch=2, heads=2, q_len=5, kv_len=150, head_dim=64),
)
"""For variants that take none of `PROBLEMS`."""


def differences(variant: Variant, problem: BaseProblem, kind: str) -> dict[str, float]:
    """Largest difference in ulps of each output in each changed problem, by description."""

    executor = emulator(RunSettings(arch=variant.arch or DEFAULT_SETTINGS.arch))

    def outputs(of: BaseProblem, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(executor.run(of, variant.plan(of), inputs).outputs)

    inputs = draw_inputs(problem, "normal", 3)
    first, found = outputs(problem, inputs), {}
    for change in operation_of(problem).changes(problem, inputs, kind):
        there = outputs(change.problem, dict(change.inputs))
        for name, array in first.items():
            apart = ulps_apart(array[change.own], there[name][change.there])
            assert apart.size
            found[f"{name} {change.what}"] = float(apart.max())
    assert len(found) >= 2
    return found


def taken(variant: Variant, problem: BaseProblem) -> bool:
    return problem.operation == variant.operation and refusal_of(variant, problem) is None


OPERATIONS = ("attention", "mla-decode", "paged-attention")
VARIANTS = [v for v in REGISTRY if v.operation in OPERATIONS and v.backend in ("cupy", "numba")]
CUDA = [v for v in VARIANTS if v.backend == "cupy" and not v.algorithm.startswith("fa3")]
SLOW = [v for v in VARIANTS if v not in CUDA]
"""Variants whose kernels take long to compile."""


@pytest.mark.parametrize(
    "variant",
    # Twins have the same bits, which test_conformance.py shows.
    [*thorough_unless(lambda v: v.name in FEW, CUDA), *(pytest.param(v, marks=pytest.mark.exhaustive) for v in SLOW)],
    ids=lambda variant: variant.name,
)
def test_declared_bits_do_not_change(variant: Variant):
    kinds = {BATCH, PADDING}.intersection(variant.invariant_to)
    problems = [p for p in PROBLEMS if taken(variant, p)] or [p for p in PLAIN if taken(variant, p)][:1]
    assert problems or not kinds
    for problem in problems:
        for kind in kinds:
            found = differences(variant, problem, kind)
            assert not any(found.values()), (problem.headline, found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "kind", "fields"),
    [
        # 5 lean tiles per head, in blocks of 8 or fewer.
        ("lean-cupy", BATCH, {"kv_len": 300}),
        ("lean-cupy", PADDING, {"kv_len": 300}),
        ("fa2-mma-cupy", PADDING, {"mask": "none"}),
        # A product on tensor cores where all rows of a tile see all keys of another, else one without.
        ("split-kv-cupy", PADDING, {"mask": "causal"}),
    ],
)
def test_what_is_not_declared_does_change_bits(name: str, kind: str, fields: dict[str, object]):
    variant = REGISTRY.get(name)
    assert kind not in variant.invariant_to
    assert any(differences(variant, dataclasses.replace(PROBLEM, **fields), kind).values())  # type: ignore[arg-type]


def test_a_sequence_with_a_mask_of_its_own_is_compared_alone():
    problem = Problem(batch=2, q_len=4, kv_len=20, mask="documents:10+10/5+15")  # type: ignore[arg-type]
    inputs = draw_inputs(problem, "normal", 0)
    (change,) = operation_of(problem).changes(problem, inputs, BATCH)
    assert change.problem.batch == 1 and change.own == (slice(1, 2),)
    assert not list(operation_of(problem).changes(problem, inputs, PADDING))
