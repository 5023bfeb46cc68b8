"""Hypothesis is not installed everywhere, and other packages' plugins for it are not wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.support.errors import UsageError
from harness.support.hypothesis_loading import NO_PLUGINS, load_hypothesis

ROOT = Path(__file__).parents[2]


def test_where_it_is_not_installed_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(UsageError, match="python -m pip install hypothesis") as raised:
        load_hypothesis()
    assert "\n" not in str(raised.value)
    assert NO_PLUGINS not in os.environ


def test_a_file_that_shadows_a_hypothesis_import_does_no_harm(tmp_path: Path):
    """Trio's plugin imports pytest, and that `py`, which may be a file of the user's folder."""
    (tmp_path / "py.py").write_text("x = 1\n")
    code = "from harness.support.hypothesis_loading import load_hypothesis as load; load(); import sys; "
    code += "print('py' in sys.modules, 'hypothesis' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
