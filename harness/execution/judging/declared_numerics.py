"""Checks that a kernel's code matches those of its declared numerics that widen the error budget.

Declarations that narrow a budget are enforced by the budget itself: a kernel that violates them fails. A declaration
that widens it has to be visible in the code, or any kernel could declare its way past the check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from harness.execution.protocol import Execution
from harness.model.numerics import Numerics
from harness.model.problem import BaseProblem
from harness.ptx.arithmetic import Arithmetic

_arithmetic_of = functools.lru_cache(maxsize=64)(Arithmetic.of)


def combined_arithmetic(execution: Execution) -> Arithmetic | None:
    """The arithmetic of all launches' kernels together; None if the code of one is unknown."""
    ptx = {launch.ptx for launch in execution.launches}
    if None in ptx or not ptx:
        return None
    return Arithmetic.combined([_arithmetic_of(text) for text in ptx if text is not None])


def contradiction(numerics: Numerics, problem: BaseProblem, execution: Execution) -> str | None:
    """A declaration that widens the budget and is not in the code; None if there is none or the code is unknown."""
    # A scaled Q that another launch reads is only stored, as O is.
    widens = list(_widening(numerics, problem, asks_of_q=len(execution.launches) == 1))
    arithmetic = combined_arithmetic(execution) if widens else None
    if arithmetic is None:
        return None
    missing = [f"{field}: no kernel {does}" for field, does, is_shown in widens if not is_shown(arithmetic)]
    if not missing:
        return None
    return f"its code does not do what its numerics declare: {'; '.join(missing)}; leave that out of Numerics(...)"


def _widening(
    numerics: Numerics, problem: BaseProblem, asks_of_q: bool
) -> Iterable[tuple[str, str, Callable[[Arithmetic], bool]]]:
    """Declarations that widen the budget: name, required operation, and whether an `Arithmetic` shows it."""
    if numerics.factors == "e4m3":
        yield 'factors="e4m3"', "converts to e4m3 or multiplies it", lambda code: code.e4m3
    if numerics.cubic_exp:
        yield "cubic_exp=True", "shifts an integer to a float32's exponent", lambda code: code.shifts_exponents
    if headroom := numerics.headroom:
        yield f"headroom={headroom}", f"has the literal {headroom}.0", lambda code: headroom in code.float_literals
    if numerics.scaled_q and asks_of_q and any(tensor.dtype != "float32" for tensor in problem.inputs):
        yield (
            f"scaled_q={numerics.scaled_q}",
            "rounds a value to 16 bits and then uses it",
            lambda code: code.rounds_to_16_bits,
        )
