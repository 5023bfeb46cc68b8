"""What declaring would show of a variant that declares no numerics: its error beside the strictest its code could keep.

Whatever a correct kernel may do is allowed to it, and mistakes of that size pass, such as a denominator that is a
little too large. So its error is held, too, to what is expected where a kernel rounds no more often than its code shows
that it must. That changes no verdict: the code may do what it does not show.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from harness.execution.attempt import Attempt
from harness.execution.declared_numerics import combined_arithmetic
from harness.execution.question import ANY_KERNEL, Question
from harness.model.numerics import Numerics
from harness.model.operation import operation_of
from harness.model.plan import ELEMENT_BYTES, Plan
from harness.ptx.arithmetic import Arithmetic


@dataclass(frozen=True)
class UndeclaredNumerics:
    """Of a variant that declares none."""

    strictest: str
    """What it could declare at most, as it would be written."""
    error_over_expected: float
    """The largest ratio of error to what would be expected then, of all outputs."""


def undeclared_numerics(done: Attempt, question: Question) -> UndeclaredNumerics | None:
    """None where the variant declares some or is wrong, its operation heeds none, or its code is unknown."""
    heeded = operation_of(done.problem).heeded(done.problem)
    if done.variant.numerics != ANY_KERNEL or not heeded or done.plan is None or done.execution is None:
        return None
    if done.accuracy is None or not done.accuracy.passed:
        return None
    arithmetic = combined_arithmetic(done.counted or done.execution)
    if arithmetic is None:
        return None
    numerics = strictest(arithmetic, done.plan, heeded)
    held = question.hold(done.execution.outputs, numerics, done.execution.unwritten)
    return UndeclaredNumerics(_written(numerics), held.error_over_expected)


def strictest(arithmetic: Arithmetic, plan: Plan, heeded: tuple[str, ...]) -> Numerics:
    """What a plan of such kernels could declare at most, in the fields that its operation heeds."""
    scratch = any(ELEMENT_BYTES[buffer.dtype] == 2 for buffer in plan.buffers)
    stored = "problem" if scratch or (arithmetic.narrows and not arithmetic.tensor_cores) else "float32"
    known = {
        "scores": stored,
        # Tensor cores multiply weights of 16 bits, and add up scores in float32.
        "weights": "problem" if arithmetic.tensor_cores else stored,
        "functions": arithmetic.functions,
        "tanh": "fast" if arithmetic.tanh_approx else "accurate",
        "sums": "truncated" if arithmetic.tensor_cores else "nearest",
        "one_score": True,
        "divides_last": True,
        "factors": "e4m3" if arithmetic.e4m3 and arithmetic.tensor_cores else "problem",
    }
    return Numerics(**{name: value for name, value in known.items() if name in heeded})  # type: ignore[arg-type]


def _written(numerics: Numerics) -> str:
    said = {f.name: getattr(numerics, f.name) for f in dataclasses.fields(numerics)}
    words = [f"{name}={value!r}" for name, value in said.items() if value != getattr(ANY_KERNEL, name)]
    return f"Numerics({', '.join(words)})".replace("'", '"')
