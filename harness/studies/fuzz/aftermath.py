"""What is looked into once a failure is shrunk: whether it repeats, how it looks with room, and at which lengths.

None of it changes that the variant failed. What the harness itself fails at here is listed and costs no more than that.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harness.model.build import Builds
from harness.model.case import Case
from harness.model.operation import Operation
from harness.model.property import SANITIZER
from harness.studies.fuzz.examiners import Examiners
from harness.studies.fuzz.finding import CRASH, TIMEOUT, Answer, Finding
from harness.studies.fuzz.lengths import LengthsTried, case_at, try_lengths
from harness.studies.fuzz.recognition import MOST_FLOPS
from harness.support.errors import SandboxError, WorkersGone
from harness.support.exception_place import place_in_harness

OUT_OF_BOUNDS = "out of bounds"
"""A kind of `KernelFault`, which a smaller overrun may have come before."""
SHARE_OF_SHRINKING = 0.15
"""How long other lengths are tried at most, of the time that shrinking may take, on top of it."""
Failing = tuple[Case, Finding]


@dataclass
class HarnessFaults:
    """What the harness itself failed at: listed beside the verdict, and never taken for the variant's mistake."""

    texts: dict[str, None] = field(default_factory=dict)
    """One line each, in the order in which they were met first."""

    def add(self, text: str) -> None:
        """One more, unless it was met before."""
        self.texts[text] = None

    @contextlib.contextmanager
    def listed(self, doing: str) -> Iterator[None]:
        """What is raised meanwhile is listed, and left at that."""
        try:
            yield
        except WorkersGone:
            raise
        except SandboxError as error:
            self.add(f"{doing}: {error}")
        except Exception as error:
            self.add(f"{doing}: {place_in_harness(error)}")


@dataclass(frozen=True)
class Aftermath:
    """What came of looking into a failure."""

    tiles: tuple[int, ...] = ()
    """How many tiles the smallest case has, each way."""
    takes: tuple[str, ...] = ()
    """What it has beyond the plainest one, in words."""
    repeatable: bool = False
    """Whether it failed in the same way once more, in a fresh process."""
    larger: Failing | None = None
    """One with room for a pattern that fails in the same way; None where none is known."""
    lengths: tuple[LengthsTried, ...] = ()
    """At which lengths it fails and passes."""
    sanitized: Finding | None = None
    """What the sanitizer finds in the smallest case, which may be the cause; None where it finds nothing or did not
    look."""


def look_into(
    smallest: Failing,
    operation: Operation,
    workers: Examiners,
    sizes: Builds,
    faults: HarnessFaults,
    *,
    shrink_seconds: float,
    sanitizes: bool,
    known: Mapping[Case, Answer],
) -> Aftermath:
    """Run the smallest case once more and, where there are `shrink_seconds`, cases around it.

    `sanitizes`: run it under the sanitizer, too, where that may show the cause. Answers that are `known` are used.
    """
    case, finding = smallest
    tiles: tuple[int, ...] = ()
    takes: tuple[str, ...] = ()
    repeatable, larger = False, None
    lengths: tuple[LengthsTried, ...] = ()
    with faults.listed("saying what the smallest case takes"):
        tiles = sizes.of(case).tiles(case.problem)
        takes = tuple(operation.peculiarities(case, tiles))
    with faults.listed("running the smallest case in a fresh process"):
        workers.end()
        again = workers.ask(case).finding
        repeatable = again is not None and again.kind == finding.kind
    if not shrink_seconds:
        return Aftermath(tiles, takes, repeatable)

    def ask(asked: Case) -> Answer:
        answer = known.get(asked)
        return workers.ask(asked) if answer is None else answer

    def expect(asked: Case) -> None:
        if asked not in known:
            workers.expect(asked)

    # What ends or hangs its process costs too much time to be repeated many times.
    if finding.kind not in (CRASH, TIMEOUT):
        with faults.listed("trying other lengths"):
            lengths = try_lengths(operation.probed_axes(case, sizes), ask, expect, SHARE_OF_SHRINKING * shrink_seconds)
        with faults.listed("trying other lengths"):
            workers.forget()
    with faults.listed("enlarging the smallest case"):
        for enlarged in _larger_cases(case, operation, sizes, lengths):
            found = ask(enlarged).finding
            if found is not None and found.kind == finding.kind:
                larger = enlarged, found
                break
    sanitized = None
    may_be_an_overrun = finding.wrong is not None or finding.kind == OUT_OF_BOUNDS
    if sanitizes and may_be_an_overrun and case.check is None and case.problem.flops <= MOST_FLOPS:
        with faults.listed("running the smallest case under the sanitizer"):
            sanitized = workers.ask(dataclasses.replace(case, check=SANITIZER)).finding
            if sanitized is not None and sanitized.kind == finding.kind:
                sanitized = None  # the same once more: the sanitizer found nothing before it
    return Aftermath(tiles, takes, repeatable, larger, lengths, sanitized)


def _larger_cases(case: Case, operation: Operation, sizes: Builds, lengths: tuple[LengthsTried, ...]) -> Iterator[Case]:
    """Cases with room for a pattern, the roomiest first: enlarged, if need be at a length that is known to fail."""
    enlarged = operation.enlarged(case, sizes)
    yield enlarged
    for roomy in (enlarged, case):
        axes = {axis.name: axis for axis in operation.probed_axes(roomy, sizes)}
        for tried in lengths:
            if tried.passes and (found := case_at(axes[tried.axis], tried.fails[-1])) is not None:
                yield found
