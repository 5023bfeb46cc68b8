"""What a command is: a name, its options, and the functions that run it. `harness/studies` has a list of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from harness.model.operation import Operation
from harness.support.errors import UsageError
from harness.support.numbers import real_number, whole_number

if TYPE_CHECKING:
    from harness.options.request import Request
    from harness.text.study_result import StudyResult

R = TypeVar("R", bound="Request")
T = TypeVar("T")


@dataclass(frozen=True)
class Command(Generic[R]):
    """One command of the command line."""

    name: str
    help: str
    """One line, for the list of commands; `--help` begins with it."""
    add_options: Callable[[argparse.ArgumentParser, Operation], None]
    """Declares its options; the operation is the one that --operation names."""
    request: type[R]
    """What the options are read into."""
    run: Callable[[R], int]
    """Runs it and publishes the result; returns the exit status."""
    study: Callable[[R], StudyResult[Any]] | None = None
    """Runs it and publishes nothing, for callers from Python; None where there is no such thing."""


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage is one `--help` away."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError(f"{message}; see '{self.prog} --help'")


def argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse` as argparse wants it: the words of its `ValueError` or `UsageError` are what the user reads."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, UsageError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


WHOLE_NUMBER, NUMBER = argument_type(whole_number), argument_type(real_number)
"""Types of options."""


def add_epilog(parser: argparse.ArgumentParser, title: str, entries: Iterable[tuple[str, str]]) -> None:
    """Names with a line each, under the options of `--help`."""
    entries = list(entries)
    widest = max((len(name) for name, _ in entries), default=0)
    lines = [f"{title}:", *(f"  {name:{widest}}  {idea}" for name, idea in entries)]
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join([*([parser.epilog, ""] if parser.epilog else []), *lines])


def option(metavar: str | None, help: str, *, default: Any = None, **how: Any) -> Any:
    """A field that is an option; `how` is for `ArgumentParser.add_argument`, as are `metavar` and `help`.

    `default` is the field's, where the option is left out.
    """
    return field(default=default, metadata={"option": {"metavar": metavar, "help": help, **how}})


def flag(help: str) -> Any:
    """A field that is an option without a value."""
    return field(default=False, metadata={"option": {"action": "store_true", "help": help}})


def argument(metavar: str, help: str, **how: Any) -> Any:
    """A field that is a positional argument."""
    default: Any = {"?": None, "*": ()}.get(how.get("nargs", ""), MISSING)
    return field(default=default, metadata={"argument": {"metavar": metavar, "help": help, **how}})


def add_fields_of(kind: type[Any], parser: argparse._ActionsContainer, *names: str) -> None:
    """The options and arguments of these fields of a dataclass, in this order."""
    known = {each.name: each.metadata for each in fields(kind)}
    for name in names:
        if "argument" in known[name]:
            parser.add_argument(name, **known[name]["argument"])
        else:
            parser.add_argument(f"--{name.replace('_', '-')}", **known[name]["option"])


def read_options(kind: type[T], arguments: argparse.Namespace, **given: Any) -> T:
    """A dataclass whose fields have the values of the options of their names. `given` fields are not looked up."""
    values = {each.name: getattr(arguments, each.name, None) for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in {**values, **given}.items() if value is not None})
