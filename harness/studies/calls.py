"""The studies as functions, for notebooks and scripts: what the commands of the same names come to, as objects.

Every option of a command is a keyword, with `_` for `-`: `--seq-len 512 --sanitize` is `seq_len=512, sanitize=True`.
What the command line refuses is a `UsageError` here, in the same one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.options.call import Plugins, Variants, call
from harness.studies.commands import command_named
from harness.support.errors import UsageError
from harness.text.page.report_page import ReportPage

if TYPE_CHECKING:
    from harness.execution.outcome import Comparison
    from harness.model.problem import BaseProblem
    from harness.model.variant import Variant
    from harness.text.study_result import StudyResult


def compare(
    problem: BaseProblem | None = None, variants: Variants = None, *, plugin: Plugins = (), **options: Any
) -> StudyResult[Comparison]:
    """Every variant on one problem, checked, counted, ranked: `python -m harness compare`.

    `problem` is a `Problem`, or its fields are among the options (`seq_len=512`). `variants`: names or patterns, or
    `Variant` objects, which run in this process and not in one of their own; all where it is left out. `plugin`: files
    that register variants. `.result` is the comparison with its rows, best first. Raises `UsageError`.
    """
    return call(command_named("compare"), problem, variants, plugin, options)


def traffic(
    variant: Variants = None,
    problem: BaseProblem | None = None,
    *,
    variants: Variants = None,
    plugin: Plugins = (),
    **options: Any,
) -> StudyResult[Any]:
    """Where a variant's bytes go, by level, buffer and launch, and by source line with `lines=True`.

    With `sweep="q_len=512..4096"` the bytes of many `variants` against a field: `.picture("bytes")` draws them and
    `.picture("roofline")` what a GPU could make of them. `.result` is the account, or a tuple of points; bytes are at
    the level that their names say. Raises `UsageError`, and whatever ends the variant's run.
    """
    if variant is not None and variants is not None:
        raise UsageError("traffic(): variant and variants both select; leave out one")
    if variant is not None:
        return call(command_named("traffic"), problem, variant, plugin, options, selects_by="")
    return call(command_named("traffic"), problem, variants, plugin, options)


def fuzz(variants: Variants = None, *, plugin: Plugins = (), **options: Any) -> StudyResult[Any]:
    """A search for a problem that breaks a variant: `python -m harness fuzz`.

    `variants` by name only: campaigns load them anew in processes of their own. A variant written in a notebook goes
    into a file (`%%writefile`) for `plugin`. `.result` is a tuple of campaigns, each with its failure, shrunk. Raises
    `UsageError`.
    """
    return call(command_named("fuzz"), None, variants, plugin, options, selects_by="")


def bench(
    problem: BaseProblem | None = None, variants: Variants = None, *, plugin: Plugins = (), **options: Any
) -> StudyResult[Any]:
    """Honest times on a GPU, beside other people's kernels: `python -m harness bench`. Raises `UsageError` without one.

    With `sweep=` over a field; then `.picture()` draws time, bytes and intensity.
    """
    return call(command_named("bench"), problem, variants, plugin, options)


def history(variants: Variants = None, **options: Any) -> StudyResult[Any]:
    """How bytes, error and time went, over what `keep=True` has kept: `python -m harness history`.

    `variants` by name or pattern. `.result` is a tuple of histories, each with a line per change; `.rows` has the rows
    as they were kept, `.picture()` draws them. Raises `UsageError`.
    """
    return call(command_named("history"), None, variants, (), options, selects_by="")


def report(
    problem: BaseProblem | None = None, variants: Variants = None, *, plugin: Plugins = (), **options: Any
) -> ReportPage:
    """All of what the other studies say of some variants on one problem, as one page: `python -m harness report`.

    `.save("report.html")` writes it, a notebook shows it; `.result` is the comparison in it. Raises `UsageError`.
    """
    shown = call(command_named("report"), problem, variants, plugin, options)
    assert isinstance(shown, ReportPage)
    return shown


def why(
    variant: str | Variant,
    other: str | Variant | None = None,
    problem: BaseProblem | None = None,
    *,
    plugin: Plugins = (),
    **options: Any,
) -> StudyResult[Any]:
    """Why `variant` is slower than `other`, or than the roofline: causes with their predicted cost in microseconds.

    `python -m harness why`. `.result.causes` has what costs most first; `docs/why.md` has the model. Raises
    `UsageError`, and whatever ends a variant's run.
    """
    asked = [variant] if other is None else [variant, other]
    return call(command_named("why"), problem, asked, plugin, options, selects_by="")
