"""States in one line what is probably wrong, where the evidence of a failure points to one cause."""

from __future__ import annotations

import math

from harness.execution.judging.accuracy import ZERO_FOR_NAN
from harness.model.cases.case import Case
from harness.model.spread import in_powers
from harness.studies.fuzz.finding import Finding
from harness.studies.fuzz.result import Failure
from harness.studies.fuzz.shrinking.failing_lengths import LengthsTried, in_runs
from harness.studies.fuzz.shrinking.pattern import MOST_FLOPS

FEWEST_LENGTHS = 3
"""Minimum number of passing lengths, and of failing ones, that have to follow a rule before it is stated."""


def diagnosis_of(failure: Failure) -> str | None:
    """Such as `O equals the answer without the last key; passes where kv_len is a multiple of 32`; None if unknown."""
    parts = [] if failure.sanitized is None else [f"the sanitizer finds {failure.sanitized.kind} (below)"]
    parts += _of_values(
        (failure.case, failure.finding),
        (failure.larger_case, failure.larger_finding),
        (failure.first_case, failure.first_finding),
    )
    parts += [rule for tried in failure.lengths if (rule := _rule(tried)) is not None]
    return "; ".join(parts) or None


def diagnosis_of_case(case: Case, finding: Finding, larger: tuple[Case, Finding] | None) -> str | None:
    """The same, as far as it follows from one case and perhaps a larger one that fails in the same way."""
    return "; ".join(_of_values((case, finding), *([] if larger is None else [larger]))) or None


def _of_values(smallest: tuple[Case, Finding], *larger: tuple[Case, Finding]) -> list[str]:
    """What the wrong values show. In a small case, several known mistakes agree by chance: a larger one decides."""
    case, finding = smallest
    parts = []
    for of, found in (*larger, smallest):
        if found.first is None or found.wrong is None:
            continue
        if found.equals is not None:
            parts.append(f"{found.first.output} {found.equals}")
        if found.equals is not None or (of != case and of.problem.flops <= MOST_FLOPS):
            break  # a larger case that is none of the known mistakes excludes them
    if not parts and finding.first is not None and finding.first.is_zero_for_nan:
        parts.append(ZERO_FOR_NAN)
    spread = case.problem.spread
    if spread is not None:
        parts.append(f"offset beyond {in_powers(spread.far)} elements: an index or an offset does not fit its integers")
    return parts


def _rule(tried: LengthsTried) -> str | None:
    """For which lengths the case passes, if all lengths that were tried agree."""
    if tried.remainder is not None and len(tried.passes) >= FEWEST_LENGTHS:
        return f"fails where {tried.axis} % {tried.tile} is {tried.remainder}"
    # A single row or key is often right whatever the error, so it is no counterexample.
    passes = [length for length in tried.passes if length > 1]
    divisor = math.gcd(*passes)
    fails = [length for length in tried.fails if length % divisor] if divisor else []
    if divisor < 2 or len(passes) < FEWEST_LENGTHS or len(fails) < max(FEWEST_LENGTHS, len(tried.fails)):
        return None
    rule = f"passes where {tried.axis} is a multiple of {divisor} ({in_runs(passes)} were tried)"
    return rule if 1 not in tried.passes else f"{rule}, and at 1"
