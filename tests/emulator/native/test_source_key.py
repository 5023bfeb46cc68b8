"""Keys of cached native code change with every source that can shape it."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness.emulator
from harness.emulator.native.source_key import hash_of_sources

EMULATOR = Path(harness.emulator.__file__).parent
ROOMS = sorted(folder.name for folder in EMULATOR.iterdir() if (folder / "__init__.py").is_file())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A stand-in for harness/: a module in `ptx`, in each of the emulator's rooms, and where none counts."""
    for folder in ("ptx", "compilers", *(f"emulator/{room}" for room in ROOMS)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "module.py").write_text("x = 1\n")
    (tmp_path / "emulator/executor.py").write_text("x = 1\n")
    return tmp_path


@pytest.mark.parametrize("folder", ["ptx", *(f"emulator/{room}" for room in ROOMS)])
def test_a_change_counts_in_every_room_but_that_of_launches(folder: str, tree: Path) -> None:
    before = hash_of_sources(tree)
    (tree / folder / "module.py").write_text("x = 2\n")
    assert (hash_of_sources(tree) == before) == (folder == "emulator/launch")


def test_a_new_room_a_deeper_one_and_a_new_name_count(tree: Path) -> None:
    seen = {hash_of_sources(tree)}
    (tree / "emulator/texture").mkdir()
    for name in ("emulator/texture/module.py", "ptx/more/module.py"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("")
        seen.add(hash_of_sources(tree))
    (tree / "ptx" / "module.py").rename(tree / "ptx" / "renamed.py")
    assert len(seen | {hash_of_sources(tree)}) == 4


def test_what_only_uses_native_code_does_not_count(tree: Path) -> None:
    before = hash_of_sources(tree)
    for name in ("emulator/executor.py", "compilers/module.py"):
        (tree / name).write_text("x = 2\n")
    assert hash_of_sources(tree) == before
