"""requirements.txt has what the project and its extras for development require."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = str(ROOT / "setup.py")
dependencies = runpy.run_path(SETUP)["dependencies"]
tomllib = pytest.importorskip("tomllib")  # Python 3.11


def test_the_development_environment_has_all_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and line[0] != "#"]
    (own,) = (line for line in lines if line.startswith("-e"))
    extras = re.fullmatch(r"-e \.\[([\w,]+)\]", own)[1].split(",")
    required = [
        *dependencies("12"),
        *(each for extra in extras for each in project["optional-dependencies"][extra]),
    ]
    assert sorted(line for line in lines if line != own) == sorted(required)


def test_each_cuda_version_has_its_own_packages() -> None:
    twelve, thirteen = set(dependencies("12")), set(dependencies("13"))
    assert {"cupy-cuda12x>=14.0", "numba-cuda[cu12]>=0.23"} <= twelve - thirteen
    assert {"cupy-cuda13x>=14.0", "numba-cuda[cu13]>=0.23"} <= thirteen - twelve
    assert not [each for each in thirteen if "cu12" in each or "cuda12" in each]


def test_the_small_environment_has_the_packages_of_the_large_one() -> None:
    small, large = ({re.split(r"[=><]", each)[0] for each in dependencies(cuda)} for cuda in ("12.6", "12"))
    assert small - large == {"cuda-toolkit", "nvidia-nvjitlink-cu12"} and not large - small


@pytest.mark.parametrize(("chosen", "installed"), [(None, "12.6"), ("", "12.6"), ("12", "12"), ("13", "13")])
def test_pip_installs_the_small_environment_by_default(
    chosen: str | None, installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    required: list[list[str]] = []
    monkeypatch.setattr("setuptools.setup", lambda install_requires: required.append(install_requires))
    monkeypatch.delenv("SANDBOX_CUDA", raising=False)
    if chosen is not None:
        monkeypatch.setenv("SANDBOX_CUDA", chosen)
    runpy.run_path(SETUP, run_name="__main__")
    assert required == [dependencies(installed)]


def test_an_unknown_cuda_version_is_one_line() -> None:
    with pytest.raises(SystemExit, match=r"SANDBOX_CUDA is '11'; set it to 12, 12\.6 or 13, or unset it"):
        dependencies("11")


def test_the_site_of_the_pages_has_all_dependencies() -> None:
    docs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["docs"]
    lines = (ROOT / "requirements-docs.txt").read_text().splitlines()
    assert sorted(line for line in lines if line and line[0] != "#") == sorted(docs)
