"""Options for the problem: one for each field of the operation's problem, and one for its inputs."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.model.operation import DEFAULT_OPERATION, Operation, operation_named, operation_names
from harness.model.problem import BaseProblem, Option
from harness.options.command import WHOLE_NUMBER, argument_type
from harness.support.errors import UsageError


@dataclass(frozen=True)
class ProblemOptions:
    """Fields of a problem that are set, and the problems that they describe."""

    operation: str = DEFAULT_OPERATION
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values by name: a field, a name that sets several fields, or `causal`."""
    ready_made: BaseProblem | None = None
    """The problem itself if a caller from Python passed one, otherwise None."""

    def make(self) -> Any:
        """Return the problem. Raises `UsageError` if its fields contradict each other."""
        if self.ready_made is not None:
            return self.ready_made
        operation = operation_named(self.operation)
        values = self.fields(options_of(operation))
        for together, names in operation.lengths.items():
            if together not in self.given:
                continue
            if all(name in values for name in names):
                words = " and ".join(option_of(name) for name in names)
                raise UsageError(f"{option_of(together)} sets what {words} do not; leave out one of them")
            values = {**dict.fromkeys(names, self.given[together]), **values}
        return operation.problem.from_fields(values)

    def make_whole(self, command: str) -> Any:
        """Return the problem for a command that needs all of its blocks. Raises `UsageError` with `--far`."""
        problem = self.make()
        if problem.spread is not None:
            raise UsageError(
                f"{command} needs all blocks of a problem, but with --far only some of them run; leave out --far "
                "(compare, traffic and show accept it)"
            )
        return problem

    def fields(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those fields among `names` that are set, and `causal`, as arguments of `BaseProblem.from_fields`."""
        values = {name: self.given[name] for name in names if name in self.given}
        return {**values, "causal": True} if self.given.get("causal") else values

    def make_with(self, name: str, value: object) -> Any:
        """Return the problem with one more field set. Raises `UsageError` if an option sets that field too."""
        if name in self.given:
            raise UsageError(f"--sweep {name} and {option_of(name)} set the same field; leave out one")
        options = options_of(operation_named(self.operation))
        if isinstance(value, str) and name in options:
            value = options[name].parse(value)
        return replace(self, given={**self.given, name: value}).make()


def add_operation(parser: argparse.ArgumentParser) -> None:
    """Add --operation, which determines the other options."""
    parser.add_argument(
        "--operation",
        default=DEFAULT_OPERATION,
        metavar="NAME",
        help=f"what to compute: {', '.join(operation_names())} (default: %(default)s); determines the other options",
    )


def add_problem(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """Add --operation and the options of its problem."""
    add_operation(parser)
    group = parser.add_argument_group("problem")
    for name, fields in operation.lengths.items():
        both = " and ".join(option_of(field) for field in fields)
        default = getattr(operation.problem(), fields[0])
        group.add_argument(option_of(name), type=WHOLE_NUMBER, metavar="N", help=f"sets {both} (default: {default})")
    add_fields(group, operation, operation.problem.field_names())


def add_drawing(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """Add --regime."""
    regimes = operation.regimes
    parser.add_argument_group("inputs").add_argument(
        "--regime",
        default=next(iter(regimes)),
        metavar="NAME",
        help=f"how values are drawn: {', '.join(regimes)} (default: %(default)s); 'list --regimes' describes them",
    )


def add_fields(group: argparse._ActionsContainer, operation: Operation, names: Sequence[str]) -> None:
    """Add the options of these fields."""
    together = {field for fields in operation.lengths.values() for field in fields}
    for name, option in options_of(operation).items():
        if name in names and option.is_flag:
            help = option.help.replace("%", "%%")
            group.add_argument(option_of(name), action="store_const", const=True, help=help)
        elif name in names:
            default = "" if name in together else f" (default: {_default_text(operation, name, option)})"
            alone: dict[str, Any] = {} if option.if_alone is None else {"nargs": "?", "const": option.if_alone}
            group.add_argument(option_of(name), type=argument_type(option.parse), metavar=option.metavar,
                               help=option.help.replace("%", "%%") + default, **alone)  # fmt: skip
            if name == "mask":
                group.add_argument("--causal", action="store_true", help="adds causal to the masks given by --mask")


def options_of(operation: Operation) -> dict[str, Option]:
    """Return the operation's fields that have an option, in order."""
    fields = dataclasses.fields(operation.problem)  # type: ignore[arg-type]
    return {field.name: field.metadata["option"] for field in fields if "option" in field.metadata}


def option_of(field: str) -> str:
    """Return a field's option: `kv_heads` -> `--kv-heads`."""
    return f"--{field.replace('_', '-')}"


def read_problem(arguments: argparse.Namespace, ready_made: BaseProblem | None) -> ProblemOptions:
    """Read the fields that options set. `ready_made` is the problem of a caller from Python, or None."""
    words = vars(arguments)
    operation = operation_named(words.get("operation") or DEFAULT_OPERATION)
    names = (*operation.lengths, *options_of(operation), "causal")
    given = {name: words[name] for name in names if words.get(name) is not None and words[name] is not False}
    return ProblemOptions(operation.name, given, ready_made)


def _default_text(operation: Operation, name: str, option: Option) -> str:
    plain: BaseProblem = operation.problem()
    return option.default_text or str(getattr(plain, name))
