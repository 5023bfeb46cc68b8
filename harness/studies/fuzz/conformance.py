"""The conformance battery for any variant: a few demands, each tested on drawn problems.

A demand is met, does not apply, or fails on a problem that is minimized and reported with a line that reproduces it.
This module is independent of test runners; `harness.pytest_plugin` makes a test of each demand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from harness.execution.attempt import Attempt, attempt
from harness.execution.judging.kept_inputs import INPUT_WRITTEN
from harness.execution.judging.verdict import UNDECIDED
from harness.execution.planning.variant_calls import refusal_of
from harness.execution.run_settings import RunSettings
from harness.model.cases.property import DETERMINISM, SANITIZER
from harness.model.discovery import Origin, load_variant, plugin_file
from harness.model.operation import draw_inputs, operation_named
from harness.model.variant import Variant
from harness.options.machine import Machine
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.drawing.builds import builds_for
from harness.studies.fuzz.report import case_line, evidence, replay_command
from harness.studies.fuzz.result import CampaignResult
from harness.studies.fuzz.settings import CampaignSettings
from harness.support.errors import KernelFault, SandboxError
from harness.text.report import Paragraph, Report, Table, Title, Verbatim
from harness.text.tables import UNKNOWN

DEFAULT_EXAMPLES = 60
"""Number of cases for the demand on the answer; other demands use a fraction of it."""
FEWEST_ATTEMPTS = 8
"""Minimum number of problems for the demands on bytes and inputs, so that a claim that is wrong for causal masks only
is found."""
FEWEST_EXAMPLES = 4
EMULATOR = Machine()


class DoesNotApply(Exception):
    """The variant does not declare what the demand tests. The message says what is missing."""


class FailsAlready(DoesNotApply):
    """The variant fails the demand on the answer, which reports the same error."""

    def __init__(self) -> None:
        super().__init__("it fails 'answer' already")


@dataclass(frozen=True)
class Subject:
    """A variant, and how thoroughly to test it."""

    variant: Variant
    """The variant, isolated: its code does not run in this process."""
    origin: Origin
    """Where campaigns load the variant from."""
    examples: int = DEFAULT_EXAMPLES
    """Number of cases for the demand on the answer."""
    seed: int = 0
    """Random seed. A seed always draws the same cases, on the same version of Hypothesis."""

    @cached_property
    def attempts(self) -> Sequence[Attempt]:
        """One attempt each on drawn problems, edge shapes and all supported features, without checking answers.

        Raises `DoesNotApply` if the variant supports none of them.
        """
        operation = operation_named(self.variant.operation)
        executor = EMULATOR.executor()
        arch = executor.device.arch
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
            if len(found) < wanted and problem not in found and refusal_of(self.variant, problem, arch) is None:
                found[problem] = attempt(self.variant, problem, executor, functools.partial(draw_inputs, problem))

        look()
        if not found:
            raise DoesNotApply("it supports none of the drawn problems")
        return [*found.values()]

    @cached_property
    def wrong_answer(self) -> str | None:
        """The minimized failure that a search without further checks finds; None if it finds none."""
        return self._with_command_to_repeat(self._campaign(1.0, ()))

    def violation(self, share: float, *checks: str) -> str | None:
        """The minimized failure of a search that applies some of `checks` to a share of the cases.

        None if there is none. Raises `FailsAlready` if the answer is wrong, so that one error is reported once.
        """
        if self.wrong_answer is not None:
            raise FailsAlready
        return self._violation(self._campaign(share, checks))

    def sanitizer_finding(self, share: float) -> str | None:
        """The minimized finding of the sanitizer, which looks at a share of the cases; None if there is none.

        Wrong values are ignored: a kernel that is wrong may be so because of a race. Raises `FailsAlready` if nothing
        can be found since the kernel does not run.
        """
        result = self._campaign(share, (SANITIZER,), only_sanitizer=True)
        is_own = result.failure is not None and not result.failure.finding.is_without_run
        if result.reason is not None and result.verdict != UNDECIDED and not is_own and self.wrong_answer is not None:
            raise FailsAlready
        return self._violation(result)

    def _violation(self, result: CampaignResult) -> str | None:
        """What is wrong. An undecided answer is not: a check needs no budget."""
        return None if result.verdict == UNDECIDED else self._with_command_to_repeat(result)

    def _campaign(self, share: float, checks: tuple[str, ...], only_sanitizer: bool = False) -> CampaignResult:
        how = CampaignSettings(
            examples=max(FEWEST_EXAMPLES, int(share * self.examples)),
            seed=self.seed,
            checks=checks,
            only_sanitizer=only_sanitizer,
        )
        load = functools.partial(load_variant, self.origin, self.variant.name)
        return run_campaign(self.variant.name, load, EMULATOR, how, operation=self.variant.operation)

    def _with_command_to_repeat(self, result: CampaignResult) -> str | None:
        if result.reason is None or result.failure is None:
            return result.reason
        failure = result.failure
        again = replay_command(self.variant.name, failure.case, ["--plugin", plugin_file(self.origin)])
        lines = [result.reason, f"on: {case_line(failure.case)}"]
        lines += [f"{name}: {text}" for name, text in evidence(failure)]
        return "\n".join([*lines, f"repeat: {again}"])


@dataclass(frozen=True)
class Demand:
    """One requirement on a variant."""

    name: str
    idea: str
    """One line that states the requirement."""
    broken: Callable[[Subject], str | None]
    """Function that returns None or the failure: one line, followed by where it occurs and how to reproduce it. Raises
    `DoesNotApply`."""


def _takes_something(subject: Subject) -> str | None:
    refusals = []
    for build in operation_named(subject.variant.operation).builds:
        try:
            refusal = refusal_of(subject.variant, build.plain_problem, RunSettings.arch)
        except SandboxError as error:
            return f"supports() fails: {error}"
        if refusal is None:
            return None
        refusals.append(refusal)
    return f"it supports none of the {len(refusals)} simplest problems, so nothing is known about it: {refusals[0]}"


def _keeps_properties(subject: Subject) -> str | None:
    names = [name for name in operation_named(subject.variant.operation).properties if name != DETERMINISM.name]
    if not names:
        raise DoesNotApply(f"{subject.variant.operation} has no further properties")
    return subject.violation(0.75, *names)


def _is_deterministic(subject: Subject) -> str | None:
    if not subject.variant.deterministic:
        raise DoesNotApply("it declares deterministic=False")
    return subject.violation(0.5, DETERMINISM.name)


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
        Demand("takes", "supports() returns a valid answer, and accepts a simple problem", _takes_something),
        Demand(
            "answer",
            "results on random problems are within the error budget: edges, masks, all kinds of inputs",
            lambda subject: subject.wrong_answer,
        ),
        Demand("properties", "what must hold of any correct result, such as batch invariance", _keeps_properties),
        Demand("determinism", "a second run gives the same bits", _is_deterministic),
        Demand(
            "sanitizer",
            "no races, no invalid accesses, no reads of unwritten memory",
            lambda subject: subject.sanitizer_finding(0.25),
        ),
        Demand("inputs", "inputs are unchanged after a run", _keeps_inputs),
        Demand("claim", "claimed bytes equal counted bytes, for reads and for writes", _claims_what_is_counted),
    )
}
"""Demands by name, in the order of testing."""


def _with_call_to_repeat(subject: Subject, done: Attempt, reason: str) -> str:
    """A reason, followed by the problem and a line of Python that reproduces it."""
    problem = done.problem
    plugin = f", plugin={plugin_file(subject.origin)!r}"
    call = f"harness.compare(harness.{type(problem).__name__}.from_fields({problem.to_short_fields()!r})"
    return f"{reason}\non: {problem.headline}\nrepeat: {call}, {subject.variant.name!r}{plugin})"


WORDS = {"passed": "pass", "failed": "**fail**", "skipped": UNKNOWN}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one demand on one variant."""

    variant: str
    demand: str
    """A name in `DEMANDS`."""
    outcome: str
    """`passed`, `failed` or `skipped`, as in pytest."""
    text: str = ""
    """What is wrong, or why the demand does not apply."""


def battery_report(outcomes: Sequence[Outcome], tables: Iterable[str] = ()) -> str:
    """Markdown that ends in a line break. `tables` are further tables in Markdown."""
    found: dict[str, dict[str, Outcome]] = {}
    for each in outcomes:
        found.setdefault(each.variant, {})[each.demand] = each
    report = Report(
        paragraphs=lambda: [*_paragraphs(found), *tables],
        notes=lambda: [f"{demand.name}: {demand.idea}." for demand in DEMANDS.values()],
        records=lambda: ([vars(each) for each in outcomes], ("variant", "demand", "outcome", "text")),
        document=lambda: {"outcomes": [vars(each) for each in outcomes]},
    )
    return report.render("markdown")


def _paragraphs(found: Mapping[str, Mapping[str, Outcome]]) -> list[Paragraph]:
    cells = [
        [variant, *(WORDS[by_demand[name].outcome] if name in by_demand else UNKNOWN for name in DEMANDS)]
        for variant, by_demand in found.items()
    ]
    parts: list[Paragraph] = [
        Title("Attention kernels, on an emulated GPU"),
        Table(["variant", *DEMANDS], cells, [False] * (1 + len(DEMANDS))),
    ]
    for by_demand in found.values():
        for each in by_demand.values():
            if each.outcome == "failed":
                parts += [Title(f"{each.variant}: {each.demand}"), Verbatim(each.text)]
    return parts
