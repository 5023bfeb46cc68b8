"""Three hundred bad calls of all commands: each ends in one message that fits the terminal and in status 2, none in a
traceback."""

from __future__ import annotations

import io
import random
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli import build_parser, main
from harness.model.operation import operation_names
from harness.options.command import CommandParser
from harness.studies.commands import COMMANDS

pytestmark = pytest.mark.compiles(False)

CALLS = 300
WIDTHS = (80, 100, 120)
BAD_VALUES = (
    "", " ", "-1", "0", "nan", "inf", "-inf", "1e999", "9" * 40, "0x10", "1_0", "1.5", "\u0663", "true", "None",
    ",", ",,", "=", "a=b", "Br=0", "Br=1,Br=2", "q_len=", "q_len=1..0", "q_len=0", "window:", "window:-1", "causal+",
    "nothing", "fa2-cupy,nothing", "*", "[", "../..", "/", "/dev/null", "/dev/full", "/proc/self/mem", "no/such/x",
    "a\nb", "a\x1b[31mb", "\ud800", "x" * 300, "{", "[]", '{"problem": 1}', "\u202eabc", "%s", "$(id)", "gpu9", "sm_1",
)  # fmt: skip
NOT_OPTIONS = ("--nothing", "--seq", "-x", "--", "---", "--head-dim", "--plugin", "--format", "--operation", "@file")


class Screen(io.StringIO):
    """A terminal that remembers what was written."""

    def isatty(self) -> bool:
        return True


def options_of(parser: CommandParser) -> list[str]:
    """Options that take a value."""
    return [action.option_strings[-1] for action in parser._actions if action.option_strings and action.nargs != 0]


def bad_calls() -> Iterator[list[str]]:
    """Calls with one to three wrong words. Where all words happen to be right, the variant does not exist."""
    rng = random.Random(0)
    parsers = {name: build_parser(name) for name in operation_names()}
    for _ in range(CALLS):
        operation = rng.choice(operation_names())
        command, parser = rng.choice(sorted(parsers[operation].commands.items()))
        words = [command, "--operation", operation] if rng.random() < 0.8 else [command]
        if command not in ("list", "history", "new"):
            words += ["no-such-variant"] if command in ("traffic", "why", "tune", "show", "fuzz", "run") else [
                "--variants", "no-such-variant"
            ]  # fmt: skip
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.15:
                words.insert(rng.randint(1, len(words)), rng.choice(NOT_OPTIONS))
            else:
                words += [rng.choice(options_of(parser)), rng.choice(BAD_VALUES)]
        if command == "history":  # names after -- are not looked up where nothing is stored
            words = [word for word in words if word != "--"] + ["--format", "nothing"]
        yield [*words, "--variants", "no-such-variant"] if command == "list" else words


def test_three_hundred_bad_calls(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path_factory.mktemp("calls"))
    for words in bad_calls():
        status = main(words)
        out, err = capsys.readouterr()
        call = shlex.join(words)
        assert (status, out) == (2, ""), call
        assert err.startswith("harness: ") and "\x1b" not in err and len(err) < 1500, (call, err)


def test_the_bad_calls_are_of_all_commands():
    assert {words[0] for words in bad_calls()} == set(COMMANDS)


def test_no_message_is_wider_than_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for number, words in enumerate(bad_calls()):
        width, screen = WIDTHS[number % len(WIDTHS)], Screen()
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "stderr", screen)
        assert main(words) == 2
        lines = screen.getvalue().splitlines()
        assert lines and max(map(len, lines)) <= width, (shlex.join(words), lines)
