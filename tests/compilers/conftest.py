"""A cache of its own for every test; how often the compilers ran."""

from __future__ import annotations

from pathlib import Path

import pytest
from counted_builds import Builds

from harness.compilers.cupy import rawkernel
from harness.support import cache as cache_module


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache_module.DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(cache_module.LIMIT_VARIABLE, raising=False)
    monkeypatch.setattr(rawkernel, "_known", {})


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(monkeypatch)
