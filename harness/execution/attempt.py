"""Runs one variant on one problem: plan, claim, run, check against the answer, count bytes. The result is plain data.

Any failure on the way is recorded in the `Attempt`. All studies build their rows from attempts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from harness.execution.judging.accuracy import Accuracy
from harness.execution.judging.declared_numerics import contradiction
from harness.execution.judging.holdout_inputs import HoldoutInputs
from harness.execution.judging.power import Power
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import ERROR, FAIL, PASS, UNDECIDED, UNSUPPORTED
from harness.execution.planning.tiles import tile_of
from harness.execution.planning.variant_calls import claimed_traffic, make_plan
from harness.execution.protocol import Execution, Executor, Sanitizer
from harness.execution.traffic.claim_gap import claim_gap
from harness.model.finding import Finding
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes
from harness.model.traffic import Traffic, links_in_words
from harness.model.variant import Variant
from harness.support.errors import KernelFault, PlannerLost, SandboxError, UnsupportedProblem
from harness.support.exception_place import place_in_harness

Inputs = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The result of one variant on one problem, up to the step that ended it. A value that is not known is None."""

    variant: Variant
    problem: BaseProblem
    plan: Plan | None = None
    tile: TileSizes | None = None
    """The tile sizes used; None if the variant declares none."""
    execution: Execution | None = None
    """The run's outputs and reports."""
    counted: Execution | None = None
    """The run whose bytes were counted: `execution`, or a second run on a counting executor."""
    accuracy: Accuracy | None = None
    """The comparison of the outputs with the answer; None if no check was requested."""
    claim: Traffic | None = None
    """The traffic in bytes that the variant claims."""
    claim_failure: str | None = None
    """Why the claim could not be evaluated, or how it differs from the counted bytes."""
    second_run_failure: str | None = None
    """Why a second run of the plan is wrong although the first was right. Checked only if the first run altered
    variables of its kernels' modules."""
    power: Power | None = None
    """How well the question separates right answers from trivial wrong ones; None if the answer is wrong or was not
    checked."""
    remedy: str | None = None
    """If the question does not separate right from trivial answers: a problem or inputs that would, in words."""
    numerics_failure: str | None = None
    """Why the compiled code contradicts the declared numerics."""
    bytes_failure: str | None = None
    """Why the counted bytes are fewer than any correct kernel needs."""
    counted_failure: str | None = None
    """What is wrong with the answer of the byte-counting run, if that was a separate run."""
    holdout_failure: str | None = None
    """What is wrong with the answer to the holdout inputs, which differ from the question's."""
    findings: tuple[Finding, ...] | None = None
    """The sanitizer's findings; None if it did not run."""
    refusal: str | None = None
    """Why the variant does not support the problem."""
    error: Exception | None = None
    """The exception that ended the attempt."""
    note: str | None = None
    """A remark that does not affect the verdict."""

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.refusal is not None:
            return UNSUPPORTED
        if self.error is not None:
            return ERROR
        if self.failure is not None:
            return FAIL
        return PASS if self.doubt is None else UNDECIDED

    @property
    def reason(self) -> str | None:
        """Why the verdict is not `pass`; None if it is."""
        return self.failure or self.doubt

    @property
    def doubt(self) -> str | None:
        """Why an answer within its budget proves nothing; None if it proves something or was not checked."""
        if self.accuracy is not None and self.accuracy.suspicious:
            over = self.accuracy.error_over_expected
            return f"suspicious: within its budget, but {over:.3g} times the error that is expected of a correct kernel"
        if self.power is None or self.power.decides:
            return None
        remedy = "" if self.remedy is None else f"; {self.remedy}"
        return f"inconclusive on these inputs, because {self.power.in_words}{remedy}"

    @property
    def failure(self) -> str | None:
        """What is wrong: why the verdict is `fail`, `error` or `unsupported`; None otherwise."""
        if self.refusal is not None:
            return self.refusal
        if self.error is not None:
            if isinstance(self.error, SandboxError):
                return str(self.error)
            # Errors in a variant's code raise a SandboxError, in whichever process the code runs.
            return f"the harness itself failed, not the variant: {place_in_harness(self.error)}"
        wrong = [
            text
            for text in (self.answer_failure, self.numerics_failure, self.claim_failure, self.bytes_failure)
            if text
        ]
        if wrong:
            return "; ".join(wrong)
        return f"{self.findings[0].kind}: {self.findings[0].message}" if self.findings else None

    @property
    def answer_failure(self) -> str | None:
        """What is wrong with the outputs of any of the runs; None if nothing is."""
        first = self.accuracy and self.accuracy.reason
        runs = (first, self.second_run_failure, self.counted_failure, self.holdout_failure)
        return "; ".join(text for text in runs if text) or None

    @property
    def claim_holds(self) -> bool | None:
        """Whether claimed and counted bytes are equal (`Traffic.holds`), for reads and for writes.

        None if either is unknown.
        """
        if self.claim is None or self.counted is None or self.counted.read_bytes is None:
            return None
        assert self.counted.write_bytes is not None
        return self.claim.holds(self.counted.read_bytes, self.counted.write_bytes, self.counted.links)

    def raise_error(self) -> None:
        """Raise the exception that ended the attempt, or `UnsupportedProblem`. Returns normally if neither applies."""
        if self.refusal is not None:
            raise UnsupportedProblem(self.variant.name, self.refusal)
        if self.error is not None:
            raise self.error


def require_sound_sample(
    variant: Variant, plan: Plan, executor: Executor, question: Question, inputs: Mapping[str, np.ndarray]
) -> None:
    """Raise `UnsupportedProblem` if the same sample is wrong where the problem's entries lie next to each other.

    Grids do not say in which order blocks belong to entries: `variant_calls.sampled` assumes that those of one entry
    lie next to each other. Where they do not, the sample is wrong at small offsets, too.

    `plan` is that of a problem with a `spread`, on which the kernel failed. Returns if all blocks ran, or those of an
    entry have an index of the grid of their own.
    """
    spread = question.problem.spread
    samples = [launch.sample for launch in plan.launches if launch.sample is not None]
    if spread is None or executor.device.is_gpu or all(sample.blocks_per_entry == 1 for sample in samples):
        return
    try:
        near = executor.run(spread.near, make_plan(variant, spread.near, executor.device.arch), inputs)
        is_right = question.check(near.outputs, variant.numerics).passed
    except KernelFault:
        is_right = False
    if not is_right:
        raise UnsupportedProblem(
            variant.name,
            "its grid does not show which blocks belong to a sequence: those that should are wrong even "
            "where offsets are small",
        )


def attempt(
    variant: Variant,
    problem: BaseProblem,
    executor: Executor | None = None,
    inputs: Inputs | Callable[[], Inputs] | None = None,
    *,
    question: Question | Callable[[], Question] | None = None,
    counter: Executor | None = None,
    sanitizer: Sanitizer | None = None,
    holdout: HoldoutInputs | None = None,
    runs: Callable[[Plan], bool] = lambda plan: True,
    holds_bytes: bool = True,
    power_in_full: bool = True,
) -> Attempt:
    """Plan a variant, evaluate its claim, run it, check its answer, count its bytes, and sanitize it.

    The plan runs only with an `executor` and if `runs(plan)` is true; the answer is checked only with a `question`. The
    claim is evaluated before anything runs. `question` and `inputs` may be functions, which are called just before the
    run; with a question, its own inputs are used. `counter` counts bytes where `executor` does not, and its outputs are
    checked as well. `holdout` checks a correct answer again with other inputs. Without `holds_bytes`, the claim is not
    evaluated and the counted bytes are not checked. For `power_in_full`, see `Question.power`. Failures of the variant
    are recorded, never raised.
    """
    done = Attempt(variant=variant, problem=problem)
    try:
        plan = make_plan(variant, problem, None if executor is None else executor.device.arch)
        done = dataclasses.replace(done, plan=plan, tile=tile_of(variant, problem))
        if holds_bytes:
            done = _with_claim(done)
        if executor is None or not runs(plan):
            return done
        question = question() if callable(question) else question
        given = question.inputs if question is not None else inputs() if callable(inputs) else inputs
        assert given is not None
        try:
            execution = executor.run(problem, plan, given)
        except KernelFault:
            if question is not None:
                require_sound_sample(variant, plan, executor, question, given)
            raise
        note = "; ".join(execution.notes) or None
        done = dataclasses.replace(done, execution=execution, counted=execution, note=note)
        if question is not None:
            held = question.check(execution.outputs, variant.numerics, execution.unwritten)
            if not held.passed:
                require_sound_sample(variant, plan, executor, question, given)
            done = _with_power(dataclasses.replace(done, accuracy=held), question, power_in_full)
            done = _with_second_run(done, plan, question, executor)
        if execution.read_bytes is None:
            done = _counted_beside(done, plan, given, counter, question)
        done = _with_claim_held(done)
        if question is not None and holds_bytes:
            done = _with_bytes_held(done, question)
        if holdout is not None and done.second_run_failure is None:
            done = _with_holdout_checked(done, plan, executor, holdout)
        return done if sanitizer is None else _sanitized(done, plan, given, sanitizer)
    except UnsupportedProblem as refusal:
        return dataclasses.replace(done, refusal=refusal.reason)
    except KernelFault as fault:
        found = None if sanitizer is None else (*fault.findings, Finding(kind=fault.kind, message=str(fault)))
        return dataclasses.replace(done, error=fault, findings=found)
    except Exception as error:
        return dataclasses.replace(done, error=error)


def _with_claim(done: Attempt) -> Attempt:
    try:
        return dataclasses.replace(done, claim=claimed_traffic(done.variant, done.problem))
    except PlannerLost:
        raise
    except SandboxError as error:
        return dataclasses.replace(done, claim_failure=str(error))


def _with_power(done: Attempt, question: Question, in_full: bool) -> Attempt:
    """Add how much a right answer proves, and whether the code can match the declared numerics."""
    assert done.accuracy is not None and done.execution is not None
    failure = contradiction(done.variant.numerics, done.problem, done.execution)
    power = question.power(done.variant.numerics, in_full) if done.accuracy.passed else None
    return dataclasses.replace(done, numerics_failure=failure, power=power)


def _with_second_run(done: Attempt, plan: Plan, question: Question, executor: Executor) -> Attempt:
    """Run the plan again and check its answer, if the first run altered variables of its kernels' modules."""
    assert done.execution is not None and done.accuracy is not None
    names = done.execution.altered_variables
    if not names or not done.accuracy.passed:
        return done
    try:
        again = executor.run(done.problem, plan, question.inputs)
        # The executor detects unwritten outputs with freshly loaded modules.
        reason = question.check(again.outputs, done.variant.numerics).reason
    except KernelFault as fault:
        reason = str(fault)
    if reason is None:
        return done
    left = f"the second run of the plan finds values that the first left in {', '.join(names)}"
    return dataclasses.replace(done, second_run_failure=f"{left}: {reason}; make the plan reset them")


def _counted_beside(
    done: Attempt, plan: Plan, inputs: Inputs, counter: Executor | None, question: Question | None
) -> Attempt:
    """Run the plan again where bytes are counted, and check the answer of that run as well.

    A plan can contain different code for the GPU than for the counter, so a correct answer on the GPU does not vouch
    for the counts. If the counting run fails, that becomes a note: it says nothing about the run on the GPU.
    """
    done = dataclasses.replace(done, counted=None)
    if counter is None:
        return done
    try:
        counted = counter.run(done.problem, plan, inputs)
    except SandboxError as error:
        return _with_note(done, f"bytes not counted: {' '.join(str(error).split())}")
    done = dataclasses.replace(done, counted=counted)
    if question is None or done.accuracy is None or not done.accuracy.passed:
        return done
    reason = question.check(counted.outputs, done.variant.numerics, counted.unwritten).reason
    if reason is None:
        return done
    return dataclasses.replace(done, counted_failure=f"the run whose bytes were counted is wrong: {reason}")


def _with_claim_held(done: Attempt) -> Attempt:
    """Record a failure if the claim differs from the counted bytes."""
    if done.claim_holds is not False:
        return done
    claim, counted = done.claim, done.counted
    assert claim is not None and counted is not None
    local = (counted.local_read_bytes or 0) + (counted.local_write_bytes or 0)
    beside = f", and {local:,} bytes of local memory, which claims do not include" if local else ""
    gap = "; ".join(claim_gap(claim, done.problem, counted.accesses))
    if claim.links != counted.links:
        between = f"; between devices: claimed {links_in_words(claim.links)}; counted {links_in_words(counted.links)}"
    else:
        between = ""
    return dataclasses.replace(
        _with_note(done, f"claim: {gap}") if gap else done,
        claim_failure=f"claims {claim.read_bytes:,} bytes read and {claim.write_bytes:,} written; "
        f"counted: {counted.read_bytes:,} and {counted.write_bytes:,}{beside}{between}",
    )


def _with_bytes_held(done: Attempt, question: Question) -> Attempt:
    """Record a failure if fewer bytes were counted than the answer depends on.

    Either the counter missed some, or the kernel did not read inputs that the answer depends on.
    """
    counted = done.counted
    if counted is None or counted.read_bytes is None or counted.write_bytes is None:
        return done
    if done.accuracy is None or done.accuracy.reason is not None:
        return done  # for a wrong answer the comparison is meaningless
    problem = done.problem
    if counted.read_bytes >= problem.compulsory_read_bytes and counted.write_bytes >= problem.compulsory_write_bytes:
        return done  # `needed_bytes` never exceeds the compulsory bytes, and need not be computed
    needed = question.needed_bytes
    if counted.read_bytes >= needed.read_bytes and counted.write_bytes >= needed.write_bytes:
        return done
    return dataclasses.replace(
        done,
        bytes_failure=f"counted: {counted.read_bytes:,} bytes read and {counted.write_bytes:,} written; the answer to "
        f"these inputs takes {needed.read_bytes:,} and {needed.write_bytes:,} at least",
    )


def _with_holdout_checked(done: Attempt, plan: Plan, executor: Executor, holdout: HoldoutInputs) -> Attempt:
    """Check a right answer again with holdout inputs."""
    if done.accuracy is None or done.accuracy.reason is not None:
        return done
    return dataclasses.replace(done, holdout_failure=holdout.failure(done.variant, plan, executor))


def _sanitized(done: Attempt, plan: Plan, inputs: Inputs, sanitizer: Sanitizer) -> Attempt:
    """Run the sanitizer. Findings fail a variant whose answer passed; a sanitizer that cannot run leaves a note."""
    try:
        return dataclasses.replace(done, findings=sanitizer.check(done.variant, done.problem, plan, inputs))
    except SandboxError as error:
        return _with_note(done, f"not sanitized: {' '.join(str(error).split())}")


def _with_note(done: Attempt, note: str) -> Attempt:
    """Append a remark to the existing note."""
    return dataclasses.replace(done, note=note if done.note is None else f"{done.note}; {note}")
