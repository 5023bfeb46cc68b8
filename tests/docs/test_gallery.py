"""Every picture of the gallery is written by a command that stands on the page."""

from __future__ import annotations

import re

import pytest

from scripts.draw_gallery import GALLERY, ROOT, commands

pytestmark = pytest.mark.compiles(False)


def test_every_picture_has_its_command() -> None:
    shown = re.findall(r"\(gallery/([\w.]+)\)", (ROOT / "docs" / "gallery.md").read_text())
    written = [
        words[words.index(option) + 1] for words in commands() for option in ("--plot", "--roofline") if option in words
    ]
    assert shown == written and {path.name for path in GALLERY.iterdir()} == set(shown)
