"""What pages say of commands, of the public API and of each other is there."""

from __future__ import annotations

import argparse
import functools
import re
from pathlib import Path

import pytest

import harness
from harness.cli import build_parser
from harness.model.operation import operation_names
from scripts.shown_outputs import ROOT, pages

pytestmark = pytest.mark.compiles(False)

COMMANDS = (ROOT / "docs" / "commands.md").read_text()
README_BYTES = 8192


def commands(operation: str) -> dict[str, argparse.ArgumentParser]:
    (found,) = (a for a in build_parser(operation)._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


@functools.cache
def options() -> list[tuple[str, str, argparse.Action]]:
    """Operation, command and option, of all; not made when the file is imported, which every worker does."""
    return [
        (operation, name, action)
        for operation in operation_names()
        for name, parser in commands(operation).items()
        for action in parser._actions
    ]


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES


def test_every_command_and_option_has_help_and_stands_in_the_page() -> None:
    for operation, name, action in options():
        assert f"`{name}" in COMMANDS, name
        assert action.help, (operation, name, action.option_strings)
        for option in action.option_strings:
            assert re.search(rf"`{option}\b", COMMANDS) or option == "-h", f"{operation}: {name} {option} is missing"


def test_the_page_of_commands_has_no_option_that_is_gone() -> None:
    there = {"--version"} | {option for _, _, action in options() for option in action.option_strings}
    assert set(re.findall(r"`(--[\w-]+)", COMMANDS)) <= there


def test_every_public_name_stands_in_the_page_of_the_api() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    told = set(re.findall(r"^\.\. auto(?:class|function|exception):: harness\.(\w+)$", page, re.MULTILINE))
    assert set(harness.__all__) == told
    assert set(re.findall(r":: harness\.(\w+)\n", page)) == set(harness.__all__)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_relative_link_points_at_something(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_every_page_is_reached_from_the_index_of_the_site() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    listed = set(re.findall(r"^([\w-]+)$", index, re.MULTILINE))
    gallery = re.findall(r"^gallery/([\w-]+)$", (ROOT / "docs" / "gallery.md").read_text(), re.MULTILINE)
    assert {page.stem for page in pages()} - {"README", "index", *gallery} == listed


PATH = re.compile(r"`((?:harness|variants|tests|scripts|docs)/[\w./-]*\w/?)`")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    named = [path for path in PATH.findall(page.read_text()) if not {"NAME", "OPERATION"} & set(path.split("/"))]
    assert [path for path in named if not (ROOT / path).exists()] == []


SHORT = [
    "README.md",
    *("docs/quickstart.md", "docs/adding-a-variant.md", "docs/adding-a-mask.md", "docs/commands.md"),
    *("docs/why.md", "docs/predicted-time.md", "docs/layouts.md", "docs/several-devices.md", "docs/memory-order.md"),
    *("docs/fuzzing.md", "docs/traffic.md", "docs/sanitizer.md", "docs/faq.md", "docs/glossary.md", "docs/numerics.md"),
    *("docs/fa3.md", "docs/backward.md", "docs/limits.md", "docs/architecture.md", "docs/measured.md"),
    "docs/adding-a-score-term.md",
]
"""The pages that are read most, or that were the longest."""
PARAGRAPH_WORDS, CELL_WORDS = 90, 25


@pytest.mark.parametrize("name", SHORT)
def test_paragraphs_and_cells_are_short(name: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(), flags=re.DOTALL)
    parts = re.split(r"\n\s*\n", text)
    cells = [cell for part in parts if part.startswith("|") for row in part.splitlines() for cell in row.split("|")]
    items = [item for part in parts if not part.startswith("|") for item in re.split(r"\n(?=- |\d+\. )", part)]
    assert [cell for cell in cells if len(cell.split()) > CELL_WORDS] == []
    assert [item for item in items if len(item.split()) > PARAGRAPH_WORDS] == []
