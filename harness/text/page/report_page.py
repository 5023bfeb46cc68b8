"""The result of `report` for a notebook: the page in a frame, and the ranking as data."""

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
    """Prints as the ranking; a notebook shows the whole page."""

    page: str = ""
    """The HTML file's text, which is self-contained."""

    def _repr_html_(self) -> str:
        # The page's security policy, styles and scripts apply within the frame only.
        style = f"width:100%;height:{FRAME_HEIGHT_PX}px;border:0"
        return f'<iframe title="report" style="{style}" srcdoc="{escape(self.page)}"></iframe>'

    def save(self, path: str | Path) -> None:
        """Write the page atomically. Raises `UsageError`."""
        require_writable(Path(path))
        replace_files({Path(path): self.page.encode()})
