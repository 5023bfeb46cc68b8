"""Writes a working step for teachers to start from: `learn new-step NAME`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from string import ascii_lowercase

from harness.options.command import program_name
from harness.studies.learn.steps import find_lessons
from harness.support.errors import UsageError
from harness.support.file_replacement import path_to_show, replace_files

TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def write_new_step(name: str, folder: Path | None) -> str:
    """Write the folder `side_NAME` into `folder`, by default the current one. Returns what to do next.

    Raises `UsageError` for a name that is not usable or taken.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a step; write lower-case words joined by hyphens, such as my-step")
    home = Path() if folder is None else folder
    step = home / f"side_{name.replace('-', '_')}"
    if step.exists():
        raise UsageError(f"{step} is there already; choose another NAME, or remove it")
    lessons = find_lessons(home if home.is_dir() else None)
    if name in {lesson.name for lesson in lessons.values()}:
        raise UsageError(f"there is a step {name!r} already; choose another NAME")
    number = _free_letter(lessons)
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob("*.txt"))}
    try:
        step.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {step}: {error.strerror}") from error
    replace_files(
        {
            step / path.name.removesuffix(".txt"): text.replace("NEW-NAME", name).replace("NEW-NUMBER", number).encode()
            for path, text in texts.items()
        }
    )
    steps = f"--steps {path_to_show(home)}"
    return (
        f"Wrote {path_to_show(step)}, side path {number}: a step that works, to start from. Next:\n"
        f"  {program_name()} learn {number} {steps}\n"
        f"  {program_name()} learn task {number} {steps}\n"
        "docs/path/writing-a-step.md describes its files.\n"
    )


def _free_letter(taken: Iterable[str]) -> str:
    free = [letter for letter in ascii_lowercase if letter not in taken]
    if not free:
        raise UsageError("all letters from a to z are numbers of steps; remove a side path")
    return free[0]
