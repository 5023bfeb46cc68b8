"""Stored failures belong to one variant of one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.model.discovery import MODULE, PLUGIN, Origin
from harness.studies.fuzz.database import failure_folder
from harness.support.cache import DIRECTORY_VARIABLE

pytestmark = pytest.mark.compiles(False)


def test_variants_of_one_name_in_two_plugin_files_do_not_share_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    one, other = (failure_folder("mine", Origin(PLUGIN, str(tmp_path / name))) for name in ("a.py", "b.py"))
    assert one is not None and one != other
    assert failure_folder("mine", Origin(PLUGIN, "a.py")) == one
    assert failure_folder("mine", Origin(MODULE, "mine", "variants")).name == "mine"
