#!/usr/bin/env python
"""Draw the pictures of docs/gallery.md again, each with the command that the page shows above it, and those of kernels.

The picture of a report needs Chromium (`scripts/browser`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from harness.cli import main  # noqa: E402
from scripts.gallery_pages import pages, write_page  # noqa: E402
from scripts.shown_outputs import blocks, harness_arguments  # noqa: E402
from tests.browser import browser, open_page, why_no_browser  # noqa: E402

GALLERY = ROOT / "docs" / "gallery"


def commands() -> list[list[str]]:
    """The arguments of each command of the page."""
    lines = (line for block in blocks("sh") if block.page.stem == GALLERY.name for line in block.text.splitlines())
    return [arguments for line in lines if (arguments := harness_arguments(line)) is not None]


def draw_report(picture: Path) -> None:
    """Write a picture of the upper part of the report's page. Raises `SystemExit` without a browser."""
    from PIL import Image

    reason = why_no_browser()
    if reason is not None:
        sys.exit(f"{reason}; run scripts/browser first")
    with tempfile.TemporaryDirectory() as folder, browser() as driver:
        page, screenshot = Path(folder, "page.html"), Path(folder, "page.png")
        main(["report", "--variants", "fa1-cupy,fa2-cupy", "--output", str(page)])
        open_page(driver, page, width=1200)
        driver.save_screenshot(str(screenshot))
        Image.open(screenshot).convert("RGB").quantize().save(picture, optimize=True)


if __name__ == "__main__":
    os.chdir(GALLERY)
    status = max(main(arguments) for arguments in commands())
    for page in pages():
        write_page(page)
    draw_report(GALLERY.parent / "report.png")
    sys.exit(status)
