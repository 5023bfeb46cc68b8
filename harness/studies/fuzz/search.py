"""Hypothesis's part of a campaign: a search towards errors that are large for their budget, which can run anywhere.

What a search draws depends on its own fields and on the answers to its own cases, and on nothing else: neither on what
ran before it or beside it, nor on which modules its process has loaded. So searches may run at the same time, on other
machines, and once more.
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

from harness.model.build import Build
from harness.model.case import Case
from harness.model.operation import Operation, operation_named

FEWEST_DRAWN = 20
"""Per run of Hypothesis, which begins with the plainest example every time."""
SMALLEST_RATIO = 1e-9
"""What `target` takes for an error of 0."""

Held = tuple[bool, float | None]
"""Whether a case fails, and its error over its budget where there is one."""


class _Found(Exception):
    """The case fails. All kinds are one to Hypothesis: it shrinks what raises this, and nothing else does."""


# No `Exception`, which Hypothesis would take for a failure.
class _Over(BaseException):
    """There are as many examples as there were to be."""


@dataclass(frozen=True)
class Search:
    """What is to be searched."""

    operation: str
    builds: tuple[Build, ...]
    """What its examples are of."""
    examples: int
    """How many different ones; fewer where there are no others."""
    seed: int
    """The campaign's."""
    number: int
    """Of this search within the campaign, from 1."""
    most_tiles: int | None
    """See `CampaignSettings`."""
    checks: tuple[str, ...]
    """Properties that are held in a share of the examples."""
    takes: tuple[str, ...]
    """The features of problems that the variant takes."""
    fails_in: tuple[str, ...]
    """Regimes in which it declares that it fails."""
    plainest_is_known: bool = False
    """Whether an earlier search began with the same plainest example; then this one leaves it out."""

    def run(self, hold: Callable[[Case], Held]) -> None:
        """Hold one case after the other; once one fails, Hypothesis shrinks it, holding more."""
        met: set[Case] = set()
        failed = False

        def example(case: Case) -> None:
            nonlocal failed
            if not failed:
                if len(met) >= self.examples:
                    raise _Over
                met.add(case)
            fails, ratio = hold(case)
            if fails:
                failed = True
                raise _Found
            if ratio is not None and not failed:
                target(math.log10(max(ratio, SMALLEST_RATIO)))

        # Hypothesis draws some cases twice, in different ways. They do not count; more are drawn, until there are no
        # others.
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
    """Whether a variant that fails in these regimes says that it may fail there."""
    return bool(fails_in) and (case.regime in fails_in or operation.leaves_regime(case))


@contextlib.contextmanager
def no_constants_of_modules() -> Iterator[None]:
    """Hypothesis draws the same in every process meanwhile.

    From 6.131 it now and then draws a number that stands in the text of a module that this process happens to have
    loaded. It has no setting for that.
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
