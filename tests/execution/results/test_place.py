"""Where the store lies, and whether everything is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.execution.results.place import keeps_always, store_path
from harness.support.errors import UsageError


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATTENTION_SANDBOX_RESULTS_DIR", "ATTENTION_SANDBOX_KEEP", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_the_store_lies_with_the_users_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert store_path() == Path("/home/somebody/.local/share/attention-sandbox/results.sqlite")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert store_path() == Path("/home/somebody/.local/share/attention-sandbox/results.sqlite")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert store_path() == Path("/data/attention-sandbox/results.sqlite")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTENTION_SANDBOX_RESULTS_DIR", "here")
    assert store_path() == tmp_path / "here" / "results.sqlite"


def test_without_a_home_directory_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "nowhere")
    with pytest.raises(UsageError, match="no home directory to keep results in; set ATTENTION_SANDBOX_RESULTS_DIR"):
        store_path()


def test_everything_is_kept_only_where_the_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not keeps_always()
    monkeypatch.setenv("ATTENTION_SANDBOX_KEEP", "always")
    assert keeps_always()
    monkeypatch.setenv("ATTENTION_SANDBOX_KEEP", "1")
    with pytest.raises(UsageError, match="ATTENTION_SANDBOX_KEEP is '1'; it is 'always', or unset"):
        keeps_always()
