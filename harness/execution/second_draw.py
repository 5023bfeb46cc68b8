"""Other inputs than those that were named: an answer that was memorised for a known seed is not right for them.

Nobody can know the seed before it is drawn, and no option sets it. A failure tells it, so that `--seed` repeats it. The
answer to a large problem is checked at a few places, so that the oracle does not add to the time of the second run.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cached_property

from harness.execution.protocol import Executor
from harness.execution.question import Question
from harness.execution.spot_check import check_spots, choose_spots
from harness.model.operation import draw_inputs
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import SandboxError


class SecondDraw:
    """A problem with inputs of a fresh seed, drawn and answered (at places if it is large) once for all variants."""

    def __init__(self, problem: BaseProblem, regime: str, seed: int | None = None) -> None:
        """`seed`: for tests; None draws one."""
        self.problem, self.regime = problem, regime
        self.seed = secrets.randbelow(2**31) if seed is None else seed

    @cached_property
    def _spots(self) -> Sequence[Question]:
        return choose_spots(self.problem, draw_inputs(self.problem, self.regime, self.seed))

    def failure(self, variant: Variant, plan: Plan, executor: Executor) -> str | None:
        """What is wrong with the plan's answer to these inputs, and the seed that shows it; None where nothing is.

        An error above what is expected of a correct kernel is wrong here, even within the budget: of a table of answers
        to other inputs that may be all there is to see.
        """
        try:
            outputs = executor.run(self.problem, plan, self._spots[0].inputs).outputs
            check = check_spots(self._spots, outputs, variant.numerics)
            reason = check.reason
            if reason is None and not check.error_over_expected <= 1:
                reason = f"the error is {check.error_over_expected:.3g} times what is expected of a correct kernel"
        except SandboxError as error:
            reason = str(error)
        return (
            None if reason is None else f"right for the seed that was named, but not with --seed {self.seed}: {reason}"
        )
