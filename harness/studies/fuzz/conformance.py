"""The battery that every variant of anybody's can be put through: a few demands, each held on drawn problems.

A demand is met, does not apply, or is broken on a problem that is shrunk and told with a line that repeats it. Nothing
here knows a test runner; `harness.pytest_plugin` makes a test of each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from harness.execution.attempt import Attempt, attempt
from harness.execution.kept_inputs import INPUT_WRITTEN
from harness.execution.planning import refusal_of
from harness.execution.verdict import UNDECIDED
from harness.model.discovery import Origin, load_variant, plugin_file
from harness.model.operation import draw_inputs, operation_named
from harness.model.property import DETERMINISM, SANITIZER
from harness.model.variant import Variant
from harness.options.machine import Machine
from harness.studies.fuzz.builds import builds_for
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.report import replay_command
from harness.studies.fuzz.result import CampaignResult
from harness.studies.fuzz.settings import CampaignSettings
from harness.support.errors import KernelFault, SandboxError

DEFAULT_EXAMPLES = 60
"""Of the answer; other demands take a share of it."""
FEWEST_ATTEMPTS = 8
"""Problems whose bytes and inputs are held: a claim that is wrong for causal masks alone should not slip through."""
FEWEST_EXAMPLES = 4
FAILS_ALREADY = "it fails 'answer' already"
EMULATOR = Machine()


class DoesNotApply(Exception):
    """The variant does not say what the demand would hold it to. The message says what."""


@dataclass(frozen=True)
class Subject:
    """A variant, and how hard to look at it."""

    variant: Variant
    """Isolated: nothing of it runs in this process."""
    origin: Origin
    """Where campaigns load it from."""
    examples: int = DEFAULT_EXAMPLES
    """Cases for the answer."""
    seed: int = 0
    """Same seed, same cases, on the same version of Hypothesis."""

    @cached_property
    def attempts(self) -> Sequence[Attempt]:
        """The variant on a share of drawn problems, edge shapes and all that it takes, run once each and not held.

        Raises `DoesNotApply` where it takes none.
        """
        operation = operation_named(self.variant.operation)
        executor = EMULATOR.executor()
        cases = operation.cases(builds_for(self.variant, operation.builds), None, (), self.variant.takes)
        found: dict[Any, Attempt] = {}
        wanted = max(FEWEST_ATTEMPTS, self.examples // 2)

        @seed(self.seed)
        @settings(
            max_examples=4 * wanted,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def look(case: Any) -> None:
            problem = case.problem
            if len(found) < wanted and problem not in found and refusal_of(self.variant, problem) is None:
                found[problem] = attempt(self.variant, problem, executor, functools.partial(draw_inputs, problem))

        look()
        if not found:
            raise DoesNotApply("it takes none of the drawn problems")
        return [*found.values()]

    @cached_property
    def wrong_answer(self) -> str | None:
        """What a search without further checks finds, shrunk."""
        return self._with_command_to_repeat(self._campaign(1.0))

    def violation(self, share: float, *checks: str) -> str | None:
        """The same of a search in which some of `checks` is held in a part of the cases.

        Raises `DoesNotApply` where the answer is wrong already: one mistake is told once. Only the sanitizer, which may
        know why, looks all the same, and tells what takes it to be seen.
        """
        if SANITIZER not in checks and self.wrong_answer is not None:
            raise DoesNotApply(FAILS_ALREADY)
        result = self._campaign(share, *checks)
        if result.verdict == UNDECIDED:
            return None  # of the answer; a check needs no budget
        is_checks_own = result.failure is not None and result.failure.case.check is not None
        if result.reason is not None and not is_checks_own and self.wrong_answer is not None:
            raise DoesNotApply(FAILS_ALREADY)
        return self._with_command_to_repeat(result)

    def _campaign(self, share: float, *checks: str) -> CampaignResult:
        how = CampaignSettings(examples=max(FEWEST_EXAMPLES, int(share * self.examples)), seed=self.seed, checks=checks)
        load = functools.partial(load_variant, self.origin, self.variant.name)
        return run_campaign(self.variant.name, load, EMULATOR, how, operation=self.variant.operation)

    def _with_command_to_repeat(self, result: CampaignResult) -> str | None:
        if result.reason is None or result.failure is None:
            return result.reason
        failure = result.failure
        problem = failure.case.problem.headline
        again = replay_command(self.variant.name, failure.case, ["--plugin", plugin_file(self.origin)])
        return f"{result.reason}\non: {problem}, inputs {failure.case.regime}\nrepeat: {again}"


@dataclass(frozen=True)
class Demand:
    """One thing that a variant has to meet."""

    name: str
    idea: str
    """One line: what is asked."""
    broken: Callable[[Subject], str | None]
    """None, or what is wrong: a line, and below it where and how to see it again. Raises `DoesNotApply`."""


def _takes_something(subject: Subject) -> str | None:
    refusals = []
    for build in operation_named(subject.variant.operation).builds:
        try:
            refusal = refusal_of(subject.variant, build.plain_problem)
        except SandboxError as error:
            return f"supports() fails: {error}"
        if refusal is None:
            return None
        refusals.append(refusal)
    return f"it takes none of the {len(refusals)} plainest problems, so nothing is known about it: {refusals[0]}"


def _is_right(subject: Subject) -> str | None:
    return subject.wrong_answer


def _keeps_properties(subject: Subject) -> str | None:
    names = [name for name in operation_named(subject.variant.operation).properties if name != DETERMINISM.name]
    if not names:
        raise DoesNotApply(f"{subject.variant.operation} has no further properties")
    return subject.violation(0.75, *names)


def _is_deterministic(subject: Subject) -> str | None:
    if not subject.variant.deterministic:
        raise DoesNotApply("it declares deterministic=False")
    return subject.violation(0.5, DETERMINISM.name)


def _passes_the_sanitizer(subject: Subject) -> str | None:
    return subject.violation(0.25, SANITIZER)


def _keeps_inputs(subject: Subject) -> str | None:
    for done in subject.attempts:
        if isinstance(done.error, KernelFault) and done.error.kind == INPUT_WRITTEN:
            return _with_call_to_repeat(subject, done, str(done.error))
    return None


def _claims_what_is_counted(subject: Subject) -> str | None:
    if subject.variant.claim is None:
        raise DoesNotApply("it claims no bytes (Variant.claim)")
    for done in subject.attempts:
        if done.claim_failure is not None:
            return _with_call_to_repeat(subject, done, done.claim_failure)
        if done.error is not None:
            return _with_call_to_repeat(subject, done, f"it cannot be counted: {done.reason}")
    return None


DEMANDS: Mapping[str, Demand] = {
    demand.name: demand
    for demand in (
        Demand("takes", "supports() answers, and takes some plain problem", _takes_something),
        Demand("answer", "within its error budget on drawn problems: edges, masks, all kinds of inputs", _is_right),
        Demand("properties", "what must hold without knowing the answer", _keeps_properties),
        Demand("determinism", "the same bits once more", _is_deterministic),
        Demand("sanitizer", "no race, no stray access, no unwritten memory read", _passes_the_sanitizer),
        Demand("inputs", "inputs are the same after a run", _keeps_inputs),
        Demand("claim", "claimed bytes are counted bytes, reads and writes each", _claims_what_is_counted),
    )
}
"""In the order in which they are looked at, by name."""


def _with_call_to_repeat(subject: Subject, done: Attempt, reason: str) -> str:
    """A reason with its problem, and a line of Python that repeats it."""
    problem = done.problem
    plugin = f", plugin={plugin_file(subject.origin)!r}"
    call = f"harness.compare(harness.{type(problem).__name__}.from_fields({problem.to_short_fields()!r})"
    return f"{reason}\non: {problem.headline}\nrepeat: {call}, {subject.variant.name!r}{plugin})"
