"""Estimates the time and memory that a command needs, and warns or raises an error before it begins."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.execution.run_settings import RunSettings
from harness.model.problem import BaseProblem
from harness.options.standard_streams import complain
from harness.support.errors import UsageError
from harness.support.memory import available_bytes
from harness.support.progress import duration_in_words

BYTES_PER_ELEMENT = 20
"""Memory in bytes per element of inputs and outputs: the inputs as drawn and in float64, the answer, and its error
budget. The peak of `compare` is 22 bytes or more (260,000 rows of 64 elements, and 20,000 heads of 8 rows)."""
REFERENCE_FLOPS_PER_SECOND = 1e10
"""Speed of the float64 answer, computed with NumPy's matrix products."""
EMULATED_FLOPS_PER_SECOND = 1e9
"""Speed of one core that emulates kernels without tensor cores. Kernels with tensor cores run about ten times as
fast."""
LONG_SECONDS = 120.0
"""No message is printed for commands that take less time."""


def check_size(settings: RunSettings, problems: Iterable[BaseProblem], variants: int, *, emulated: bool = True) -> None:
    """Report on standard error if running this many variants on the problems takes minutes. Call before any work.

    `emulated` states whether the variants run on the emulator; on a GPU, only the reference answer takes long. Raises
    `UsageError` with the required and available bytes if a problem does not fit into memory.
    """
    problems = tuple(problems)
    for problem in problems:
        require_memory(problem)
    flops = float(sum(problem.flops for problem in problems))
    seconds = flops / REFERENCE_FLOPS_PER_SECOND
    if emulated:
        seconds += variants * flops / (EMULATED_FLOPS_PER_SECOND * max(1, settings.cores))
    if seconds > LONG_SECONDS:
        where = f", {variants} {'variant' if variants == 1 else 'variants'} on the emulator" if emulated else ""
        complain(
            f"this takes about {duration_in_words(seconds)} ({flops:.1e} floating-point operations{where}); "
            "smaller sizes or fewer variants take less, Ctrl-C ends it"
        )


def require_memory(problem: BaseProblem) -> None:
    """Raise `UsageError` with the required and available bytes if the problem does not fit into memory."""
    elements = sum(math.prod(tensor.shape) for tensor in problem.tensors)
    needed, available = BYTES_PER_ELEMENT * elements, available_bytes()
    if needed > available:
        sizes = ", ".join(f"{tensor.name} {tensor.size_bytes:,}" for tensor in problem.tensors)
        raise UsageError(
            f"not enough memory for this problem: it takes about {needed:,} bytes, and {available:,} are available "
            f"(bytes of its tensors: {sizes}); choose smaller sizes"
        )
