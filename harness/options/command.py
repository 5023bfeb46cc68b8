"""What a command is: a name, its options, and the functions that run it. `harness/studies` has a list of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from harness.model.operation import Operation
from harness.support.errors import UsageError
from harness.support.numbers import real_number, whole_number

if TYPE_CHECKING:
    from harness.options.request import Request
    from harness.text.study_result import StudyResult

R = TypeVar("R", bound="Request")


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
