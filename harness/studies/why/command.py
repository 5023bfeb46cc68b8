"""`why`: what the distance between two variants, or one and the roofline, is made of."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.model.operation import Operation
from harness.options.command import Command, add_fields_of, argument, flag, option
from harness.options.device import (
    add_caches,
    add_device_choice,
    add_emulator,
    cache_model,
    emulator_of,
    modelled_arch,
    require_gpu,
)
from harness.options.output import add_report, check_output, conclude
from harness.options.problem import add_drawing, add_problem
from harness.options.problem_size import check_size
from harness.options.request import StudyRequest
from harness.options.variants import add_plugins, add_tile
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from harness.execution.run_settings import RunSettings
    from harness.execution.timings import BenchResult
    from harness.model.problem import BaseProblem
    from harness.model.variant import Variant
    from harness.studies.why.result import WhyResult
    from harness.support.progress import Progress
    from harness.text.study_result import StudyResult


@dataclass(frozen=True, kw_only=True)
class WhyRequest(StudyRequest):
    """Two variants to compare, or one and the roofline."""

    variant: str = argument("A", "name of the variant whose time is explained, as shown by 'list'")
    other: str | None = argument(
        "B", "name of the variant to compare it with (default: the roofline of the problem)", nargs="?"
    )
    other_dtype: str | None = option(
        "DTYPE", "dtype of B's problem, if A and B have none in common; not available for measured times"
    )
    slower_first: bool = flag("explain why the slower of the two is slower, regardless of their order")


def run_why(request: WhyRequest) -> int:
    """Run `why`; the exit status."""
    check_output(request.report.output)
    return conclude(request.report, explained(request))


def explained(request: WhyRequest) -> StudyResult[WhyResult]:
    """What `why` comes to."""
    from harness.execution.judging.question import Question
    from harness.execution.judging.verdict import PASS
    from harness.studies.why.profile import profile_of
    from harness.studies.why.report import why_report
    from harness.studies.why.result import explain
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    names = [request.variant] if request.other is None else [request.variant, request.other]
    if len(set(names)) < len(names):
        raise UsageError(f"why {names[0]} {names[1]}: both are the same; leave out one to compare with the roofline")
    problem = request.problem.make_whole("why")
    if problem.sharing is not None:
        raise UsageError("why predicts the time of one GPU; it has no model of several devices and their links")
    require_gpu(request.settings)
    problems = _problems(request, problem)
    caches = cache_model(request.cache_options, request.settings)
    gpu = caches.gpu
    settings = replace(request.settings, arch=modelled_arch(request.settings, gpu), caches=caches)
    variants = _variants(request, names)
    for variant in variants:
        if variant.operation != request.operation:
            raise UsageError(
                f"{variant.name} computes {variant.operation}, but the problem is one of {request.operation}; "
                f"add --operation {variant.operation}"
            )
    _, variants = request.selection.tiled(variants, problem)
    with progress_bar(len(variants) + _steps_of_measuring(settings, variants, problem)) as progress:
        executor = emulator_of(settings, progress, bank_conflicts=True, instructions=True)
        check_size(settings, [problem], len(variants))
        profiles = []
        for variant, own in zip(variants, problems):
            question = Question.draw(own, settings.regime, settings.seed)
            progress.step(variant.name)
            profiles.append(profile_of(variant, question, executor, gpu.multiprocessor))
        measured = _measured(settings, variants, problem, progress) if settings.device == "gpu" else None
    fast = profiles[1] if len(profiles) > 1 else None
    result = explain(profiles[0], fast, gpu, settings.regime, settings.seed, measured)
    if request.slower_first and fast is not None and result.distance_seconds < 0:
        result = explain(fast, profiles[0], gpu, settings.regime, settings.seed, measured)
    passed = all(profile.verdict == PASS for profile in profiles) and (measured is None or not measured.failed)
    return StudyResult(result, why_report(result), passed)


def _problems(request: WhyRequest, problem: BaseProblem) -> tuple[BaseProblem, BaseProblem]:
    """The problems of both variants, which differ only if `other_dtype` is given. Raises `UsageError`."""
    if request.other_dtype is None:
        return problem, problem
    if request.other is None:
        raise UsageError("--other-dtype is the dtype of a second variant's problem; name the variant")
    if request.settings.device == "gpu":
        raise UsageError("--other-dtype: times are measured on one problem; add --device emulator to predict them")
    return problem, type(problem).from_fields(problem.to_fields() | {"dtype": request.other_dtype})


def _variants(request: WhyRequest, names: list[str]) -> list[Variant]:
    """The variants of these names: objects of the caller, if all of them are, which need no discovery."""
    own = {variant.name: variant for variant in request.selection.own_variants}
    if all(name in own for name in names):
        return [own[name] for name in names]
    registry = request.discover().registry
    return [registry.get(name) for name in names]


def _steps_of_measuring(settings: RunSettings, variants: list[Variant], problem: BaseProblem) -> int:
    if settings.device != "gpu":
        return 0
    from harness.gpu.contenders import steps_of

    return steps_of(len(variants), problem, libraries=False)


def _measured(settings: RunSettings, variants: list[Variant], problem: BaseProblem, progress: Progress) -> BenchResult:
    from harness.gpu.contenders import bench_on_gpu

    settings = replace(settings, effort=replace(settings.effort, sustained_seconds=0.0))
    return bench_on_gpu(variants, problem, settings, libraries=False, step=progress.step)


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `why`."""
    add_fields_of(WhyRequest, parser, "variant", "other", "other_dtype", "slower_first")
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_tile(parser)
    add_plugins(parser)
    group = add_device_choice(
        parser.add_argument_group("device"),
        "times are predicted from work counted on the emulator. auto: for the GPU that is present, if any; gpu: also "
        "measure times on that GPU; emulator: ignore any GPU",
    )
    add_emulator(group, arch="that of the GPU")
    add_caches(parser)
    add_report(parser)


COMMAND = Command(
    "why",
    "explain why a variant is slower than another, or than the roofline allows: causes and their predicted costs",
    add_options,
    WhyRequest,
    run_why,
    explained,
    examples=(
        ("fa1-cupy fa2-cupy --heads 66", "Explain why the first variant moves more bytes and takes longer."),
        ("my-idea --heads 66 --plugin my_idea.py", "Explain why your variant is slower than the roofline allows."),
        ("fa2-cupy fa2-mma-cupy --heads 66 --dtype float16 --gpu h100", "Compare the times predicted for an H100."),
    ),
)
