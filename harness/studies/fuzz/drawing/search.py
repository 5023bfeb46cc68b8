"""A Hypothesis search that steers towards large errors relative to the budget, and can run in any process.

The cases of a search depend only on its own fields and on the answers to its own cases, not on other searches or on the
modules that its process has loaded. So searches can run concurrently, on other machines, and repeatedly.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings, target
from hypothesis.internal import constants_ast
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

from harness.model.cases.build import Build
from harness.model.cases.case import Case
from harness.model.operation import Operation, operation_named

FEWEST_DRAWN = 20
"""Minimum number of examples per run of Hypothesis, which always begins with the plainest example."""
SMALLEST_RATIO = 1e-9
"""The target value for an error of 0."""

CaseResult = tuple[bool, float | None]
"""Whether a case fails, and its error over budget if known."""


class _Found(Exception):
    """The case fails. Every failure raises this one exception, so that Hypothesis shrinks all kinds alike."""


# Not derived from `Exception`, which Hypothesis would treat as a failure.
class _Over(BaseException):
    """The requested number of examples was reached."""


@dataclass(frozen=True)
class Search:
    """The parameters of a search."""

    operation: str
    builds: tuple[Build, ...]
    """Builds of its examples."""
    examples: int
    """Number of distinct examples; fewer if there are no others."""
    seed: int
    """The campaign's seed."""
    number: int
    """Index of this search within the campaign, from 1."""
    most_tiles: int | None
    """Maximum number of tiles, as in `CampaignSettings`."""
    checks: tuple[str, ...]
    """Properties that are checked in a share of the examples."""
    takes: tuple[str, ...]
    """Problem features that the variant supports."""
    fails_in: tuple[str, ...]
    """Regimes in which the variant declares that it fails."""
    plainest_is_known: bool = False
    """Whether an earlier search began with the same plainest example, so that this one skips it."""

    def run(self, check: Callable[[Case], CaseResult]) -> None:
        """Call `check` on one case after the other. If one fails, Hypothesis shrinks it with more calls."""
        met: set[Case] = set()
        failed = False

        def example(case: Case) -> None:
            nonlocal failed
            if not failed:
                if len(met) >= self.examples:
                    raise _Over
                met.add(case)
            fails, ratio = check(case)
            if fails:
                failed = True
                raise _Found
            if ratio is not None and not failed:
                target(math.log10(max(ratio, SMALLEST_RATIO)))

        # Hypothesis draws some cases twice, in different ways. Repeated cases do not count; more are drawn, until there
        # are no new ones.
        for attempt in itertools.count():
            before = len(met)
            self._explore(attempt, self.examples - before, example)
            if failed or len(met) >= self.examples or len(met) == before:
                return

    def _explore(self, attempt: int, examples: int, example: Callable[[Case], None]) -> None:
        is_plainest = self.plainest_is_known

        @settings(
            max_examples=max(examples, FEWEST_DRAWN),
            phases=(Phase.generate, Phase.target, Phase.shrink),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
        )
        @seed(hash((self.seed, self.number, attempt) if attempt else (self.seed, self.number)))
        @given(case=self._strategy())
        def draw(case: Case) -> None:
            nonlocal is_plainest
            if is_plainest:
                is_plainest = False
                return
            example(case)

        with no_constants_of_modules(), contextlib.suppress(_Found, _Over):
            draw()

    def _strategy(self) -> SearchStrategy[Case]:
        operation = operation_named(self.operation)
        cases = operation.cases(self.builds, self.most_tiles, self.checks, self.takes)
        if not self.fails_in:
            return cases
        return cases.filter(lambda case: not is_declared(case, self.fails_in, operation))


def is_declared(case: Case, fails_in: tuple[str, ...], operation: Operation) -> bool:
    """Whether a variant that declares failures in these regimes may fail on the case."""
    return bool(fails_in) and (case.regime in fails_in or operation.leaves_regime(case))


@contextlib.contextmanager
def no_constants_of_modules() -> Iterator[None]:
    """A context manager that makes Hypothesis's draws independent of the loaded modules.

    From version 6.131 on, Hypothesis sometimes draws numbers that occur in the source of modules loaded in the process.
    It has no setting to disable this.
    """
    theirs = getattr(providers, "_get_local_constants", None)
    if theirs is None:
        yield
        return
    none = constants_ast.Constants()
    providers.CONSTANTS_CACHE.cache.clear()
    providers._get_local_constants = lambda: none
    try:
        yield
    finally:
        providers._get_local_constants = theirs
        providers.CONSTANTS_CACHE.cache.clear()
