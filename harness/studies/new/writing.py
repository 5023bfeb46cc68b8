"""Writes a variant's file from a template: a kernel with one thread per row, its plan and its registration."""

from __future__ import annotations

import re
from pathlib import Path

from harness.model.discovery import REPOSITORY_ROOT
from harness.support.errors import UsageError

TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def path_of(name: str, operation: str, folder: Path | None) -> Path:
    """The path of the file: in `folder`, or in the operation's folder of variants/.

    Raises `UsageError` for a bad name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a variant; write lower-case words joined by hyphens, such as my-idea")
    home = REPOSITORY_ROOT / "variants" / operation.replace("-", "_") if folder is None else folder
    return home / f"{name.replace('-', '_')}.py"


def new_variant(name: str, operation: str, language: str) -> str:
    """The text of the file. Raises `UsageError` if there is no template for such a variant."""
    template = TEMPLATES / f"{operation.replace('-', '_')}_{language}.py.txt"
    if not template.exists():
        known = sorted(
            " in ".join(path.name.removesuffix(".py.txt").rsplit("_", 1)) for path in TEMPLATES.glob("*.py.txt")
        )
        raise UsageError(f"there is no template for {operation} in {language}; there are {', '.join(known)}")
    return template.read_text().replace("NEW_NAME", name.replace("-", "_")).replace("NEW-NAME", name)
