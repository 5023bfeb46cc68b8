"""`run`: one variant on the user's own arrays."""

from __future__ import annotations

import argparse

from harness.options.arguments import mask_of
from harness.options.choices import counter_of, discover_variants, executor_of
from harness.options.exit_status import FAILED, PASSED
from harness.options.output import check_output, publish
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files


def run_one(arguments: argparse.Namespace) -> int:
    """Run `run`; the exit status."""
    from harness.execution.comparison import judge, rank, where_counted
    from harness.execution.outcome import Comparison
    from harness.execution.planning import make_plan
    from harness.execution.question import Question
    from harness.studies.run.user_arrays import load_arrays
    from harness.support.progress import progress_bar
    from harness.text.comparison_report import render_comparison

    check_output(arguments.out, arguments.lse, arguments.output)
    arrays = load_arrays({"Q": arguments.q, "K": arguments.k, "V": arguments.v}, arguments.dtype)
    problem = arrays.problem(mask_of(arguments), arguments.scale)
    variant = discover_variants(arguments).registry.get(arguments.variant)
    plan = make_plan(variant, problem)
    if arguments.lse is not None and "lse" not in plan.all_buffers(problem):
        raise UsageError(f"{variant.name} stores no log-sum-exp; leave out --lse")
    with progress_bar(2) as progress:
        executor = executor_of(arguments, progress)
        counter = counter_of(arguments, problem, executor.device, progress)
        progress.step("the oracle")
        question = Question.pose(problem, arrays.inputs)
        progress.step(variant.name)
        row, execution = judge(variant, question, executor, counter)
    comparison = Comparison(
        problem=problem,
        regime=None,
        seed=None,
        device=executor.device,
        counted_on=where_counted(executor, counter),
        rows=rank([row], executor.device),
    )
    if execution is not None:
        files = {arguments.out: arrays.npy(execution.outputs["O"])}
        if arguments.lse is not None:
            files[arguments.lse] = arrays.npy(execution.outputs["lse"])
        replace_files(files)
    publish(arguments, render_comparison(comparison, arguments.format))
    return PASSED if comparison.all_passed else FAILED
