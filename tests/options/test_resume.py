"""What is kept of a command that was cut off, when it is gone on with, and what it costs."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from harness.model.discovery import PLUGIN, Discovery, Origin
from harness.model.variant import Registry
from harness.options import resume
from harness.options.resume import UnfinishedWork, unfinished_work
from harness.studies.fuzz.command import FuzzRequest

pytestmark = pytest.mark.compiles(False)


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTENTION_SANDBOX_RESULTS_DIR", str(tmp_path / "results"))
    monkeypatch.setattr(resume, "WRITE_SECONDS", -1.0)
    return tmp_path / "results" / "results.sqlite"


def request(**said: Any) -> FuzzRequest:
    return FuzzRequest(**{"examples": 9, **said})


def found(tmp_path: Path | None = None) -> Discovery:
    if tmp_path is None:
        return Discovery(Registry(), ())
    plugin = str(tmp_path / "plugin.py")
    return Discovery(Registry(), (), {"mine": Origin(PLUGIN, plugin)}, (plugin,))


def cut_off(*names: str, of: Discovery | None = None, **said: Any) -> None:
    with contextlib.suppress(KeyboardInterrupt), unfinished_work(request(**said), of or found(), "emulator") as work:
        for name in names:
            work.finish(f"of {name}", name)
        raise KeyboardInterrupt


def known(*names: str, of: Discovery | None = None, **said: Any) -> list[Any]:
    what = []
    with contextlib.suppress(KeyboardInterrupt), unfinished_work(request(**said), of or found(), "emulator") as work:
        what += [work.known(name) for name in names]
        raise KeyboardInterrupt
    return what


def test_what_was_cut_off_is_known_to_the_same_command_and_to_no_other(tmp_path: Path):
    cut_off("a", "b")
    assert known("a", "b", "c") == ["of a", "of b", None]
    assert known("a", workers=4) == ["of a"], "the result does not depend on it"
    assert known("a", examples=10) == [None]
    with unfinished_work(request(), found(), "another device") as work:
        assert work.known("a") is None


def test_another_text_of_a_plugin_is_another_command(tmp_path: Path):
    (tmp_path / "plugin.py").write_text("1")
    cut_off("a", of=found(tmp_path))
    assert known("a", of=found(tmp_path)) == ["of a"]
    (tmp_path / "plugin.py").write_text("2")
    assert known("a", of=found(tmp_path)) == [None]


def test_what_is_done_is_done_once_more(path: Path):
    cut_off("a")
    with unfinished_work(request(), found(), "emulator") as work:
        work.finish("of b", "b")
    assert known("a", "b") == [None, None]
    with sqlite3.connect(path) as store:
        assert store.execute("SELECT count(*) FROM finished_units").fetchone() == (0,)


def test_afresh_forgets_it():
    cut_off("a")
    assert known("a", afresh=True) == [None]
    assert known("a") == [None]


def test_what_is_cut_off_twice_has_both_parts():
    cut_off("a")
    cut_off("b")
    assert known("a", "b") == ["of a", "of b"]


def test_a_command_of_a_few_seconds_writes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resume, "WRITE_SECONDS", 60.0)
    with unfinished_work(request(), found(), "emulator") as work:
        for number in range(1000):
            work.finish("done", number)
    assert not path.exists()


def test_where_nothing_can_be_kept_that_is_one_line_and_the_work_goes_on(
    path: Path, capsys: pytest.CaptureFixture[str]
):
    path.parent.write_text("a file in the folder's place")
    with unfinished_work(request(), found(), "emulator") as work:
        for number in range(5):
            work.finish("done", number)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "progress cannot be stored" in told and str(path) in told


def test_what_is_no_plain_data_is_done_once_more(path: Path):
    work = UnfinishedWork(lambda: (), path)
    work.finish(object(), "a")
    work.finish(1, "b")
    work.close()
    again = UnfinishedWork(lambda: (), path)
    assert (again.known("a"), again.known("b")) == (None, 1)
    again.close()
