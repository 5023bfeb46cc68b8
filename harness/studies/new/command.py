"""`new`: write a working variant to start from."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from harness.model.discovery import REPOSITORY_ROOT
from harness.model.operation import DEFAULT_OPERATION, Operation
from harness.options.command import Command, add_fields_of, argument, flag, option, program_name
from harness.options.exit_status import PASSED
from harness.options.problem import add_operation
from harness.options.request import Request
from harness.options.standard_streams import print_result
from harness.support.errors import UsageError

TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class NewRequest(Request):
    """The variant to write."""

    name: str = argument("NAME", "name of the new variant, such as my-idea")
    operation: str
    numba: bool = flag("write a Numba kernel instead of a CuPy RawKernel")
    folder: Path | None = option(
        "DIR",
        "folder for the file, which you then pass with --plugin (default: in a checkout, variants/OPERATION/, where it "
        "is found without --plugin; elsewhere, the current folder)",
        type=Path,
    )


def default_folder() -> Path | None:
    """The folder if none is named: the current one outside of the checkout, and None for variants/ in it."""
    is_checkout = (REPOSITORY_ROOT / "pyproject.toml").is_file() and Path.cwd().is_relative_to(REPOSITORY_ROOT)
    return None if is_checkout else Path()


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
        raise UsageError(f"there is no template for {operation} in {language}; templates: {', '.join(known)}")
    return template.read_text().replace("NEW_NAME", name.replace("-", "_")).replace("NEW-NAME", name)


def run_new(request: NewRequest) -> int:
    """Run `new`; the exit status."""
    from harness.execution.isolation.variants import discover_isolated
    from harness.support.file_replacement import replace_files

    language = "numba" if request.numba else "cupy"
    folder = default_folder() if request.folder is None else request.folder
    path = path_of(request.name, request.operation, folder)
    text = new_variant(request.name, request.operation, language)
    if path.exists():
        raise UsageError(f"{path} already exists; choose another NAME, or remove it")
    if request.name in {variant.name for variant in discover_isolated().registry}:
        raise UsageError(f"there is already a variant {request.name!r}; choose another NAME")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path.parent}: {error.strerror}") from error
    replace_files({path: text.encode()})
    plugin = f" --plugin {shlex.quote(os.path.relpath(path))}" if folder is not None else ""
    operation = "" if request.operation == DEFAULT_OPERATION else f" --operation {request.operation}"
    shown = os.path.relpath(path)
    print_result(
        f"Wrote {shown}, a correct but slow variant to start from. Next:\n"
        f"  {program_name()} compare{operation} --variants {request.name}{plugin}\n"
        f"  {program_name()} fuzz {request.name}{plugin}\n",
    )
    return PASSED


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `new`."""
    add_operation(parser)
    add_fields_of(NewRequest, parser, "name", "numba", "folder")


COMMAND = Command(
    "new",
    "write a working variant to start from",
    add_options,
    NewRequest,
    run_new,
    examples=(
        ("my-idea", "Write a variant as a CuPy RawKernel."),
        ("my-idea --numba", "Write it as a Numba kernel."),
        ("my-softmax --operation softmax --folder .", "Write a variant of another operation into the current folder."),
    ),
)
