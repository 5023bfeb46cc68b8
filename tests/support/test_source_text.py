from __future__ import annotations

from pathlib import Path

import pytest

from harness.support.source_text import find_source, short_name, source_line

ROOT = Path(__file__).resolve().parents[2]


def test_a_line_of_a_file(tmp_path: Path):
    path = tmp_path / "kernel.cu"
    path.write_text("first\n   second = 2;  \n")
    assert source_line(str(path), 2) == "second = 2;"
    assert source_line(str(path), 3) is None
    assert source_line(str(path), 0) is None
    assert short_name(str(path)) == str(path)


def test_what_is_not_there(tmp_path: Path):
    gone = str(tmp_path / "gone" / "nothing-like-it.cu")
    assert source_line(gone, 1) is None
    assert short_name(gone) == gone
    assert find_source("") is None


def test_a_relative_line_directive_is_found_wherever_it_was_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    find_source.cache_clear()
    monkeypatch.syspath_prepend(str(ROOT))
    assert (
        find_source("/some/where/else/variants/attention/fa2/kernel.cu")
        == ROOT / "variants" / "attention" / "fa2" / "kernel.cu"
    )
    assert short_name("/some/where/else/variants/attention/fa2/kernel.cu") == "variants/attention/fa2/kernel.cu"
    find_source.cache_clear()
