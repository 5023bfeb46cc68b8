"""Defines a command: its name, its options and the functions that run it. `harness/studies` lists the commands."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from harness.model.operation import Operation
from harness.support.errors import UsageError
from harness.support.numbers import real_number, whole_number
from harness.support.override import override
from harness.support.suggestion import did_you_mean

if TYPE_CHECKING:
    from harness.options.request import Request
    from harness.text.study_result import StudyResult

R = TypeVar("R", bound="Request")
T = TypeVar("T")

_NEGATIVE_NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|-inf$|-nan$", re.IGNORECASE | re.ASCII)
"""Words that begin with a minus sign but are values; argparse itself knows no exponents."""
_INSTEAD = {
    "--json": "--format json",
    "--csv": "--format csv",
    "--markdown": "--format markdown",
    "--window": "--mask window:LEFT[,RIGHT]",
}
"""Options that do not exist, and what to write for them."""
SCRIPT = "attention-sandbox"
"""Name of the installed script."""


def program_name() -> str:
    """Return the words that start the command line as the user started it."""
    return SCRIPT if Path(sys.argv[0]).name == SCRIPT else "python -m harness"


@dataclass(frozen=True)
class Command(Generic[R]):
    """A command of the command line."""

    name: str
    help: str
    """One line for the list of commands. `--help` begins with it."""
    add_options: Callable[[argparse.ArgumentParser, Operation], None]
    """Adds the command's options to a parser. The operation is the one that --operation names."""
    request: type[R]
    """Class that the options are read into."""
    run: Callable[[R], int]
    """Runs the command and publishes the result. Returns the exit status."""
    study: Callable[[R], StudyResult[Any]] | None = None
    """Runs the command without publishing, for calls from Python; None if the command has no result."""
    call: Callable[[Any, Any, Mapping[str, Any]], StudyResult[Any]] | None = None
    """(variant, plugins, options) -> the result, for calls from Python that pass arrays; None if none do."""
    examples: tuple[tuple[str, str], ...] = ()
    """Arguments and what they do, for the end of `--help`."""


class HelpText(argparse.HelpFormatter):
    """Help whose usage line shows positional arguments, and `[options]` for all options.

    Indented lines of the epilog are not wrapped. A tab in a line begins a column.
    """

    @override
    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], groups: Any, prefix: str | None = None
    ) -> None:
        options = argparse.Action([], "options", nargs="?", metavar="options")
        super().add_usage(usage, [options, *(each for each in actions if not each.option_strings)], [], prefix)

    @override
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        def filled(line: str) -> str:
            name, _, idea = line.rpartition("\t")
            if line.startswith(" ") and not name:
                return line
            return textwrap.fill(idea, width, initial_indent=name, subsequent_indent=" " * len(name))

        return "\n".join(indent + filled(line) for line in text.splitlines())


class CommandParser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, without the usage text."""

    def __init__(self, **how: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpText, **how)
        self._negative_number_matcher = _NEGATIVE_NUMBER
        self.commands: dict[str, CommandParser] = {}
        """The parsers of commands, by name."""
        self.owners: Callable[[str, str], str] = lambda command, name: ""
        """(command, option) -> who else has an option that the command lacks, in words; empty if nobody has."""

    def set_completer(self, name: str, complete: Callable[..., Iterable[str]]) -> None:
        """Let a shell complete the values of the argument that is stored as `name`, if there is one.

        argcomplete calls `complete(prefix=..., ...)`.
        """
        for action in self._actions:
            if action.dest == name:
                action.completer = complete  # type: ignore[attr-defined]

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with the message."""
        raise UsageError(f"{message}; see '{self.prog} --help'")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments like `parse_args`, but suggest the most similar option for an unknown one."""
        arguments, unknown = self.parse_known_args(words)
        if unknown:
            command = self.commands[arguments.command]
            command.error(f"unrecognized argument {unknown[0]!r}{self._hint_at(unknown[0], arguments.command)}")
        return arguments

    def _hint_at(self, word: str, command: str) -> str:
        """What the user of a command probably meant by an unknown word, to continue a message; empty if unknown."""
        known = self.commands[command]._option_string_actions
        name = word.partition("=")[0]
        if not name.startswith("-"):
            if name.endswith(".py") and "--plugin" in known:
                return f"; for a variant in your own file, add --plugin {name}"
            takes_words = any(not action.option_strings for action in self.commands[command]._actions)
            return f"; to select variants, add --variants {name}" if "--variants" in known and not takes_words else ""
        instead = _INSTEAD.get(name, "")
        if instead and instead.split()[0] in known:
            return f"; write {instead}"
        owners = self.owners(command, name)
        if owners:
            return f", {owners}"
        bare = did_you_mean(name.lstrip("-"), [each.lstrip("-") for each in known])
        return bare.replace("'", "'--", 1).rstrip(".")


def argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make `parse` an argparse type: the message of its `ValueError` or `UsageError` is what the user reads."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, UsageError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


WHOLE_NUMBER, NUMBER = argument_type(whole_number), argument_type(real_number)
"""Argparse types for an integer and for a real number."""


def add_epilog(parser: argparse.ArgumentParser, title: str, entries: Iterable[tuple[str, str]]) -> None:
    """Add names, with one line of description each, below the options of `--help`."""
    entries = list(entries)
    widest = max((len(name) for name, _ in entries), default=0)
    _append(parser, title, (f"  {name:{widest}}  \t{idea}" for name, idea in entries))


def add_examples(parser: argparse.ArgumentParser, examples: Iterable[tuple[str, str]]) -> None:
    """Add example calls, given as arguments and a description, to the end of `--help`."""
    _append(parser, "examples", (f"  {f'{parser.prog} {words}'.rstrip()}\n      {text}" for words, text in examples))


def _append(parser: argparse.ArgumentParser, title: str, lines: Iterable[str]) -> None:
    parser.epilog = "\n".join([*([parser.epilog, ""] if parser.epilog else []), f"{title}:", *lines])


def option(metavar: str | None, help: str, *, default: Any = None, **how: Any) -> Any:
    """Declare a dataclass field as an option. `metavar`, `help` and `how` are passed to `ArgumentParser.add_argument`.

    `default` is the value of the field if the option is omitted.
    """
    return field(default=default, metadata={"option": {"metavar": metavar, "help": help, **how}})


def flag(help: str) -> Any:
    """Declare a dataclass field as an option without a value."""
    return field(default=False, metadata={"option": {"action": "store_true", "help": help}})


def argument(metavar: str, help: str, **how: Any) -> Any:
    """Declare a dataclass field as a positional argument."""
    default: Any = {"?": None, "*": ()}.get(how.get("nargs", ""), MISSING)
    return field(default=default, metadata={"argument": {"metavar": metavar, "help": help, **how}})


def add_fields_of(kind: type[Any], parser: argparse._ActionsContainer, *names: str) -> None:
    """Add options and arguments for these fields of a dataclass to the parser, in this order.

    An underscore at the end of a field's name, as in `from_`, is not part of the option's name.
    """
    known = {each.name: each.metadata for each in fields(kind)}
    for name in names:
        if "argument" in known[name]:
            parser.add_argument(name, **known[name]["argument"])
        else:
            parser.add_argument(f"--{name.rstrip('_').replace('_', '-')}", dest=name, **known[name]["option"])


def read_options(kind: type[T], arguments: argparse.Namespace, **given: Any) -> T:
    """Create a dataclass from parsed options of the same names as its fields. `given` fields are not looked up."""
    values = {each.name: getattr(arguments, each.name, None) for each in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in {**values, **given}.items() if value is not None})
