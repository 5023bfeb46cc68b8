"""What an error message or a failing table suggests to do next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.cli import main

PLUGINS = Path(__file__).parent / "plugins"


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("word", "suggested"),
    [("sanitize", "compare --sanitize"), ("race", "compare --sanitize"), ("check", "'compare' checks one problem")],
)
def test_a_word_that_is_no_command_names_what_does_that(
    word: str, suggested: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "fa2-cupy"]) == 2
    assert f"no command '{word}'; " in (err := capsys.readouterr().err) and suggested in err


@pytest.mark.compiles(False)
def test_an_unknown_variant_may_lack_its_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "zzz"]) == 2
    assert "For a variant in your own file, add --plugin FILE.py" in capsys.readouterr().err
    assert main(["fuzz", "zzz", "--plugin", str(PLUGINS / "one_thread_per_row.py")]) == 2
    assert "--plugin" not in capsys.readouterr().err


@pytest.mark.compiles
def test_a_failing_variant_has_a_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = str(PLUGINS / "broken_kernels.py")
    words = ["compare", "--plugin", plugin, "--device", "emulator", "--seq-len", "8", "--heads", "1"]
    assert main([*words, "--variants", "bad-answer"]) == 1
    out = capsys.readouterr().out
    assert re.search(rf"^Next: python -m harness fuzz bad-answer --plugin {plugin}$", out, re.MULTILINE)
    assert "'compare --sanitize' searches for races" in out
    assert main([*words, "--variants", "fa2-cupy"]) == 0
    assert "Next:" not in capsys.readouterr().out


@pytest.mark.compiles
def test_a_variant_of_the_user_that_passes_has_a_next_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = str(PLUGINS / "one_thread_per_row.py")
    words = ["compare", "--plugin", plugin, "--device", "emulator", "--seq-len", "8", "--heads", "1"]
    assert main([*words, "--variants", "one-thread-per-row,fa2-cupy"]) == 0
    expected = (
        f"Passed on this problem only. Next: python -m harness fuzz one-thread-per-row --plugin {plugin} --sanitize"
    )
    assert expected in capsys.readouterr().out.splitlines()
