"""Completion of commands, options and variants in a shell."""

from __future__ import annotations

import io

import pytest

from harness import cli

pytest.importorskip("argcomplete")
pytestmark = pytest.mark.compiles(False)


def completions(line: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What is offered at the end of the line."""
    for name, value in {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "IFS": "\n"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_ARGCOMPLETE_IFS", "\n")
    monkeypatch.delenv("COMP_TYPE", raising=False)
    stream = io.StringIO()
    with pytest.raises(SystemExit):
        cli.complete_words(output_stream=stream, exit_method=_exit)
    return {each.strip() for each in stream.getvalue().split("\n")}


def _exit(status: int) -> None:
    raise SystemExit(status)


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("attention-sandbox com", {"compare"}),
        ("attention-sandbox traffic --claim", {"--claim-draft"}),
        ("attention-sandbox compare --format j", {"json"}),
        ("attention-sandbox traffic fa2-mma-", {"fa2-mma-cupy", "fa2-mma-numba"}),
        ("attention-sandbox compare --variants fa1-cupy,fa2-mma-c", {"fa1-cupy,fa2-mma-cupy"}),
    ],
)
def test_words_are_completed(line: str, some: set[str], monkeypatch: pytest.MonkeyPatch):
    assert some == completions(line, monkeypatch)
