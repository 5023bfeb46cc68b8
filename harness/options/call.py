"""Calls a command from Python: keyword arguments are converted to command-line words, so that both have the same rules.

All values that the command line accepts or rejects, and its error messages, are the same in a call. Objects that have
no textual form (a `Problem`, a `Variant`) are passed to `Request.read` directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.execution.isolation.process import end_planners
from harness.execution.isolation.server import preload_compilers
from harness.model.operation import DEFAULT_OPERATION, operation_named
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.options.command import Command, CommandParser
from harness.options.keep import keep_or_warn
from harness.support.errors import UsageError
from harness.support.suggestion import did_you_mean

if TYPE_CHECKING:
    from harness.text.study_result import StudyResult

Variants = str | Variant | Iterable[str | Variant] | None
"""Names or patterns as for `--variants`, variant objects, or several of either; None for all registered variants."""
Plugins = str | PathLike[str] | Iterable[str | PathLike[str]]


def call(
    command: Command[Any],
    problem: BaseProblem | None,
    variants: Variants,
    plugin: Plugins,
    options: Mapping[str, object],
    *,
    selects_by: str = "--variants",
) -> StudyResult[Any]:
    """Run the command's study and return its result. The processes in which variants ran are ended.

    `selects_by` is the option with which the command selects variants, or "" if it takes their names as arguments.
    Raises `UsageError` for everything that the command line rejects, with the same message.
    """
    assert command.study is not None
    names, own = _split(variants)
    said = dict(options)
    if problem is not None and not isinstance(problem, BaseProblem):
        raise UsageError(f"{command.name}(): {problem!r} is not a problem; pass a harness.Problem or fields")
    operation = str(said.pop("operation", DEFAULT_OPERATION if problem is None else problem.operation))
    parser = CommandParser(prog=f"python -m harness {command.name}", add_help=False)
    command.add_options(parser, operation_named(operation))
    words = [] if names is None else [f"{selects_by}={','.join(names)}"] if selects_by else names
    plugins = [plugin] if isinstance(plugin, str | PathLike) else plugin
    words += [word for path in plugins for word in ("--plugin", str(Path(path)))]
    known = set(vars(parser.parse_args(words)))
    _require_known(command, known, problem, said, operation)
    for name, value in said.items():
        words += _words(name, value)
    arguments = parser.parse_args([*(["--operation", operation] if "operation" in known else []), *words])
    request = command.request.read(arguments, problem=problem, own_variants=own)
    preload_compilers()
    try:
        shown = command.study(request)
        keep_or_warn(request.report, shown)
        return shown
    finally:
        end_planners()


def _split(variants: Variants) -> tuple[list[str] | None, list[Variant]]:
    """Split variants into names and objects. The names are None if all variants are selected."""
    if variants is None:
        return None, []
    selected = [variants] if isinstance(variants, str | Variant) else list(variants)
    wrong = [each for each in selected if not isinstance(each, str | Variant)]
    if wrong or not selected:
        raise UsageError(f"variants is {variants!r}; pass names or patterns such as 'fa*', Variant objects, or a list")
    names = [each if isinstance(each, str) else each.name for each in selected]
    return names, [each for each in selected if isinstance(each, Variant)]


def _require_known(
    command: Command[Any], known: set[str], problem: BaseProblem | None, said: Mapping[str, object], operation: str
) -> None:
    """Raise `UsageError` for a keyword that is not an option, or for a field that the given problem already sets."""
    chosen = operation_named(operation)
    hidden = {"format", "output", "plot", "roofline", "watch", "export"}
    for name in said:
        if name in hidden:
            raise UsageError(
                f"{command.name}() has no option {name!r}, which exists only on the command line; its result has "
                "render(format) and picture(name)"
            )
        if name not in known and name in chosen.problem.field_names():
            raise UsageError(f"{command.name}() has no option {name!r}: the arrays say what it is")
        if name not in known:
            hint = did_you_mean(name, sorted(known - hidden))
            raise UsageError(
                f"{command.name}() has no option {name!r}{hint} Its options are those of the command line, with _ in "
                "place of -"
            )
    if problem is not None:
        fields = {*problem.to_fields(), *chosen.lengths} & set(said)
        if problem.operation != operation:
            raise UsageError(f"the problem is one of {problem.operation}, not of {operation}")
        if fields:
            raise UsageError(f"the problem already has {sorted(fields)[0]}; pass a problem or fields, not both")
        if said.get("sweep") is not None:
            raise UsageError("a sweep creates its own problems; pass the fields by name, such as head_dim=64")


def _words(name: str, value: object) -> list[str]:
    """Return the command-line words for an option; empty if its value is None or False."""
    option = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, type):  # such as numpy.float16
        value = value.__name__
    axes: int = getattr(value, "ndim", 0)
    if axes > 1:
        raise UsageError(f"{name} is an array with {axes} axes; pass what {option} takes on the command line")
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={each}" for key, each in value.items())
    elif not isinstance(value, str | PathLike) and isinstance(value, Iterable):
        value = ("+" if name == "lengths" else ",").join(map(str, value))
    return [f"{option}={value}"]
