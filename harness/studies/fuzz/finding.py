"""What is wrong with one case, and what one examination of a case comes to. Plain data, small enough for a pipe."""

from __future__ import annotations

from dataclasses import dataclass

from harness.execution.accuracy import Element

WRONG_ANSWER, SUSPICIOUS = "wrong answer", "suspicious"
SECOND_RUN = "wrong second run"
NUMERICS = "declared numerics"
CRASH, TIMEOUT = "crash", "timeout"
NO_PLAN, NO_COMPILATION, ERROR = "plan error", "compile error", "error"
# Further kinds: `wrong lse` and the like for optional outputs, those of `KernelFault.KINDS`, the names of properties.


@dataclass(frozen=True)
class Finding:
    """What is wrong."""

    kind: str
    """A word or two, such as `wrong answer`, `out of bounds`, `timeout`, `batch-invariance`."""
    reason: str
    """In full."""
    first: Element | None = None
    """The first wrong element, in the order in which the output is stored; the worst one of what is suspicious."""
    wrong: int | None = None
    """How many elements are wrong, of `first.output`."""
    elements: int | None = None
    """Of how many."""
    pattern: str | None = None
    """Where they lie and what they have in common."""

    @property
    def is_of_optional_output(self) -> bool:
        """Whether an optional output such as lse is wrong, and the main one is not known to be."""
        return self.first is not None and self.kind == f"wrong {self.first.output}"


@dataclass(frozen=True)
class Answer:
    """What the examination of one case came to."""

    finding: Finding | None = None
    """None where nothing is known to be wrong."""
    refusal: str | None = None
    """The variant's reason for not taking the problem."""
    error_over_budget: float | None = None
    """Largest ratio over all outputs; None where it did not get that far."""
    fault: str | None = None
    """What the harness itself failed at, which says nothing about the variant; beside a finding, in describing it."""
    undecided: str | None = None
    """The trivial wrong answer that would have passed, too; None where the case decides."""
    broken: bool = False
    """The process that says this is of no further use, as after a fault on a GPU."""
