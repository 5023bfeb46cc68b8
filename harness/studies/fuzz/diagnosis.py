"""States in one line what is probably wrong, where the evidence of a failure points to one cause."""

from __future__ import annotations

import math

from harness.execution.judging.accuracy import ZERO_FOR_NAN
from harness.model.spread import in_powers
from harness.studies.fuzz.result import Failure
from harness.studies.fuzz.shrinking.failing_lengths import LengthsTried, in_runs

FEWEST_LENGTHS = 3
"""Minimum number of passing lengths, and of failing ones, that have to follow a rule before it is stated."""


def diagnosis_of(failure: Failure) -> str | None:
    """Such as `O equals the answer without the last key; passes where kv_len is a multiple of 32`; None if unknown."""
    parts = [] if failure.sanitized is None else [f"the sanitizer finds {failure.sanitized.kind} (below)"]
    # In a larger case, fewer known mistakes agree by chance.
    for finding in (failure.larger_finding, failure.first_finding, failure.finding):
        if finding.equals is not None and finding.first is not None:
            parts.append(f"{finding.first.output} {finding.equals}")
            break
    else:
        if failure.finding.first is not None and failure.finding.first.is_zero_for_nan:
            parts.append(ZERO_FOR_NAN)
    spread = failure.case.problem.spread
    if spread is not None:
        parts.append(f"offset beyond {in_powers(spread.far)} elements: an index or an offset does not fit its integers")
    parts += [rule for tried in failure.lengths if (rule := _rule(tried)) is not None]
    return "; ".join(parts) or None


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
