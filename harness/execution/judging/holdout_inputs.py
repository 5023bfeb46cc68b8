"""Checks answers with inputs of a random seed: an answer memorized for a known seed is wrong for them.

The seed cannot be predicted, and no option sets it. A failure reports it, so that `--seed` reproduces it. The answer to
a large problem is checked at a few places, to limit the oracle's time.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cached_property

from harness.execution.judging.question import Question
from harness.execution.judging.spot_check import check_spots, choose_spots
from harness.execution.protocol import Executor
from harness.model.operation import draw_inputs
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import SandboxError


class HoldoutInputs:
    """A problem with inputs of a fresh seed and its answer (at sample places if large), shared by all variants."""

    def __init__(self, problem: BaseProblem, regime: str, seed: int | None = None) -> None:
        """`seed` is for tests; None draws a random one."""
        self.problem, self.regime = problem, regime
        self.seed = secrets.randbelow(2**31) if seed is None else seed

    @cached_property
    def _spots(self) -> Sequence[Question]:
        return choose_spots(self.problem, draw_inputs(self.problem, self.regime, self.seed))

    def failure(self, variant: Variant, plan: Plan, executor: Executor) -> str | None:
        """What is wrong with the plan's answer to these inputs, with the seed; None if it is right.

        An error above what is expected of a correct kernel is a failure here even within the budget: it may be the only
        sign of an answer looked up for other inputs.
        """
        try:
            outputs = executor.run(self.problem, plan, self._spots[0].inputs).outputs
            check = check_spots(self._spots, outputs, variant.numerics)
            reason = check.reason
            if reason is None and not check.error_over_expected <= 1:
                reason = f"the error is {check.error_over_expected:.3g} times what is expected of a correct kernel"
        except SandboxError as error:
            reason = str(error)
        return None if reason is None else f"correct for the given seed, but not with --seed {self.seed}: {reason}"
