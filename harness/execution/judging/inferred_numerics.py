"""For a variant that declares no numerics: infers the strictest ones that its code permits, and its error under them.

Without a declaration, a variant has the budget of any correct kernel, and errors of that size pass, such as a
denominator that is slightly too large. So its error is also compared with that expected of a kernel that rounds only
where the code requires it. The verdict is not affected, since the code may round where this is not visible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from harness.execution.attempt import Attempt
from harness.execution.judging.declared_numerics import combined_arithmetic
from harness.execution.judging.question import ANY_KERNEL, Question
from harness.model.numerics import Numerics
from harness.model.operation import operation_of
from harness.model.plan import ELEMENT_BYTES, Plan
from harness.ptx.arithmetic import Arithmetic


@dataclass(frozen=True)
class InferredNumerics:
    """Inferred numerics of a variant that declares none."""

    strictest: str
    """The strictest possible declaration, as it would be written."""
    error_over_expected: float
    """Largest ratio of error to the error expected under that declaration, over all outputs."""


def inferred_numerics(done: Attempt, question: Question) -> InferredNumerics | None:
    """Infer the numerics of a correct answer's variant.

    None if the variant declares some or is wrong, its operation uses none, or its code is unknown.
    """
    used = operation_of(done.problem).numerics_used(done.problem)
    if done.variant.numerics != ANY_KERNEL or not used or done.plan is None or done.execution is None:
        return None
    if done.accuracy is None or not done.accuracy.passed:
        return None
    arithmetic = combined_arithmetic(done.counted or done.execution)
    if arithmetic is None:
        return None
    numerics = strictest(arithmetic, done.plan, used)
    held = question.check(done.execution.outputs, numerics, done.execution.unwritten)
    return InferredNumerics(_written(numerics), held.error_over_expected)


def strictest(arithmetic: Arithmetic, plan: Plan, used: Sequence[str]) -> Numerics:
    """The strictest numerics that a plan of such kernels could declare, in the fields that its operation uses."""
    scratch = any(ELEMENT_BYTES[buffer.dtype] == 2 for buffer in plan.buffers)
    stored = "problem" if scratch or (arithmetic.narrows and not arithmetic.tensor_cores) else "float32"
    known = {
        "scores": stored,
        # Tensor cores multiply 16-bit weights and accumulate scores in float32.
        "weights": "problem" if arithmetic.tensor_cores else stored,
        "functions": arithmetic.functions,
        "tanh": "fast" if arithmetic.tanh_approx else "accurate",
        "sums": "truncated" if arithmetic.tensor_cores else "nearest",
        "one_score": True,
        "divides_last": True,
        "factors": "e4m3" if arithmetic.e4m3 and arithmetic.tensor_cores else "problem",
    }
    return Numerics(**{name: value for name, value in known.items() if name in used})  # type: ignore[arg-type]


def _written(numerics: Numerics) -> str:
    said = {f.name: getattr(numerics, f.name) for f in dataclasses.fields(numerics)}
    words = [f"{name}={value!r}" for name, value in said.items() if value != getattr(ANY_KERNEL, name)]
    return f"Numerics({', '.join(words)})".replace("'", '"')
