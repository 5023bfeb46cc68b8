"""`show`: a variant's source, PTX and resources, or the order in which it adds."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from harness.model.operation import Operation
from harness.options.command import Command, add_fields_of, argument, flag
from harness.options.device import add_device_choice, add_emulator, arch_of, executor_of
from harness.options.exit_status import PASSED
from harness.options.output import add_report, check_output, publish
from harness.options.problem import add_problem
from harness.options.request import StudyRequest
from harness.options.variants import add_plugins, add_selection, add_tile
from harness.support.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ShowRequest(StudyRequest):
    """The variant to show, and what of it."""

    variant: str = argument("VARIANT", "name of the variant, as shown by 'list'")
    ptx: bool = flag("show the PTX of each kernel instead of its source")
    expanded: bool = flag("show only the source that is compiled for this problem, without the features that are off")
    order: bool = flag(
        "show the order of addition in O, in the row sums l and in the scores S, and which variants share this order"
    )


def run_show(request: ShowRequest) -> int:
    """Run `show`; the exit status."""
    if request.order:
        return _show_order(request)
    from harness.studies.show.kernel_listing import Form, devices_in_words, list_kernels, render_kernels

    if request.selection.variants is not None or request.report.format != "table":
        option = "format" if request.selection.variants is None else "variants"
        raise UsageError(f"--{option} needs --order; without it, show prints the source of one variant as text")
    if request.ptx and request.expanded:
        raise UsageError("--order, --ptx and --expanded show different things; choose one")
    problem = request.problem.make()
    check_output(request.report.output)
    registry = request.discover().registry
    _, (variant,) = request.selection.tiled([registry.get(request.variant)], problem)
    listings = list_kernels(variant, problem, arch_of(request.settings))
    origin = registry.origin_of(variant.name)
    headline = f"{variant.name}: {variant.idea or variant.algorithm} ({variant.backend}, {origin})\n\n"
    form: Form = "ptx" if request.ptx else "expanded" if request.expanded else "source"
    headline += devices_in_words(variant, problem)
    publish(request.report, headline + render_kernels(listings, form))
    return PASSED


def _show_order(request: ShowRequest) -> int:
    from harness.studies.show.order_report import OrderReport, order_report
    from harness.studies.show.orders import reveal_if_it_runs, reveal_orders
    from harness.support.progress import progress_bar

    if request.ptx or request.expanded:
        raise UsageError("--order, --ptx and --expanded show different things; choose one")
    problem = request.problem.make()
    check_output(request.report.output)
    registry = request.discover().registry
    variant = registry.get(request.variant)
    chosen = registry.select(request.selection.variants, request.operation)
    others = [other for other in chosen if other.name != variant.name]
    tile, (variant, *others) = request.selection.tiled([variant, *others], problem)
    with progress_bar(1 + len(others)) as progress:
        executor = executor_of(request.settings, progress)
        progress.step(variant.name)
        found = [reveal_orders(variant, problem, executor)]
        for other in others:
            progress.step(other.name)
            found.append(reveal_if_it_runs(other, problem, executor, known=found))
    report = OrderReport(problem, tile, executor.device, found[0], tuple(found[1:]))
    publish(request.report, order_report(report))
    return PASSED


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `show`."""
    add_fields_of(ShowRequest, parser, "variant", "ptx", "expanded")
    add_problem(parser, operation)
    add_tile(parser)
    add_plugins(parser)
    order = parser.add_argument_group("order of addition")
    add_fields_of(ShowRequest, order, "order")
    add_selection(order)
    help = "where --order runs the variants; auto: the GPU if there is one, else the emulator"
    add_emulator(add_device_choice(order, help))
    add_report(parser)


COMMAND = Command(
    "show",
    "show a variant's source or PTX, registers, spills and shared memory, or its order of addition",
    add_options,
    ShowRequest,
    run_show,
    examples=(
        ("fa2-cupy", "Show the source, registers, spills and shared memory."),
        ("fa2-cupy --ptx --head-dim 128", "Show the PTX that is compiled for this problem."),
        ("split-kv-cupy --order --kv-len 4096", "Show the order in which the kernel adds."),
    ),
)
