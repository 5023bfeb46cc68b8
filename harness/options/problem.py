"""The problem on the command line: an option for each field of the operation's problem, and what they come to."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from typing import Any

from harness.model.operation import DEFAULT_OPERATION, Operation, operation_named, operation_names
from harness.model.problem import BaseProblem, Option
from harness.options.command import WHOLE_NUMBER, argument_type
from harness.support.errors import UsageError


def add_operation(parser: argparse.ArgumentParser) -> None:
    """--operation, which decides what the other options are."""
    parser.add_argument(
        "--operation",
        default=DEFAULT_OPERATION,
        metavar="NAME",
        help=f"what to compute: {', '.join(operation_names())} (default: %(default)s); other options follow from it",
    )


def add_problem(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """--operation, and the options of its problem."""
    add_operation(parser)
    group = parser.add_argument_group("problem")
    for name, fields in operation.lengths.items():
        both = " and ".join(option_of(field) for field in fields)
        default = getattr(operation.problem(), fields[0])
        group.add_argument(option_of(name), type=WHOLE_NUMBER, metavar="N", help=f"{both} at once (default: {default})")
    add_fields(group, operation, [field.name for field in dataclasses.fields(operation.problem)])  # type: ignore[arg-type]


def add_fields(group: argparse._ActionsContainer, operation: Operation, names: list[str]) -> None:
    """The options of some fields."""
    together = {field for fields in operation.lengths.values() for field in fields}
    for name, option in options_of(operation).items():
        if name in names and option.is_flag:
            help = option.help.replace("%", "%%")
            group.add_argument(option_of(name), action="store_const", const=True, help=help)
        elif name in names:
            default = "" if name in together else f" (default: {_default_text(operation, name, option)})"
            group.add_argument(option_of(name), type=argument_type(option.parse), metavar=option.metavar,
                               help=option.help.replace("%", "%%") + default)  # fmt: skip
            if name == "mask":
                group.add_argument("--causal", action="store_true", help="--mask causal, besides what --mask says")


def options_of(operation: Operation) -> dict[str, Option]:
    """The fields that can be said, in order."""
    fields = dataclasses.fields(operation.problem)  # type: ignore[arg-type]
    return {field.name: field.metadata["option"] for field in fields if "option" in field.metadata}


def option_of(field: str) -> str:
    """`kv_heads` -> `--kv-heads`."""
    return f"--{field.replace('_', '-')}"


def problem_of(arguments: argparse.Namespace) -> Any:
    """The problem that the options describe. Raises `UsageError` where they contradict each other.

    A caller from Python may have made it already (`options.call`).
    """
    if (made := getattr(arguments, "problem", None)) is not None:
        return made
    operation = operation_named(arguments.operation)
    said = fields_said(arguments, options_of(operation))
    for together, fields in operation.lengths.items():
        value = getattr(arguments, together)
        if value is None:
            continue
        if all(field in said for field in fields):
            words = " and ".join(option_of(field) for field in fields)
            raise UsageError(f"{option_of(together)} sets what {words} do not; leave out one of them")
        said = {**dict.fromkeys(fields, value), **said}
    return operation.problem.from_fields(said)


def fields_said(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The fields among `names` that options set, for `BaseProblem.from_fields`; --causal is said by itself."""
    said = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    return {**said, "causal": True} if getattr(arguments, "causal", False) else said


def problem_with(arguments: argparse.Namespace, field: str, value: object) -> Any:
    """The problem that the options describe, but for one field, a name of the command line's.

    Raises `UsageError` where an option sets that field too.
    """
    if getattr(arguments, field) not in (None, False):
        raise UsageError(f"--sweep {field} and {option_of(field)} set the same field; leave out one")
    options = options_of(operation_named(arguments.operation))
    if isinstance(value, str) and field in options:
        value = options[field].parse(value)
    return problem_of(argparse.Namespace(**{**vars(arguments), field: value}))


def _default_text(operation: Operation, name: str, option: Option) -> str:
    plain: BaseProblem = operation.problem()
    return option.default_text or str(getattr(plain, name))
