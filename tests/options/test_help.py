"""The help of commands, and suggestions for mistyped words."""

from __future__ import annotations

import shlex

import pytest

from harness.cli import build_parser, main
from harness.studies.commands import COMMANDS, command_named
from harness.support.version import VERSION


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert main(["help"]) == main(["--help"]) == 0
    assert capsys.readouterr().out == 2 * shown
    assert all(f"\n    {name} " in shown for name in COMMANDS)


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]):
    assert main(["help", "why"]) == 0
    shown = capsys.readouterr().out
    assert main(["why", "--help"]) == 0
    assert capsys.readouterr().out == shown
    assert shown.startswith("usage: python -m harness why [options] A [B]\n")


def test_version(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"attention-sandbox {VERSION}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("comprae", "no command 'comprae'; did you mean 'compare'? Commands: list, compare,"),
        ("help xyz", "no command 'xyz'. Commands: list, compare,"),
        ("compare --seqlen 3", "unrecognized argument '--seqlen'; did you mean '--seq-len'?; see"),
        ("compare --q-lne=3", "unrecognized argument '--q-lne=3'; did you mean '--q-len'?; see"),
        ("compare my.py", "unrecognized argument 'my.py'; for a variant in your own file, add --plugin my.py; see"),
        ("traffic fa1-cupy other", "unrecognized argument 'other'; see 'python -m harness traffic --help'"),
        ("compare --json", "unrecognized argument '--json'; write --format json; see"),
        ("compare --window 8", "unrecognized argument '--window'; write --mask window:LEFT[,RIGHT]; see"),
        ("compare fa2-cupy", "unrecognized argument 'fa2-cupy'; to select variants, add --variants fa2-cupy; see"),
        ("compare --zzz", "unrecognized argument '--zzz'; see"),
        ("compare --operation softmax --q-len 1", "unrecognized argument '--q-len', an option of --operation "),
        ("why a b --variants a", "unrecognized argument '--variants', an option of list, compare, "),
        ("run x --heads 8 --q q --k k --v v --out o", "unrecognized argument '--heads', an option of compare, "),
        ("compare --regime hto", "no regime 'hto'; did you mean 'hot'? Regimes: normal,"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(words: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(f"harness: {message}") and captured.err.count("\n") == 1


@pytest.mark.parametrize("value", ["-1e30", "-1", "-.5", "-2.5E+3", "-inf"])
def test_a_value_may_be_negative(value: str):
    assert build_parser(names=["compare"]).parse(["compare", "--scale", value]).scale == float(value)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_valid_calls(name: str):
    examples = command_named(name).examples
    assert len(examples) == 3
    for words, _ in examples:
        build_parser(names=[name]).parse([name, *shlex.split(words)])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_into_80_columns(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"]) == 0
    options, _, examples = capsys.readouterr().out.partition("\nexamples:\n")
    assert examples.count("python -m harness") == 3
    assert [line for line in options.splitlines() if len(line) > 80] == []


def test_regimes_are_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "--regimes"]) == 0
    assert "\nhot " in capsys.readouterr().out
    assert main(["list", "--regimes", "--operation", "softmax"]) == 0
    assert "\nhot " in capsys.readouterr().out
