"""`fuzz`: a campaign per variant, or one case once more."""

from __future__ import annotations

import argparse
import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.execution.run_settings import RunSettings
from harness.model.cases.property import SANITIZER, SANITIZER_IDEA
from harness.model.cases.regime import require_seed
from harness.model.discovery import load_variant
from harness.model.operation import Operation
from harness.options.command import NUMBER, WHOLE_NUMBER, Command, add_epilog, add_fields_of, argument, option
from harness.options.device import (
    add_arch,
    add_device_choice,
    add_sanitizer,
    add_step_limit,
    machine_line,
    machine_of,
    visible_gpus,
)
from harness.options.exit_status import FAILED, PASSED, add_allow_undecided
from harness.options.keep import add_keep
from harness.options.output import add_report, check_output, conclude, publish
from harness.options.problem import add_operation
from harness.options.request import StudyRequest
from harness.options.resume import add_afresh, tell_going_on, unfinished_work
from harness.options.variants import add_plugins, require_some
from harness.options.watch import add_watch
from harness.options.workers import add_workers, cluster_of
from harness.support.errors import UsageError
from harness.support.hypothesis_loading import load_hypothesis

if TYPE_CHECKING:
    from harness.execution.isolation.server import Load
    from harness.model.cases.case import Case
    from harness.model.discovery import Discovery
    from harness.model.variant import Variant
    from harness.options.resume import UnfinishedWork
    from harness.studies.fuzz.finding import Answer
    from harness.studies.fuzz.report import Larger
    from harness.studies.fuzz.result import CampaignResult
    from harness.support.progress import Progress
    from harness.text.study_result import StudyResult


@dataclass(frozen=True, kw_only=True)
class FuzzRequest(StudyRequest):
    """A campaign for each variant, or a case to run again."""

    variant: Sequence[str] = argument("VARIANT", "names, or shell patterns such as 'fa*' (default: all)", nargs="*")
    examples: int | None = option(
        "N", "number of examples (default: 200; with --seconds, as many as the time allows)", type=WHOLE_NUMBER
    )
    seconds: float | None = option("S", "time limit of the search in seconds (default: none)", type=NUMBER)
    tiles: int | None = option(
        "N",
        "try only small problems: at most N tiles (in attention, tiles of rows times tiles of keys per head), few "
        "heads, no long sequences (default: no limit)",
        type=WHOLE_NUMBER,
    )
    seed: int | None = option(
        "S",
        "seed that selects the examples; stored failures are tried before them (default: a random seed)",
        type=WHOLE_NUMBER,
    )
    properties: str = option(
        "NAME[,NAME]",
        "properties, listed below, to check on some examples in addition to the result; or all (default), or none",
        default="all",
    )
    replay: str | None = option("CASE", "run only this example, in the form in which fuzz prints it")
    allow_undecided: bool = False


def run_fuzz(request: FuzzRequest) -> int:
    """Run `fuzz`; the exit status."""
    check_output(request.report.output)
    if request.replay is None:
        return conclude(request.report, search(request))
    from harness.studies.fuzz.report import render_replay

    variant, case, answer, larger = _examine_again(request, request.replay)
    publish(request.report, render_replay(variant, case, answer, request.report.format, larger))
    return PASSED if _is_right(answer) else FAILED


def examine_again(request: FuzzRequest, replayed: str) -> StudyResult[tuple[str, Case, Answer]]:
    """What --replay comes to: the variant's name, the case, and its answer."""
    from harness.studies.fuzz.report import replay_report
    from harness.text.study_result import StudyResult

    variant, case, answer, larger = _examine_again(request, replayed)
    report = replay_report(variant, case, answer, larger)
    return StudyResult((variant, case, answer), report, _is_right(answer))


def _examine_again(request: FuzzRequest, replayed: str) -> tuple[str, Case, Answer, Larger]:
    """The variant's name, the case, its answer and, if that is wrong, a larger case that fails in the same way."""
    _require_sensible(request)
    load_hypothesis()
    from harness.model.cases.case import Case
    from harness.studies.fuzz.replaying import replay_with_larger

    if request.report.keep:
        raise UsageError("--keep stores campaigns, and --replay runs one case; leave out one")
    _, chosen = _chosen(request)
    machine = machine_of(request.settings)
    if len(chosen) != 1:
        raise UsageError(f"--replay runs one variant, but {len(chosen)} are selected; name one")
    ((variant, load),) = chosen
    case = Case.from_json(replayed)
    return (variant.name, case, *replay_with_larger(case, load, machine))


def _is_right(answer: Answer) -> bool:
    return answer.finding is None and answer.refusal is None and answer.fault is None


def search_or_examine(request: FuzzRequest) -> StudyResult[Any]:
    """What `fuzz` comes to, campaigns or a replay."""
    return search(request) if request.replay is None else examine_again(request, request.replay)


def _require_sensible(request: FuzzRequest) -> None:
    if request.seed is not None:
        require_seed(request.seed)
    if request.seconds is not None and not math.isfinite(request.seconds):
        raise UsageError(f"--seconds is {request.seconds}; it has to be a finite number, or left out")


def _chosen(request: FuzzRequest) -> tuple[Discovery, list[tuple[Variant, Load]]]:
    """The variants to search, each with what makes it in another process."""
    found = request.discover()
    chosen = found.registry.select(",".join(request.variant) or None, request.operation)
    require_some(chosen)
    for variant in chosen:
        if variant.name not in found.origins:
            raise UsageError(
                f"{variant.name} is an object of this process, and a campaign loads its variant anew in processes of "
                "its own; write it to a file with a function register(registry), and name that with plugin="
            )
    # What loads a variant by its origin; with workers elsewhere, from a file that was sent there.
    if request.workers is not None:
        from harness.execution.cluster.shipping import load_of

        return found, [(v, load_of(found.origins[v.name], v.name)) for v in chosen]
    return found, [(v, functools.partial(load_variant, found.origins[v.name], v.name)) for v in chosen]


def search(request: FuzzRequest) -> StudyResult[tuple[CampaignResult, ...]]:
    """A campaign for each variant."""
    _require_sensible(request)
    load_hypothesis()
    from harness.execution.judging.verdict import PASS, UNDECIDED
    from harness.studies.fuzz.campaign import run_campaign
    from harness.studies.fuzz.database import failure_folder
    from harness.studies.fuzz.kept import campaign_rows
    from harness.studies.fuzz.log import CampaignLog
    from harness.studies.fuzz.report import campaigns_report
    from harness.studies.fuzz.settings import DEFAULT_EXAMPLES, CampaignSettings
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    found, chosen = _chosen(request)
    machine = machine_of(request.settings)
    known = request.kept.known(variant.name for variant, _ in chosen)
    examples = request.examples
    if examples is None and request.seconds is None:
        examples = DEFAULT_EXAMPLES
    results = []
    with (
        unfinished_work(request, found, "fuzz", repr(machine)) as work,
        cluster_of(request, found, visible_gpus(machine)) as cluster,
        progress_bar(len(chosen) - len(known)) as progress,
    ):
        seed = _seed(request, work)
        logs = {variant.name: CampaignLog(variant.name, work) for variant, _ in chosen}
        tell_going_on(sum(len(log.answers) for log in logs.values()), "examples")
        for variant, load in chosen:
            if variant.name in known:
                results.append(known[variant.name])
                continue
            progress.step(variant.name)
            result = work.known(variant.name, "result")
            if result is None:
                how = CampaignSettings(
                    examples=examples,
                    seconds=request.seconds,
                    seed=seed,
                    most_tiles=request.tiles,
                    checks=_properties(request.properties),
                    database=failure_folder(variant.name, found.origins[variant.name]),
                )
                log = logs[variant.name]
                on_progress = _speed(progress, variant.name, len(log.answers))
                result = run_campaign(variant.name, load, machine, how, on_progress, variant.operation, cluster, log)
                work.finish(result, variant.name, "result")
            results.append(result)
    options = [word for path in request.selection.plugin for word in ("--plugin", str(path))]
    options += ["--device", request.settings.device] if request.settings.device != "auto" else []
    options += ["--arch", request.settings.arch] if request.settings.arch != RunSettings.arch else []
    options += ["--sanitize"] if request.settings.sanitize else []
    request.kept.keep(found, {result.variant: result for result in results})
    accepted = (PASS, UNDECIDED) if request.allow_undecided else (PASS,)
    passed = all(result.verdict in accepted for result in results)
    fresh = [variant for variant, _ in chosen if variant.name not in known]
    return StudyResult(
        tuple(results),
        campaigns_report(results, machine_line(machine), options),
        passed,
        kept=lambda: campaign_rows(results, fresh, machine.executor().device),
    )


def _seed(request: FuzzRequest, work: UnfinishedWork) -> int:
    """The one that is asked for, that of the campaign that was cut off, or any."""
    if request.seed is not None:
        return request.seed
    seed = work.known("seed")
    if not isinstance(seed, int):
        seed = int.from_bytes(os.urandom(3), "big")
        work.finish(seed, "seed")
    return seed


def _speed(progress: Progress, name: str, known: int) -> Callable[[int, float, str], None]:
    """Tells a campaign's progress: its examples, how many of those not `known` before came per second, what met."""
    began = time.monotonic()

    def on_progress(examples: int, part: float, met: str) -> None:
        rate = max(0, examples - known) / max(time.monotonic() - began, 1e-9)
        progress.part(part, f"{name}: {examples:,} examples, {rate:,.0f} per second; {met}".rstrip("; "))

    return on_progress


def _properties(text: str) -> tuple[str, ...] | None:
    """Names of properties; None for all."""
    if text in ("all", "none"):
        return None if text == "all" else ()
    return tuple(part.strip() for part in text.split(",") if part.strip())


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `fuzz`."""
    add_operation(parser)
    add_fields_of(FuzzRequest, parser, "variant")
    campaign = parser.add_argument_group("campaign, for each variant")
    add_fields_of(FuzzRequest, campaign, "examples", "seconds", "tiles", "seed", "properties", "replay")
    held = [(each.name, each.idea) for each in operation.properties.values()]
    add_epilog(parser, "properties", [*held, (SANITIZER, SANITIZER_IDEA)])
    add_plugins(parser)
    group = parser.add_argument_group("device")
    add_arch(add_device_choice(group, "auto: the GPU if there is one, else the emulator"))
    add_step_limit(group)
    add_sanitizer(parser, "Not available on a GPU")
    add_workers(parser, "examples")
    add_afresh(parser)
    add_report(parser)
    add_allow_undecided(parser)
    add_keep(parser)
    add_watch(parser)


COMMAND = Command(
    "fuzz",
    "search for a problem on which a variant is wrong, shrink it, and print a command that reproduces the failure",
    add_options,
    FuzzRequest,
    run_fuzz,
    search_or_examine,
    examples=(
        ("fa2-cupy", "Try 200 problems, and shrink the first failure."),
        (
            "my-idea --plugin my_idea.py --sanitize --seconds 60",
            "Search for wrong results and races in your variant for a minute.",
        ),
        ("'fa*' --examples 1000 --seed 1 --workers 2", "Try 1,000 reproducible problems per variant in two processes."),
    ),
)
