"""Keys of cached native code change with every source that can shape it."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness.emulator
from harness.emulator.native.source_key import hash_of_rooms

EMULATOR = Path(harness.emulator.__file__).parent
ROOMS = sorted(folder.name for folder in EMULATOR.iterdir() if (folder / "__init__.py").is_file())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A stand-in for the emulator's folder, a module in each of its rooms."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "module.py").write_text("x = 1\n")
    (tmp_path / "executor.py").write_text("x = 1\n")
    return tmp_path


@pytest.mark.parametrize("room", ROOMS)
def test_a_change_counts_in_every_room_but_that_of_launches(room: str, tree: Path) -> None:
    before = hash_of_rooms(tree)
    (tree / room / "module.py").write_text("x = 2\n")
    assert (hash_of_rooms(tree) == before) == (room == "launch")


def test_a_new_room_a_deeper_one_and_a_new_name_count(tree: Path) -> None:
    seen = {hash_of_rooms(tree)}
    (tree / "texture").mkdir()
    for name in ("texture/module.py", "ptx/more/module.py"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("")
        seen.add(hash_of_rooms(tree))
    (tree / "ptx" / "module.py").rename(tree / "ptx" / "renamed.py")
    assert len(seen | {hash_of_rooms(tree)}) == 4


def test_what_only_uses_native_code_does_not_count(tree: Path) -> None:
    before = hash_of_rooms(tree)
    (tree / "executor.py").write_text("x = 2\n")
    assert hash_of_rooms(tree) == before
