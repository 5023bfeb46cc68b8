"""Runs one variant on the user's own arrays, and checks it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from harness.execution.attempt import attempt
from harness.execution.comparison import rank, where_counted
from harness.execution.judging.inferred_numerics import inferred_numerics
from harness.execution.judging.question import Question
from harness.execution.outcome import Comparison, Row
from harness.execution.planning.variant_calls import make_plan
from harness.options.device import arch_of, counter_of, executor_of
from harness.options.problem_size import check_size, require_memory
from harness.studies.run.command import ArraysRequest
from harness.studies.run.user_arrays import UserArrays
from harness.support.errors import UsageError
from harness.support.progress import progress_bar
from harness.text.comparison_report import comparison_report
from harness.text.study_result import StudyResult


def run_arrays(
    request: ArraysRequest, arrays: UserArrays, settings: Mapping[str, Any], wanted: Iterable[str] = ()
) -> tuple[StudyResult[Comparison], dict[str, np.ndarray]]:
    """Run the request's variant on the problem of these arrays and settings.

    Returns the comparison with its only row, and the outputs by name; none if the variant failed before it had some.
    Raises `UsageError` if it does not store one of the `wanted` outputs, or if the arrays define no problem.
    """
    problem = arrays.problem(settings)
    require_memory(problem)
    inputs = arrays.all_inputs(problem)
    if any(character in request.variant for character in "*?["):
        raise UsageError(f"{request.variant!r} is a pattern; give the full name of one variant, as 'list' shows them")
    variant = request.discover().registry.get(request.variant)
    plan = make_plan(variant, problem, arch_of(request.settings))
    stored = plan.output_names(problem)
    for name in wanted:
        if name not in stored:
            raise UsageError(f"{variant.name} stores no {name}; leave out --{name.lower()}")
    with progress_bar(2) as progress:
        executor = executor_of(request.settings, progress)
        check_size(request.settings, [problem], 1, emulated=not executor.device.is_gpu)
        counter = counter_of(request.settings, problem, executor.device, progress)
        progress.step("the reference result")
        question = Question.pose(problem, inputs)
        progress.step(variant.name)
        done = attempt(variant, problem, executor, question=question, counter=counter)
    comparison = Comparison(
        problem=problem,
        regime=None,
        seed=None,
        device=executor.device,
        counted_on=where_counted(executor, counter),
        rows=rank([Row.of(done, inferred_numerics(done, question))], executor.device),
    )
    passed = comparison.nothing_wrong if request.allow_undecided else comparison.all_passed
    shown = StudyResult(comparison, comparison_report(comparison), passed)
    return shown, {} if done.execution is None else dict(done.execution.outputs)
