#!/usr/bin/env python
"""What README.md and docs/*.md show: files, commands, outputs. Run as a script, it writes the outputs anew.

A ```console block holds `$ command` lines, each followed by what it prints. The command is run as it stands, with the
emulator, in a folder that has the files which the pages show: a ```python block whose first line is `# NAME.py` is a
file of that name. What follows a `|` is a shell's. A comment behind the command says where it was run instead (on a
GPU, for minutes, ...): its output is kept, and only its options are checked.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from harness.cli import build_parser, main  # noqa: E402
from harness.model.operation import DEFAULT_OPERATION  # noqa: E402
from harness.support.errors import UsageError  # noqa: E402

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PATHS = re.compile(r"(?<!\S)/\S*/(?=variants/|[a-z_]+\.py:)")
"""What is compiled elsewhere names its files as they were named there."""
_VOLATILE_COLUMNS = ("error /", "per second", "since, UTC", "until", "then", "kernel digest")
"""The last digits of an error are the CPU's math library's, a digest is of what one compiler made; speed is the
machine's, and the date is today's."""
_RESULTS = "ATTENTION_SANDBOX_RESULTS_DIR"
_USERS_RESULTS = "~/.local/share/attention-sandbox"
"""Where results are kept by default. What pages keep lies in a folder of its own, and is shown as if it lay there."""


@dataclass(frozen=True)
class Block:
    """A fenced block of one page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text.splitlines()[0]}"


@dataclass(frozen=True)
class Shown:
    """A command and the output that stands below it."""

    command: str
    output: str

    @property
    def place(self) -> str:
        """Where it was run, if not here: the comment behind the command."""
        return self.command.partition(" # ")[2].strip()

    @property
    def filter(self) -> str:
        """What the output goes through, such as `head -n 5`."""
        return self.command.partition(" # ")[0].partition(" | ")[2].strip()


def pages() -> list[Path]:
    """README.md, all pages of docs/ and of its gallery, and those of algorithms in their folders."""
    docs = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "gallery").glob("*.md"))]
    return [ROOT / "README.md", *docs, *sorted((ROOT / "variants").rglob("README.md"))]


def blocks(language: str) -> list[Block]:
    """All blocks in that language, in order."""
    return [
        Block(page, language, text)
        for page in pages()
        for found, text in _BLOCK.findall(page.read_text())
        if found == language
    ]


def shown_files() -> dict[str, str]:
    """The files that pages show, by name."""
    files: dict[str, str] = {}
    for block in blocks("python"):
        named = re.match(r"# (\w+\.py)\n", block.text)
        if named:
            assert named[1] not in files, f"{block.page.name}: a second {named[1]}"
            files[named[1]] = block.text
    return files


def shown_in(block: Block) -> list[Shown]:
    """Every command of a ```console block with its output."""
    parts = [part.partition("\n") for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]]
    return [Shown(command, output.rstrip("\n")) for command, _, output in parts]


def harness_arguments(command: str) -> list[str] | None:
    """The arguments of `python -m harness` that a line of shell stands for; None where it is another program."""
    words = shlex.split(command.partition(" | ")[0], comments=True)
    if words[:1] == ["scripts/compare"]:
        return ["compare", *words[1:]]
    return words[3:] if words[:3] == ["python", "-m", "harness"] else None


def parsed(arguments: list[str]) -> argparse.Namespace:
    """What the arguments of `python -m harness` say. Raises `UsageError`."""
    operation = arguments[arguments.index("--operation") + 1] if "--operation" in arguments else DEFAULT_OPERATION
    return build_parser(operation).parse_args(arguments)


@contextlib.contextmanager
def folder_of_the_reader() -> Iterator[Path]:
    """A folder with the files that pages show, and `tests`; the working directory as long as it is there."""
    before, results = Path.cwd(), os.environ.get(_RESULTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tests").symlink_to(ROOT / "tests")
        for file, text in shown_files().items():
            (folder / file).write_text(text)
        os.chdir(folder)
        os.environ[_RESULTS] = str(folder / "results")
        try:
            yield folder
        finally:
            os.chdir(before)
            os.environ.pop(_RESULTS)
            os.environ.update({} if results is None else {_RESULTS: results})


def run(block: Block) -> list[Shown]:
    """The commands of a block with what they print now: the output, or the line that says what is wrong."""
    with folder_of_the_reader() as folder:
        return [one if one.place else Shown(one.command, _output(one, folder)) for one in shown_in(block)]


def _output(one: Shown, folder: Path) -> str:
    arguments = harness_arguments(one.command)
    if arguments is None:
        text = _shell(one.command, folder)
    elif arguments[0] == "emulate":  # it replaces the driver of its process
        command, _, behind = one.command.partition(" | ")
        text = _shell(f"{command} 2>&1{' | ' * bool(behind)}{behind}", folder)
    else:
        text = _PATHS.sub("", _harness_output(arguments)).replace(os.environ[_RESULTS], _USERS_RESULTS)
        text = _shell(one.filter, folder, text) if one.filter else text
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")


def _shell(command: str, folder: Path, text: str = "") -> str:
    words = ["bash", "-c", command]
    # `python` is the one that runs here, and imports this checkout.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        words, cwd=folder, env=environment, input=text, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _harness_output(arguments: list[str]) -> str:
    with contextlib.suppress(UsageError):  # `main` says what is wrong
        if getattr(parsed(arguments), "device", None) == "auto":
            arguments = [*arguments, "--device", "emulator"]
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        main(arguments)
    return output.getvalue() or errors.getvalue()


def comparable(text: str) -> list[str]:
    """The lines of an output without what differs between machines, and without the widths of columns."""
    lines = [line.rstrip() for line in text.splitlines()]
    columns: list[slice] = []
    kept = []
    for number, line in enumerate(lines):
        if re.fullmatch(r"-+( +-+)*", line):
            header: list[str] = []
            for above in reversed(lines[:number]):
                if not above:
                    break
                header.insert(0, above)
            extents = [slice(*found.span()) for found in re.finditer("-+", line)]
            named = [(each, " ".join(part[each].strip() for part in header)) for each in extents]
            columns = [each for each, name in named if name.startswith(_VOLATILE_COLUMNS)]
            line = re.sub("-+", "-", line)
        elif not line:
            columns = []
        for each in columns:
            line = line[: each.start] + "#".rjust(each.stop - each.start) + line[each.stop :]
        kept.append(" ".join(re.sub(r"PTX line \d+", "PTX line N", line).split()))
    return kept


def write_anew(block: Block) -> None:
    """Replace the outputs that a block shows by what its commands print now."""
    real = run(block)
    if [comparable(one.output) for one in real] != [comparable(one.output) for one in shown_in(block)]:
        text = "".join(f"$ {one.command}\n{one.output}\n" if one.output else f"$ {one.command}\n" for one in real)
        page = block.page.read_text()
        block.page.write_text(page.replace(f"```{block.language}\n{block.text}```", f"```{block.language}\n{text}```"))
        print(f"{block}: written anew")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the outputs that README.md and docs/*.md show anew.")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE.md", help="only those of these pages")
    wanted = [path.resolve() for path in parser.parse_args().pages or pages()]
    for each in blocks("console"):
        if each.page in wanted:
            write_anew(each)
