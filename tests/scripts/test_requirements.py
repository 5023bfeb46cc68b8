"""requirements.txt has what the project and its extras for development require."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
tomllib = pytest.importorskip("tomllib")  # Python 3.11


def test_the_development_environment_has_all_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and line[0] != "#"]
    (own,) = (line for line in lines if line.startswith("-e"))
    extras = re.fullmatch(r"-e \.\[([\w,]+)\]", own)[1].split(",")
    required = [
        *project["dependencies"],
        *(each for extra in extras for each in project["optional-dependencies"][extra]),
    ]
    assert sorted(line for line in lines if line != own) == sorted(required)


def test_the_site_of_the_pages_has_all_dependencies() -> None:
    docs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    lines = (ROOT / "requirements-docs.txt").read_text().splitlines()
    assert sorted(line for line in lines if line and line[0] != "#") == sorted(docs)
