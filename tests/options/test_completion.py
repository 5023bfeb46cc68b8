"""Completion of commands, options and variants in a shell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("argcomplete")
pytestmark = pytest.mark.compiles(False)

COMPLETE = f"exec {sys.executable} -c 'from harness.cli import main; main()' 8>&1 9>/dev/null"
"""argcomplete writes what it offers to descriptor 8, and messages to 9."""


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
def test_words_are_completed(line: str, some: set[str]):
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n"}
    done = subprocess.run(["sh", "-c", COMPLETE], env={**os.environ, **asked}, capture_output=True, text=True)
    assert {each.strip() for each in done.stdout.split("\n")} == some, done.stderr
