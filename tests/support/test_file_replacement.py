from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files, require_writable


def test_files_are_replaced_and_nothing_else_is_left(tmp_path: Path):
    old = tmp_path / "old.txt"
    old.write_text("before")
    old.chmod(0o640)
    replace_files({old: b"after", tmp_path / "new.txt": b"new"})
    assert old.read_text() == "after"
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.txt", "old.txt"]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path):
    before = os.umask(0o027)
    try:
        replace_files({tmp_path / "new.txt": b""})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o640


def test_where_one_cannot_be_written_none_is(tmp_path: Path):
    old = tmp_path / "old.txt"
    old.write_text("before")
    with pytest.raises(UsageError, match="nowhere"):
        replace_files({old: b"after", tmp_path / "nowhere" / "x.txt": b"x"})
    assert old.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["old.txt"]


def test_a_link_stays_a_link(tmp_path: Path):
    (tmp_path / "real.txt").write_text("before")
    (tmp_path / "link.txt").symlink_to("real.txt")
    replace_files({tmp_path / "link.txt": b"after"})
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "after"


def test_a_device_is_written_to_and_not_replaced():
    require_writable(Path("/dev/null"))
    replace_files({Path("/dev/null"): b"gone"})
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_what_cannot_be_written_is_known_before(tmp_path: Path):
    require_writable(tmp_path / "fine.txt")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="is a folder"):
        require_writable(tmp_path)
    with pytest.raises(UsageError, match="no folder"):
        require_writable(tmp_path / "nowhere" / "x.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="no folder"):
        require_writable(tmp_path / "file" / "x.txt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_permissions_are_looked_at(tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(UsageError, match="ermission"):
        require_writable(closed / "x.txt")
    locked = tmp_path / "locked.txt"
    locked.write_text("mine")
    locked.chmod(0o400)
    with pytest.raises(UsageError, match="ermission"):
        require_writable(locked)
