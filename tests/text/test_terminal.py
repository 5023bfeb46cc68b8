"""Tables and texts at a terminal's width, and colours."""

from __future__ import annotations

import io
import re
import sys
from textwrap import fill

import pytest

from harness.cli import main
from harness.text.report import NOTE_WIDTH, Report, Table
from harness.text.terminal import PLAIN, Terminal, terminal_of

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
NAMES = ("three-pass-recompute-cupy", "fa2-numba")
TABLE = Table(
    ("rank", "variant", "verdict", "time /\nbest", "where"),
    [[str(i), name, verdict, "1.25", "w" * 70] for i, (name, verdict) in enumerate(zip(NAMES, ("pass", "fail")))],
    (True, False, False, True, False),
    expendable=("time /\nbest",),
)


class Screen(io.StringIO):
    """A terminal that remembers what was written."""

    def isatty(self) -> bool:
        return True


def report(**parts: object) -> Report:
    made = {"paragraphs": lambda: [TABLE], "notes": lambda: [], "records": lambda: ([], ()), "document": dict}
    return Report(**{**made, **parts})


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, None])
def test_no_line_is_wider_than_the_terminal_and_what_is_left_out_is_named(width: int | None):
    text = report().render("table", Terminal(width, colour=True))
    lines = ESCAPE.sub("", text).splitlines()
    assert width is None or max(map(len, lines)) <= width
    assert len([line for line in lines if re.match(r" *\d", line)]) == len(NAMES), "a row has one line"
    shown = "time /" in lines[0]
    assert shown or "Columns that do not fit: time / best" in " ".join(lines)
    assert shown == (width in (80, 100, 120, None))


def test_names_are_cut_last():
    assert all(name in report().render("table", Terminal(60)) for name in NAMES)


def test_notes_and_paragraphs_are_wrapped():
    words = "one two three four five six seven eight nine ten " * 4
    made = report(paragraphs=lambda: [words, "  " + words], notes=lambda: ["a note\nof two lines", words])
    lines = made.render("table", Terminal(50)).splitlines()
    assert max(map(len, lines)) <= 50
    assert "a note of two lines" in lines


def test_a_paragraph_that_was_wrapped_already_is_wrapped_anew():
    words = " ".join(["words"] * 50)
    wrapped = f"{fill(words, NOTE_WIDTH)}\nA short line."
    lines = report(paragraphs=lambda: [wrapped]).render("table", Terminal(80)).splitlines()
    assert lines == [*fill(words, 80).splitlines(), "A short line."]


def test_verdicts_are_coloured_and_nothing_else():
    text = report().render("table", Terminal(None, colour=True))
    assert "\x1b[31;1mfail\x1b[0m" in text and "\x1b[32mpass\x1b[0m" in text
    assert ESCAPE.sub("", text) == report().render("table", PLAIN)


@pytest.mark.parametrize(
    ("variables", "choice", "screen", "colour"),
    [
        ({}, "auto", True, True),
        ({}, "auto", False, False),
        ({"NO_COLOR": "1"}, "auto", True, False),
        ({"FORCE_COLOR": "1"}, "auto", False, True),
        ({"TERM": "dumb"}, "auto", True, False),
        ({"NO_COLOR": "1"}, "always", False, True),
        ({}, "never", True, False),
    ],
)
def test_when_colours_are_used(
    variables: dict[str, str], choice: str, screen: bool, colour: bool, monkeypatch: pytest.MonkeyPatch
):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm", "COLUMNS": "80"} | variables).items():
        monkeypatch.setenv(name, value)
    found = terminal_of(Screen() if screen else io.StringIO(), choice)
    assert (found.colour, found.width) == (colour, 80 if screen else None)


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["list", "--regimes"],
        ["traffic", "fa9-cupy"],
        ["compare", "--variants", "fa2-cupy", "--head-dim", "999", "--seq-len", "1"],
        ["compare", "--mask", "window:1,2,3,4,5"],
        ["compare", "--sequence-len", "12"],
        ["nothing"],
        ["fuzz", "fa2-cupy", "--replay", "{"],
    ],
)
def test_what_commands_print_fits_the_terminal(words: list[str], width: int, monkeypatch: pytest.MonkeyPatch):
    out, err = Screen(), Screen()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    main(words)
    lines = ESCAPE.sub("", out.getvalue() + err.getvalue()).splitlines()
    assert lines and max(map(len, lines)) <= width


def test_colours_reach_the_terminal_and_a_hostile_escape_does_not(monkeypatch: pytest.MonkeyPatch):
    from harness.options.standard_streams import print_styled

    out = Screen()
    monkeypatch.setattr(sys, "stdout", out)
    print_styled("\x1b[32mpass\x1b[0m \x1b]0;title\x07\n")
    assert out.getvalue() == "\x1b[32mpass\x1b[0m \\x1b]0;title\\x07\n"
