"""The command line: parses arguments, runs one command, and turns every error into one line and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from harness.execution.isolation.process import end_planners
from harness.execution.results.place import keeps_always
from harness.model.operation import DEFAULT_OPERATION, operation_named, operation_names
from harness.options.command import SCRIPT, CommandParser, add_examples, program_name
from harness.options.exit_status import BROKEN_PIPE, FAILED, INTERRUPTED, PASSED, WRONG_CALL
from harness.options.standard_streams import complain, discard_output, prepare_streams, print_result
from harness.options.watch import watching
from harness.studies.commands import COMMANDS, command_named
from harness.support.cache import default_cache
from harness.support.errors import SandboxError, UsageError
from harness.support.suggestion import did_you_mean
from harness.support.version import VERSION

OPTIONS_INSTEAD = {
    **dict.fromkeys(
        ("sanitize", "sanitizer", "race", "races", "racecheck", "memcheck"),
        "'compare --sanitize' and 'fuzz --sanitize' search for races and unwritten memory",
    ),
    **dict.fromkeys(("check", "test", "verify"), "'compare' checks one problem, 'fuzz' searches for one that fails"),
    "profile": "'traffic' counts bytes, 'why' names what costs time, 'bench' measures it on a GPU",
}
"""What to use for words that are not commands but describe something that a command does."""


def build_parser(operation: str = DEFAULT_OPERATION, names: Iterable[str] = COMMANDS) -> CommandParser:
    """Build the parser of these commands, each option with help. Raises `UsageError` for an unknown operation."""
    chosen = operation_named(operation)
    program = program_name()
    parser = CommandParser(
        prog=program,
        description="Compare attention kernels: correctness, bytes moved, speed.",
        epilog=f"'{program} help COMMAND' shows the options of a command and examples.\n"
        "Exit status: 0 if all variants that ran passed, 1 if one failed, 2 if the command line is invalid.",
    )
    parser.add_argument("--version", action="version", version=f"{SCRIPT} {VERSION}", help="show the version and exit")
    parser.owners = lambda command, name: _owners(command, name, operation)
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True, prog=program)
    for command in map(command_named, names):
        description = f"{command.help[0].upper()}{command.help[1:]}."
        sub = commands.add_parser(command.name, help=command.help, description=description)
        command.add_options(sub, chosen)
        add_examples(sub, command.examples)
        parser.commands[command.name] = sub
    return parser


def _owners(command: str, option: str, operation: str) -> str:
    """Which operations, or else which commands, have an option that this command of the operation lacks, in words."""

    def has(other: str, kind: str) -> bool:
        return option in build_parser(kind, [other]).commands[other]._option_string_actions

    operations = [each for each in operation_names() if has(command, each)]
    if operations:
        return f"an option of --operation {', '.join(operations)}, not of {operation}"
    commands = [each for each in COMMANDS if has(each, operation)]
    return f"an option of {', '.join(commands)}, not of {command}" if commands else ""


def _complete_words() -> None:
    """Print completions of the words that argcomplete's shell code passes on, and exit."""
    import argcomplete

    parser = build_parser()
    for command in parser.commands.values():
        for name, complete in (("variant", _variant_names), ("other", _variant_names), ("variants", _name_lists)):
            command.set_completer(name, complete)
    argcomplete.autocomplete(parser)


def _variant_names(**_: Any) -> list[str]:
    from harness.execution.isolation.variants import discover_isolated

    return [variant.name for variant in discover_isolated().registry]


def _name_lists(prefix: str, **_: Any) -> list[str]:
    """Lists of names that begin with `prefix`, of which only the last name may be incomplete."""
    before = prefix.rpartition(",")[0]
    return [f"{before},{name}" if before else name for name in _variant_names()]


def _operation_in(words: Sequence[str]) -> str:
    """The value of --operation. It is parsed first, because the other options depend on it."""
    early = CommandParser(add_help=False)
    early.add_argument("--operation", default=DEFAULT_OPERATION)
    name: str = early.parse_known_args(words)[0].operation
    return name


def _help_as_option(words: Sequence[str]) -> list[str]:
    """Return the words with `help COMMAND` replaced by `COMMAND --help`, and no words at all by `--help`.

    Raises `UsageError` for an unknown command.
    """
    if not words or list(words) == ["help"]:
        return ["--help"]
    spelled = [words[1], "--help", *words[2:]] if words[0] == "help" else list(words)
    if not spelled[0].startswith("-") and spelled[0] not in COMMANDS:
        instead = OPTIONS_INSTEAD.get(spelled[0])
        hint = did_you_mean(spelled[0], COMMANDS) if instead is None else f"; {instead}."
        raise UsageError(f"no command {spelled[0]!r}{hint} Commands: {', '.join(COMMANDS)}")
    return spelled


def _run(words: Sequence[str]) -> int:
    """Parse and run a command. Returns the exit status, which is 0 after `--help`."""
    words = _help_as_option(words)
    try:
        # A named command does not import the other commands.
        names = [word for word in words[:1] if word in COMMANDS] or COMMANDS
        arguments = build_parser(_operation_in(words), names).parse(words)
    except SystemExit:
        return PASSED
    command = command_named(arguments.command)
    return watching(arguments, lambda kept: command.run(command.request.read(arguments, kept=kept)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    User errors are printed as one line on stderr, never as a traceback.
    """
    prepare_streams()
    try:
        if argv is None and "_ARGCOMPLETE" in os.environ:
            _complete_words()
        words = sys.argv[1:] if argv is None else list(argv)
        default_cache()  # these say what is wrong with the environment before any work is done
        keeps_always()
        status = _run(words)
        print_result("")
        return status
    except SandboxError as error:
        complain(str(error))
        return WRONG_CALL if isinstance(error, UsageError) else FAILED
    except MemoryError as error:
        complain(f"not enough memory for this problem: {error}")
        return WRONG_CALL
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return BROKEN_PIPE
    finally:
        end_planners()
