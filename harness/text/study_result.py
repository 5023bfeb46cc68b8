"""The result of a study for a notebook or a script: its data, and the report that its command prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from harness.execution.results.kept_row import KeptRow
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files, require_writable
from harness.support.version import with_version
from harness.text.drawing import SUFFIXES
from harness.text.page.templates import render
from harness.text.report import Report, unbroken

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Picture:
    """A picture that a notebook shows."""

    content: bytes
    """Content of the file."""
    suffix: str
    """`.svg` or `.png`."""
    draw: Callable[[str], bytes] | None = None
    """Draws the same picture as a file of another suffix; None if there is only this one."""

    def __repr__(self) -> str:
        return f'<picture, {self.suffix[1:]}, {len(self.content):,} bytes; write it with .save("NAME{self.suffix}")>'

    def _repr_svg_(self) -> str | None:
        return self.content.decode() if self.suffix == ".svg" else None

    def _repr_png_(self) -> bytes | None:
        return self.content if self.suffix == ".png" else None

    def save(self, path: str | Path) -> None:
        """Write the file atomically, in the format that its suffix names. Raises `UsageError`."""
        target = Path(path)
        require_writable(target)
        replace_files({target: self.as_file(target.suffix.lower())})

    def as_file(self, suffix: str) -> bytes:
        """The content of a file of this suffix. Raises `UsageError` if the picture does not exist in that format."""
        if suffix == self.suffix:
            return self.content
        if suffix not in SUFFIXES:
            raise UsageError(f"a picture is {' or '.join(SUFFIXES)}, not {suffix!r}; change the end of the file's name")
        if self.draw is None:
            raise UsageError(f"this picture exists only as {self.suffix}; change the end of the file's name")
        return self.draw(suffix)


@dataclass(frozen=True, repr=False)
class StudyResult(Generic[T]):
    """The result of a study. Prints as the table that the command prints; a notebook shows the same table as HTML."""

    result: T
    """The data: a frozen dataclass of that study, or a tuple of them."""
    report: Report
    """The content of the command's output."""
    passed: bool
    """Whether something ran, and all that ran passed."""
    ran: bool = True
    """Whether any variant supported the problem."""
    pictures: Mapping[str, Callable[[str], bytes]] = field(default_factory=dict)
    """Functions that draw the pictures, by name. Each takes a suffix (`.svg`, `.png`) and returns the file's bytes."""
    kept: Callable[[], Sequence[KeptRow]] = tuple
    """Function that returns the rows to store."""

    def __repr__(self) -> str:
        return self.report.render("table").rstrip("\n")

    def _repr_markdown_(self) -> str:
        return self.report.render("markdown")

    def _repr_html_(self) -> str:
        return inline_html(self.report)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dict per row, as `--format csv` has them: bytes as whole numbers, and None for unknown values."""
        records: Sequence[Mapping[str, Any]]
        records, keys = self.report.records()
        return [{key: record.get(key) for key in keys} for record in records]

    def to_dict(self) -> dict[str, Any]:
        """The object that `--format json` writes."""
        return with_version(self.report.document())

    def render(self, format: str) -> str:
        """The command's output as `table`, `markdown`, `csv` or `json`, ending in a line break."""
        return self.report.render(format)

    def picture(self, name: str | None = None, suffix: str = ".svg") -> Picture:
        """Draw one of `pictures`, by default the first. Raises `UsageError` if there is no such picture."""
        if not self.pictures:
            raise UsageError("there is no picture of this; a sweep has some, such as traffic(sweep='q_len=128..1024')")
        name = next(iter(self.pictures)) if name is None else name
        if name not in self.pictures:
            raise UsageError(f"no picture {name!r}; pictures: {', '.join(self.pictures)}")
        if suffix not in SUFFIXES:
            raise UsageError(f"a picture is {' or '.join(SUFFIXES)}, not {suffix!r}")
        return Picture(self.pictures[name](suffix), suffix, self.pictures[name])


@dataclass(frozen=True, repr=False)
class RunResult(StudyResult[T]):
    """The result of a run on the user's own arrays. Prints as the table that the command `run` prints."""

    outputs: Mapping[str, Any] = field(default_factory=dict)
    """O, lse and the like by name, as arrays of the library that the first input is from, with the axes of the inputs.
    Empty if the variant failed before it had written them."""


def inline_html(report: Report) -> str:
    """The content of `Report.render` for people, without scripts, colours or page-wide styles."""
    parts = [(type(part).__name__, part) for part in report.paragraphs() if part]
    notes = [unbroken(note) for note in report.notes() if note]
    return render("inline_report.html", parts=parts, notes=notes)
