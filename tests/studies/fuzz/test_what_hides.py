"""Mistakes that no campaign met once, each a right answer with one mistake in NumPy: how soon a usual campaign dies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from lanes import exhaustive, thorough_unless
from no_kernel import NoKernel

from harness.execution.judging.question import Question
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.model.operation import operation_of
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.problem import COMPILED_FEATURES
from harness.studies.fuzz import campaign
from harness.studies.fuzz.campaign import CampaignSettings, run_campaign
from harness.studies.fuzz.examining import chosen_examiners
from harness.studies.fuzz.finding import WRONG_ANSWER, Answer, Finding

pytestmark = pytest.mark.compiles(False)

Arrays = dict[str, np.ndarray]
Mistake = Callable[[Any, Arrays], "tuple[Any, Arrays] | np.ndarray | None"]
"""Problem and inputs -> those of which it gives the answer instead, or that answer; None: its answer is right."""


def without(**fields: object) -> Mistake:
    """Forgets a feature."""

    def mistake(p: Any, inputs: Arrays) -> tuple[Any, Arrays] | None:
        other = dataclasses.replace(p, **fields)
        return None if other == p else (other, {tensor.name: inputs[tensor.name] for tensor in other.inputs})

    return mistake


def no_diagonal_tile(p: Any, inputs: Arrays) -> np.ndarray | None:
    """Rows of causal squares lose their last tile of 16 keys, but for those of the first tile."""
    if p.mask.text != "causal" or p.q_len != p.kv_len or p.q_len <= 64 or p.q_len % 16:
        return None
    O = answer(p, inputs)
    for tile in range(1, p.q_len // 16):
        rows, keys = slice(16 * tile, 16 * tile + 16), 16 * tile
        cut = dataclasses.replace(p, mask="none", q_len=16, kv_len=keys)
        parts = {"Q": inputs["Q"][:, :, rows], "K": inputs["K"][:, :, :keys], "V": inputs["V"][:, :, :keys]}
        O[:, :, rows] = answer(cut, {**inputs, **parts})
    return O


def first_keys(limit: int) -> Mistake:
    """No more keys than so many: 32 splits of some size."""

    def mistake(p: Any, inputs: Arrays) -> tuple[Any, Arrays] | None:
        if p.kv_len <= limit or p.mask.parts:
            return None
        cut = {name: inputs[name][:, :, :limit] for name in "KV"}
        return dataclasses.replace(p, kv_len=limit), {**inputs, **cut}

    return mistake


def numbers_of_16_bits(p: Any, inputs: Arrays) -> tuple[Any, Arrays] | None:
    """A page's number loses what is beyond 16 bits."""
    if p.pool_pages <= 2**16:
        return None
    is_page = inputs["table"] < p.pool_pages
    return p, {**inputs, "table": np.where(is_page, inputs["table"] % 2**16, inputs["table"]).astype(np.int32)}


def answer(p: Any, inputs: Arrays) -> np.ndarray:
    found: Mapping[str, np.ndarray] = operation_of(p).answer(p, inputs)
    O: np.ndarray = found["O"].copy()
    return O


class TooLate(BaseException):
    """A mistake lives for more examples than are run here."""


class NumpyWorkers(NoKernel):
    """Answers in NumPy, with a mistake."""

    mistake: Mistake
    most: int

    def ask(self, case: Case) -> Answer:
        asked = type(self).asked
        if len(asked) >= type(self).most:
            raise TooLate
        asked.append(case)
        if case.check == SANITIZER:
            return Answer()
        with np.errstate(all="ignore"):
            inputs = case.inputs()
            made = type(self).mistake(case.problem, inputs)
            if made is None:
                return Answer(error_over_budget=0.1)
            wrong = made if isinstance(made, np.ndarray) else answer(*made)
            accuracy = Question.pose(case.problem, inputs).check({"O": wrong.astype(inputs["Q"].dtype)})
        return Answer(None if accuracy.passed else Finding(WRONG_ANSWER, accuracy.reason or ""))


def found_after(
    mistake: Mistake, most: int, takes: tuple[str, ...], operation: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> int | None:
    """How many examples a usual campaign takes; None: more than `most`."""
    asked: list[Case] = []
    fields = {"asked": asked, "mistake": staticmethod(mistake), "most": most}
    monkeypatch.setattr(chosen_examiners, "Workers", type("Workers", (NumpyWorkers,), fields))
    monkeypatch.setattr(campaign._Campaign, "_simplify", lambda self: None)
    monkeypatch.setattr(campaign._Campaign, "conclude", lambda self: self.first)
    variant = Variant(
        name="wrong", operation=operation, plan=lambda p: Plan(()), takes=takes,
        supports=lambda p: "rows are too long" if p.head_dim > 128 else None,
    )  # fmt: skip
    try:
        found = run_campaign(
            "wrong", lambda: variant, how=CampaignSettings(seed=seed, shrink_seconds=0.0), operation=operation
        )
    except TooLate:
        return None
    assert found is not None
    return asked.index(found[0]) + 1


EVERYTHING = ("causal", "window", *COMPILED_FEATURES)
MISTAKES: dict[str, tuple[Mistake, int, tuple[str, ...], str]] = {
    "the tile on the diagonal of causal squares": (no_diagonal_tile, 20, ("causal",), "attention"),
    "sinks, which are all that it takes": (without(sinks=False), 40, ("causal", "sinks"), "attention"),
    "softcap, which is all that it takes": (without(softcap=None), 40, ("causal", "softcap"), "attention"),
    "softcap, of all features": (without(softcap=None), 40, EVERYTHING, "attention"),
    "bias, which is all that it takes": (without(bias=None), 40, ("causal", "bias"), "attention"),
    "bias, of all features": (without(bias=None), 40, EVERYTHING, "attention"),
    "ALiBi, of all features": (without(alibi=False), 40, EVERYTHING, "attention"),
    "sinks, of all features": (without(sinks=False), 40, EVERYTHING, "attention"),
    "dropout, of all features": (without(dropout=0.0), 40, EVERYTHING, "attention"),
    "keys beyond 32 splits of 256": (first_keys(32 * 256), 20, ("causal",), "attention"),
    "keys beyond 32 splits of 512": (first_keys(32 * 512), 20, ("causal",), "attention"),
    "pages beyond 16 bits": (numbers_of_16_bits, 20, ("causal",), "paged-attention"),
}


@pytest.mark.parametrize("seed", [*thorough_unless(lambda seed: seed == 0, range(2)), *exhaustive(range(2, 8))])
@pytest.mark.parametrize("forgotten", MISTAKES)
def test_what_is_forgotten_is_found_soon(forgotten: str, seed: int, monkeypatch: pytest.MonkeyPatch):
    mistake, most, takes, operation = MISTAKES[forgotten]
    assert found_after(mistake, most, takes, operation, seed, monkeypatch) is not None


def test_what_is_right_is_not_found(monkeypatch: pytest.MonkeyPatch):
    assert found_after(lambda p, inputs: (p, inputs), 20, EVERYTHING, "attention", 0, monkeypatch) is None
