"""Each property of paged attention holds for a right kernel and is violated by one that breaks just that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from trials import trial_of

from harness.model.cases.property import Arrays
from harness.model.operation import draw_inputs, operation_named
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.paged_attention.properties import PROPERTIES

PROBLEM = PagedProblem(lengths=(3, 40, 0, 20), heads=2, kv_heads=1, head_dim=4, prefix=16, dtype="float32")
Kernel = Callable[[PagedProblem, Arrays], Arrays]


def right(problem: PagedProblem, inputs: Arrays) -> Arrays:
    answer = operation_named("paged-attention").answer(problem, inputs)
    return {name: array.astype(np.float32) for name, array in answer.items()}


def violation(name: str, kernel: Kernel, problem: PagedProblem = PROBLEM, regime: str = "normal") -> str | None:
    inputs = draw_inputs(problem, regime, 1)
    return PROPERTIES[name].violation(trial_of(problem, inputs, kernel))


def needs_company(problem: PagedProblem, inputs: Arrays) -> Arrays:
    made = right(problem, inputs)
    return {**made, "O": made["O"] * np.float32(1 if problem.sequences > 1 else 1 + 1e-6)}


def looks_at_places(problem: PagedProblem, inputs: Arrays) -> Arrays:
    made = right(problem, inputs)
    return {**made, "lse": made["lse"] + np.float32(1e-3) * (inputs["table"][:, :1, None] % 2)}


def changes_its_mind() -> Kernel:
    calls = []

    def kernel(problem: PagedProblem, inputs: Arrays) -> Arrays:
        calls.append(problem)
        made = right(problem, inputs)
        return {**made, "O": made["O"] + np.float32(len(calls) > 1)}

    return kernel


@pytest.mark.parametrize("regime", ["normal", "non-finite", "far-negative"])
@pytest.mark.parametrize("name", PROPERTIES)
def test_a_right_kernel_has_it(name: str, regime: str):
    assert violation(name, right, regime=regime) is None


@pytest.mark.parametrize("name", PROPERTIES)
def test_also_of_one_sequence_that_fills_its_pool_and_of_none(name: str):
    assert violation(name, right, PagedProblem(lengths=(40,), pages=3)) is None
    assert violation(name, right, PagedProblem(lengths=(0, 0))) is None


@pytest.mark.parametrize(
    ("name", "kernel", "said"),
    [
        ("determinism", changes_its_mind(), "a second run on the same inputs"),
        ("batch-invariance", needs_company, "sequence 1 on its own, the first at sequence 1"),
        ("page-order", looks_at_places, "the same pages at other places"),
    ],
)
def test_a_kernel_that_breaks_it_is_found(name: str, kernel: Kernel, said: str):
    assert said in (violation(name, kernel) or "")


def test_every_page_moves():
    seen = []

    def remembers(problem: PagedProblem, inputs: Arrays) -> Arrays:
        seen.append(inputs["table"].copy())
        return right(problem, inputs)

    violation("page-order", remembers)
    used = [(sequence, place) for sequence, pages in enumerate(PROBLEM.sequence_pages) for place in range(pages)]
    assert all(seen[0][at] != seen[1][at] for at in used)
