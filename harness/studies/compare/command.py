"""`compare`: every variant on one problem."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.execution.judging.verdict import PASS, UNDECIDED
from harness.model.discovery import PLUGIN
from harness.model.operation import Operation
from harness.options.command import Command, add_fields_of, flag, program_name
from harness.options.device import add_device, add_sanitizer, counter_of, sanitizing
from harness.options.exit_status import add_allow_undecided
from harness.options.keep import add_keep
from harness.options.output import add_report, check_output, conclude
from harness.options.problem import add_drawing, add_problem
from harness.options.problem_size import check_size
from harness.options.request import StudyRequest
from harness.options.variants import add_plugins, add_selection, add_tile, require_some
from harness.options.watch import add_watch
from harness.studies.compare.against import Kept, add_against

if TYPE_CHECKING:
    from harness.execution.invariance import VariantInvariance
    from harness.execution.outcome import Comparison
    from harness.execution.protocol import Device, Executor
    from harness.model.variant import Variant
    from harness.studies.compare.baseline import Setting
    from harness.text.study_result import StudyResult


@dataclass(frozen=True, kw_only=True)
class CompareRequest(StudyRequest):
    """What to compare the variants with, besides each other."""

    against: str | Kept | None = None
    """A revision, or the kept rows that are meant."""
    allow_undecided: bool = False
    invariance: bool = flag(
        "show whether the bits of each result depend on the rest of the batch, the splits of the keys or the padding "
        "of the queries, and what it costs to avoid this"
    )


def run_compare(request: CompareRequest) -> int:
    """Run `compare`; the exit status."""
    check_output(request.report.output)
    return conclude(request.report, compare_variants(request))


def compare_variants(request: CompareRequest) -> StudyResult[Comparison]:
    """What `compare` comes to."""
    with contextlib.ExitStack() as until_compared:
        return _compared(request, until_compared)


def _compared(request: CompareRequest, until_compared: contextlib.ExitStack) -> StudyResult[Comparison]:
    from harness.execution.comparison import compare, lost_row
    from harness.execution.isolation.variants import begin_planners
    from harness.execution.judging.holdout_inputs import HoldoutInputs
    from harness.execution.results.rows import comparison_rows
    from harness.studies.compare.baseline import Setting
    from harness.studies.compare.counterparts import counterparts
    from harness.studies.compare.invariance_report import with_invariance
    from harness.support.progress import progress_bar
    from harness.text.comparison_report import comparison_report
    from harness.text.study_result import StudyResult

    settings, selection = request.settings, request.selection
    problem = request.problem.make()
    found = request.discover()
    chosen = found.registry.select(selection.variants, request.operation)
    known = request.kept.known(variant.name for variant in chosen)
    baseline = counterparts(request.against, chosen, found, until_compared)
    twins = baseline.twins()
    begin_planners(variant for variant in (*chosen, *twins.values()) if variant.name not in known)
    tile, chosen = selection.tiled(chosen, problem)
    # Who asked for certain variants does not miss a broken module; who asked for all does.
    lost = [lost_row(b.name, b.reason, problem) for b in found.broken] if selection.variants is None else []
    require_some((*chosen, *lost))
    with progress_bar(1 + len(chosen) + len(twins) - len(known)) as progress:
        executor, sanitizer = sanitizing(settings, selection.plugin, progress)
        number = len(chosen) + len(twins) - len(known)
        check_size(settings, [problem], number, emulated=not executor.device.is_gpu)
        setting = Setting(problem, settings, tile, executor.device.name)
        baseline.look_up(setting, [variant.name for variant in chosen])
        chosen = _with_best_tiles(chosen, setting, executor.device)
        twins = dict(zip(twins, _with_best_tiles(_tiled(twins.values(), selection.tile), setting, executor.device)))
        comparison = compare(
            [*chosen, *twins.values()],
            problem,
            executor,
            settings,
            counter=counter_of(settings, problem, executor.device, progress),
            tile=tile,
            sanitizer=sanitizer,
            holdout=HoldoutInputs(problem, settings.regime),
            lost=lost,
            known=known,
            step=progress.step,
        )
    names = {variant.name for variant in chosen}
    request.kept.keep(found, {row.variant: row for row in comparison.rows if row.variant in names})
    fresh = [variant for variant in chosen if variant.name not in known]
    plugins = [word for path in selection.plugin for word in ("--plugin", str(path))]
    report = comparison_report(
        comparison,
        lambda name: shlex.join([*program_name().split(), "fuzz", name, *plugins]),
        {name for name, origin in found.origins.items() if origin.kind == PLUGIN},
    )
    report = baseline.with_changes(report, comparison, chosen, twins)
    invariant = True
    if request.invariance:
        found_invariance = _invariance_of(comparison, chosen, executor)
        report = with_invariance(report, comparison, found_invariance)
        invariant = all(each.holds for each in found_invariance)
    # How a variant was is no failure of what it is.
    then = {twin.name for twin in twins.values()}
    judged = dataclasses.replace(comparison, rows=tuple(row for row in comparison.rows if row.variant not in then))
    return StudyResult(
        comparison,
        report,
        (judged.nothing_wrong if request.allow_undecided else judged.all_passed) and judged.something_ran and invariant,
        judged.something_ran,
        kept=lambda: comparison_rows("compare", judged, fresh),
    )


def _invariance_of(comparison: Comparison, variants: Sequence[Variant], executor: Executor) -> list[VariantInvariance]:
    """Of each variant whose result is right."""
    from harness.execution.invariance import invariance_of
    from harness.model.operation import draw_inputs

    assert comparison.regime is not None and comparison.seed is not None
    inputs = draw_inputs(comparison.problem, comparison.regime, comparison.seed)
    right = {row.variant for row in comparison.rows if row.verdict in (PASS, UNDECIDED)}
    return [invariance_of(v, comparison.problem, inputs, executor) for v in variants if v.name in right]


def _tiled(variants: Iterable[Variant], asked_tile: str | None) -> list[Variant]:
    """With the tile sizes that are asked for; who does not have them says so when it is run."""
    from harness.execution.planning.tiles import parse_tile, with_tile

    return [*variants] if asked_tile is None else [with_tile(variant, parse_tile(asked_tile)) for variant in variants]


def _with_best_tiles(variants: Sequence[Variant], setting: Setting, device: Device) -> list[Variant]:
    """With the tile sizes that `tune` found, where none are asked for."""
    from harness.execution.planning.tuned_tiles import with_tuned_tiles

    return [*variants] if setting.asked_tile is not None else with_tuned_tiles(variants, setting.problem, device)


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `compare`."""
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_selection(parser)
    add_tile(parser)
    add_plugins(parser)
    add_device(parser)
    add_sanitizer(parser)
    add_against(parser)
    add_fields_of(CompareRequest, parser, "invariance")
    add_report(parser)
    add_allow_undecided(parser)
    add_keep(parser)
    add_watch(parser)


COMMAND = Command(
    "compare",
    "run all variants on one problem, check their results, count their bytes, and rank them",
    add_options,
    CompareRequest,
    run_compare,
    compare_variants,
    examples=(
        ("--mask causal --dtype bfloat16", "Rank all variants on a causal problem in bfloat16."),
        (
            "--variants 'fa2*,my-idea' --plugin my_idea.py --sanitize",
            "Compare your variant with FlashAttention-2, and search for races.",
        ),
        ("--seq-len 1000 --kv-heads 1 --format json --output result.json", "Write the result as JSON."),
    ),
)
