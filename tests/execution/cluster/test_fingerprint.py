"""Two versions of the sandbox are told apart, and what sets them apart is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.execution.cluster import fingerprint as module
from harness.execution.cluster.fingerprint import Fingerprint, fingerprint

pytestmark = pytest.mark.compiles(False)


def test_the_same_files_and_packages_are_the_same():
    assert fingerprint() == fingerprint() and fingerprint().difference(fingerprint()) is None


@pytest.mark.parametrize("change", ["text", "name", "new"])
def test_one_character_of_any_text_is_another_version(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("harness/a", "variants"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "kernel.cu").write_text("x")
    monkeypatch.setattr(module, "REPOSITORY_ROOT", tmp_path)
    before = fingerprint()
    (tmp_path / "harness/a/notes.txt").write_text("no result depends on it")
    assert fingerprint() == before
    kernel = tmp_path / "harness/a/kernel.cu"
    if change == "text":
        kernel.write_text("y")
    elif change == "name":
        kernel.rename(kernel.with_name("other.cu"))
    else:
        (tmp_path / "harness/b.py").write_text("")
    difference = before.difference(fingerprint())
    assert difference is not None and difference.startswith("harness/ ") and "variants" not in difference


def test_packages_that_differ_are_named():
    own = Fingerprint("1", "2", "3.11", (("numba", "1"), ("numpy", "2")))
    other = dataclasses.replace(own, python="3.12", packages=(("numba", "1.1"), ("cupy-cuda12x", "14")))
    assert own.difference(other) == (
        "Python 3.12, not 3.11; cupy-cuda12x 14, not absent; numba 1.1, not 1; numpy absent, not 2"
    )
    assert own.digest != other.digest
