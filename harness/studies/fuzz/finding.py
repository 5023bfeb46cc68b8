"""The result of examining one case, and what is wrong with it. Plain data, small enough for a pipe."""

from __future__ import annotations

from dataclasses import dataclass

from harness.execution.judging.accuracy import Element

WRONG_ANSWER, SUSPICIOUS = "wrong answer", "suspicious"
SECOND_RUN = "wrong second run"
NUMERICS = "declared numerics"
CRASH, TIMEOUT = "crash", "timeout"
NO_PLAN, NO_COMPILATION, ERROR = "plan error", "compile error", "error"
# Further kinds: `wrong lse` and the like for optional outputs, those of `KernelFault.KINDS`, the names of properties.


@dataclass(frozen=True)
class Finding:
    """What is wrong with one case."""

    kind: str
    """A short name, such as `wrong answer`, `out of bounds`, `timeout`, `batch-invariance`."""
    reason: str
    """The full description."""
    first: Element | None = None
    """The first wrong element in memory order; for a suspicious answer, the worst element."""
    wrong: int | None = None
    """Number of wrong elements of `first.output`."""
    elements: int | None = None
    """Total number of elements of `first.output`."""
    pattern: str | None = None
    """The positions of the wrong elements and what they have in common."""
    equals: str | None = None
    """The known mistake whose result the wrong elements are, such as `equals the answer without the last key`."""

    @property
    def is_of_values(self) -> bool:
        """Whether outputs have wrong values; not a fault, a finding of the sanitizer, or a broken property."""
        return self.first is not None or self.kind in (WRONG_ANSWER, SECOND_RUN, NUMERICS)

    @property
    def is_without_run(self) -> bool:
        """Whether the kernel did not run to its end, for another reason than a faulty access."""
        return self.kind in (CRASH, TIMEOUT, NO_PLAN, NO_COMPILATION, ERROR)

    @property
    def is_of_optional_output(self) -> bool:
        """Whether an optional output such as lse is wrong, and the main one is not known to be."""
        return self.first is not None and self.kind == f"wrong {self.first.output}"


@dataclass(frozen=True)
class Answer:
    """The result of examining one case."""

    finding: Finding | None = None
    """What is wrong; None if nothing is known to be."""
    refusal: str | None = None
    """The variant's reason for not supporting the problem; None if it does."""
    error_over_budget: float | None = None
    """Largest ratio over all outputs; None if no outputs were checked."""
    fault: str | None = None
    """An error of the harness, which says nothing about the variant. It may accompany a finding, if describing that
    failed."""
    undecided: str | None = None
    """The trivial wrong answer that would have passed as well; None if the case is decisive."""
    broken: bool = False
    """Whether the answering process is unusable, as after a fault on a GPU."""
