"""What `report` came to, for a notebook: the page itself, in a frame of its own, and the ranking as data."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from harness.support.file_replacement import replace_files, require_writable
from harness.text.study_result import StudyResult

FRAME_HEIGHT_PX = 800


@dataclass(frozen=True, repr=False)
class ReportPage(StudyResult[Any]):
    """Printed, it is the ranking; in a notebook, the whole page."""

    page: str = ""
    """The HTML file's text, which needs nothing besides."""

    def _repr_html_(self) -> str:
        # The page's own policy, styles and scripts hold within the frame and nowhere else.
        style = f"width:100%;height:{FRAME_HEIGHT_PX}px;border:0"
        return f'<iframe title="report" style="{style}" srcdoc="{escape(self.page)}"></iframe>'

    def save(self, path: str | Path) -> None:
        """Write the page there, whole or not at all. Raises `UsageError`."""
        require_writable(Path(path))
        replace_files({Path(path): self.page.encode()})
