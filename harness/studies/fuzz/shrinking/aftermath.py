"""Analyses a minimized failure: its reproducibility, its pattern in a larger case, and the lengths at which it occurs.

The verdict is not affected. Errors of the harness during the analysis are listed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.model.operation import Operation
from harness.studies.fuzz.examining.examiners import Examiners
from harness.studies.fuzz.finding import CRASH, TIMEOUT, Answer, Finding
from harness.studies.fuzz.shrinking.failing_lengths import LengthsTried, case_at, try_lengths
from harness.studies.fuzz.shrinking.pattern import MOST_FLOPS
from harness.studies.fuzz.shrinking.simplification import needed_features
from harness.support.errors import SandboxError, WorkersGone
from harness.support.exception_place import place_in_harness

OUT_OF_BOUNDS = "out of bounds"
"""A kind of `KernelFault` that a smaller overrun may have preceded."""
SHARE_OF_SHRINKING = 0.15
"""Time limit for trying other lengths, as a fraction of the shrinking time, in addition to it."""
Failing = tuple[Case, Finding]


@dataclass
class HarnessFaults:
    """Errors of the harness itself, listed next to the verdict and never attributed to the variant."""

    texts: dict[str, None] = field(default_factory=dict)
    """One line per distinct error, in order of occurrence."""

    def add(self, text: str) -> None:
        """Add an error unless it is listed already."""
        self.texts[text] = None

    @contextlib.contextmanager
    def listed(self, doing: str) -> Iterator[None]:
        """A context manager that catches exceptions and lists them."""
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
    """The result of analysing a failure."""

    tiles: tuple[int, ...] = ()
    """Number of tiles in the smallest case, along each axis."""
    takes: tuple[str, ...] = ()
    """Features of the smallest case beyond the plainest problem, in words, without those that it fails without."""
    repeatable: bool = False
    """Whether the case failed in the same way again, in a fresh process."""
    larger: Failing | None = None
    """A larger case that fails in the same way and shows a pattern; None if none is known."""
    lengths: tuple[LengthsTried, ...] = ()
    """Lengths at which the case fails and passes."""
    sanitized: Finding | None = None
    """The sanitizer's finding in the smallest case, a possible cause; None if it has none or did not run."""


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
    """Run the smallest case again and, if there are `shrink_seconds`, cases similar to it.

    With `sanitizes`, it is also run under the sanitizer if that may show the cause. Answers in `known` are reused.
    """
    case, finding = smallest
    tiles: tuple[int, ...] = ()
    takes: tuple[str, ...] = ()
    repeatable, larger = False, None
    lengths: tuple[LengthsTried, ...] = ()
    with faults.listed("listing the features of the smallest case"):
        build = sizes.of(case)
        tiles = build.tiles(case.problem)
        takes = tuple(operation.peculiarities(case, tiles, build.assumed_tile))
    with faults.listed("running the smallest case in a fresh process"):
        workers.end()
        again = workers.ask(case).finding
        repeatable = again is not None and again.kind == finding.kind
    if not shrink_seconds:
        return Aftermath(tiles, takes, repeatable)

    def ask(case: Case) -> Answer:
        answer = known.get(case)
        return workers.ask(case) if answer is None else answer

    def expect(case: Case) -> None:
        if case not in known:
            workers.expect(case)

    def fails(case: Case) -> bool:
        found = ask(case).finding
        return found is not None and found.kind == finding.kind

    # A case that kills or hangs its process takes too long to be repeated many times.
    if finding.kind not in (CRASH, TIMEOUT):
        with faults.listed("finding what the smallest case needs"):
            takes = needed_features(case, tiles, sizes, fails)
        with faults.listed("trying other lengths"):
            lengths = try_lengths(operation.probed_axes(case, sizes), ask, expect, SHARE_OF_SHRINKING * shrink_seconds)
        with faults.listed("trying other lengths"):
            workers.cancel_all()
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
                sanitized = None  # the same case again: the sanitizer had no finding before
    return Aftermath(tiles, takes, repeatable, larger, lengths, sanitized)


def _larger_cases(case: Case, operation: Operation, sizes: Builds, lengths: tuple[LengthsTried, ...]) -> Iterator[Case]:
    """Larger cases, the largest first: enlarged, if need be at a length that is known to fail."""
    enlarged = operation.enlarged(case, sizes)
    yield enlarged
    for roomy in (enlarged, case):
        axes = {axis.name: axis for axis in operation.probed_axes(roomy, sizes)}
        for tried in lengths:
            if tried.passes and (found := case_at(axes[tried.axis], tried.fails[-1])) is not None:
                yield found
