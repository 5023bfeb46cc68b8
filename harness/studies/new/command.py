"""`new`: write a working variant to start from."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.model.discovery import REPOSITORY_ROOT, Discovery
from harness.model.operation import DEFAULT_OPERATION, Operation, operation_named
from harness.model.variant import SIMILAR, Variant
from harness.options.command import Command, add_fields_of, argument, flag, option, program_name
from harness.options.exit_status import PASSED
from harness.options.problem import add_operation
from harness.options.request import Request
from harness.options.standard_streams import print_result
from harness.studies.new.copied_variant import copied_files, shared_folders
from harness.support.errors import UsageError
from harness.support.file_replacement import path_to_show
from harness.support.suggestion import did_you_mean

TEMPLATES = Path(__file__).parent / "templates"
SIXTEEN_BITS = "bfloat16"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class NewRequest(Request):
    """The variant to write."""

    name: str = argument("NAME", "name of the new variant, such as my-idea")
    operation: str
    numba: bool = flag("write a Numba kernel instead of a CuPy RawKernel")
    from_: str | None = option(
        "VARIANT",
        "copy the kernels of this variant of variants/, as a plugin in the current folder or in --folder; code that "
        "variants share, in variants/_*/, is not copied",
    )
    folder: Path | None = option(
        "DIR",
        "folder for the file, which you then pass with --plugin (default: in a checkout, variants/OPERATION/, where it "
        "is found without --plugin; elsewhere, and with --from, the current folder)",
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


@dataclass(frozen=True)
class NewPlugin:
    """What `new` writes."""

    path: Path
    """The file or folder for --plugin."""
    files: Mapping[Path, str]
    description: str
    """What it is, as one or two sentences without a subject."""
    compared: str
    """Options of `compare` that run it."""


def run_new(request: NewRequest) -> int:
    """Run `new`; the exit status."""
    from harness.execution.isolation.variants import discover_isolated
    from harness.support.file_replacement import replace_files

    found = discover_isolated()
    new = _from_template(request) if request.from_ is None else _copy(request, found)
    if new.path.exists():
        raise UsageError(f"{new.path} already exists; choose another NAME, or remove it")
    if request.name in {variant.name for variant in found.registry}:
        raise UsageError(f"there is already a variant {request.name!r}; choose another NAME")
    for folder in {each.parent for each in new.files}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from error
    replace_files({path: text.encode() for path, text in new.files.items()})
    plugin = "" if is_found(new.path) else f" --plugin {shlex.quote(path_to_show(new.path))}"
    print_result(
        f"Wrote {path_to_show(new.path)}, {new.description} Next:\n"
        f"  {program_name()} compare {new.compared}{plugin}\n"
        f"  {program_name()} fuzz {request.name}{plugin}\n",
    )
    return PASSED


def _from_template(request: NewRequest) -> NewPlugin:
    folder = default_folder() if request.folder is None else request.folder
    path = path_of(request.name, request.operation, folder)
    text = new_variant(request.name, request.operation, "numba" if request.numba else "cupy")
    compared = f"{_option_of(request.operation)}--variants {request.name}"
    return NewPlugin(path, {path: text}, "a correct but slow variant to start from.", compared)


def _copy(request: NewRequest, found: Discovery) -> NewPlugin:
    if request.numba:
        raise UsageError("leave out --numba: --from copies a variant in its language")
    names = [variant.name for variant in found.registry]
    if request.from_ not in names:
        similar = did_you_mean(str(request.from_), names, SIMILAR)
        raise UsageError(f"no variant {request.from_!r}{similar} 'list' shows all variants")
    original = found.registry.get(request.from_)
    folder = path_of(request.name, original.operation, request.folder or Path()).parent
    files = copied_files(request.name, original, found)
    shared = shared_folders(files)
    *most, last = shared or ("",)
    beside = f" Shared code stays in {' and '.join(filter(None, (', '.join(most), last)))}." if shared else ""
    options = f"{_option_of(original.operation)}{_what_it_needs(original)}"
    return NewPlugin(
        folder / next(iter(files)).parts[0],
        {folder / path: text for path, text in files.items()},
        f"a copy of {original.name}.{beside}",
        f"{options}--variants {original.name},{request.name}",
    )


def _option_of(operation: str) -> str:
    return "" if operation == DEFAULT_OPERATION else f"--operation {operation} "


def _what_it_needs(variant: Variant) -> str:
    """Options for a problem and an architecture on which the variant runs, if the default ones are not."""
    problem: Any = operation_named(variant.operation).problem()
    needed = "" if variant.arch is None else f"--arch {variant.arch} "
    if variant.supports(problem) is not None and variant.supports(replace(problem, dtype=SIXTEEN_BITS)) is None:
        needed += f"--dtype {SIXTEEN_BITS} "
    return needed


def is_found(path: Path) -> bool:
    """Whether a variant's file or folder lies in variants/ or in a folder for one operation there."""
    home = REPOSITORY_ROOT / "variants"
    parent = path.resolve().parent
    return home in (parent, parent.parent) and not parent.name.startswith("_")


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `new`."""
    add_operation(parser)
    add_fields_of(NewRequest, parser, "name", "numba", "from_", "folder")


COMMAND = Command(
    "new",
    "write a working variant to start from",
    add_options,
    NewRequest,
    run_new,
    examples=(
        ("my-idea", "Write a variant as a CuPy RawKernel."),
        ("my-fa2 --from fa2-cupy", "Copy a variant into the current folder, to change its kernel."),
        ("my-softmax --operation softmax --numba --folder .", "Write a softmax in Numba into the current folder."),
    ),
)
