#!/usr/bin/env python
"""Draw the pictures of docs/gallery.md again, each with the command that the page shows above it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from harness.cli import main  # noqa: E402
from scripts.shown_outputs import blocks, harness_arguments  # noqa: E402

GALLERY = ROOT / "docs" / "gallery"


def commands() -> list[list[str]]:
    """The arguments of each command of the page."""
    lines = (line for block in blocks("sh") if block.page.stem == GALLERY.name for line in block.text.splitlines())
    return [arguments for line in lines if (arguments := harness_arguments(line)) is not None]


if __name__ == "__main__":
    os.chdir(GALLERY)
    sys.exit(max(main(arguments) for arguments in commands()))
