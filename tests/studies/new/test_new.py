from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from lanes import exhaustive_unless

from harness.cli import main
from harness.studies.new.command import TEMPLATES, path_of

TEMPLATES_OF = [path.name.removesuffix(".py.txt").rsplit("_", 1) for path in sorted(TEMPLATES.glob("*.py.txt"))]


@pytest.mark.parametrize(
    ("operation", "language"),
    exhaustive_unless(lambda of: of == ("attention", "cupy"), map(tuple, TEMPLATES_OF)),
)
def test_what_it_writes_runs_and_passes(operation: str, language: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    name = f"my-idea-{operation.replace('_', '-')}-{language}"
    option = ["--operation", operation.replace("_", "-")]
    numba = ["--numba"] if language == "numba" else []
    assert main(["new", name, *option, *numba, "--folder", str(tmp_path)]) == 0
    assert (
        f"compare{'' if operation == 'attention' else ' ' + ' '.join(option)} --variants {name}"
        in capsys.readouterr().out
    )
    path = path_of(name, operation, tmp_path)
    assert main(["compare", *option, "--plugin", str(path), "--variants", name, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["variant"], row["backend"], row["verdict"]) == (name, language, "pass")


def test_outside_the_checkout_it_lies_in_the_current_folder_and_the_printed_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-idea"]) == 0
    assert (tmp_path / "my_idea.py").is_file()
    (command,) = re.findall(r"python -m harness (compare .*)", capsys.readouterr().out)
    assert command == "compare --variants my-idea --plugin my_idea.py"
    assert main([*command.split(), "--seq-len", "32", "--format", "json"]) == 0
    assert [row["verdict"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["pass"]


def test_the_commands_name_the_installed_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.setattr("sys.argv", ["/bin/attention-sandbox"])
    folder = tmp_path / "two words"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-idea", "--folder", "two words"]) == 0
    assert "  attention-sandbox compare --variants my-idea --plugin 'two words/my_idea.py'\n" in capsys.readouterr().out


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main(["new", "my-idea", "--folder", str(tmp_path)]) == 0
    (tmp_path / "my_idea.py").write_text("mine")
    assert main(["new", "my-idea", "--folder", str(tmp_path)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert (tmp_path / "my_idea.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["My Idea"], "lower-case words joined by hyphens"),
        (["fa2-cupy"], "there is already a variant 'fa2-cupy'"),
        (["x", "--operation", "attnetion"], "did you mean 'attention'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main(["new", *arguments, "--folder", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_a_folder_it_lies_where_it_is_found():
    root = Path(__file__).resolve().parents[3]
    assert path_of("my-idea", "attention", None) == root / "variants" / "attention" / "my_idea.py"
