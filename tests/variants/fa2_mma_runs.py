"""Runs of `fa2-mma` in both languages, held against the answer and the claim."""

from __future__ import annotations

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from lanes import is_exhaustive

from harness.model.discovery import discover
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

VARIANTS = tuple(variant for variant in discover().registry if variant.algorithm == "fa2-mma")
EXECUTOR = emulator()


def skip_further_compilation(variant: Variant, problem: Problem) -> None:
    """Masks that are no band are a kernel of their own, which takes Numba long."""
    if not (problem.mask.is_band or variant.backend == "cupy" or is_exhaustive()):
        pytest.skip("in the exhaustive lane")


def assert_right(variant: Variant, problem: Problem, inputs: dict[str, np.ndarray], **tile: TileSizes) -> None:
    """The answer is right, and the bytes are those that are claimed."""
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference, variant.numerics)
    execution = EXECUTOR.run(problem, variant.plan(problem, **tile), inputs)
    result = hold(execution.outputs, reference, budget)
    assert result.passed, result.reason
    assert not result.suspicious
    assert variant.claim is not None
    claim = variant.claim(problem, **tile)
    assert (execution.read_bytes, execution.write_bytes) == (claim.read_bytes, claim.write_bytes)
