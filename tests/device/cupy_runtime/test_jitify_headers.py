"""Which headers are found for Jitify, and what they become."""

from __future__ import annotations

from pathlib import Path

from harness.device.cupy_runtime.jitify_headers import find_headers


def test_headers_are_found_through_headers_in_the_first_directory_that_has_them(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    (first / "deep").mkdir(parents=True)
    second.mkdir()
    (first / "a.h").write_bytes(b'#  include <deep/b.h>\n#include "a.hpp"\n#if 0\n#include <c.h>\n#endif\n')
    (first / "a.hpp").write_bytes(b"int a;\n")
    (first / "deep" / "b.h").write_bytes(b'#include <a.h>\n#include "unused.h"\nint first;\n')
    (second / "deep").mkdir()
    (second / "deep" / "b.h").write_bytes(b"int second;\n")
    (second / "c.h").write_bytes(b"int c;\n")
    (second / "unused.h").write_bytes(b"")
    found = find_headers(b'#include <a.h>\n#include "unused.h"\n#include <missing.h>\n', [first, second])
    assert set(found) == {b"a.h", b"a.hpp", b"deep/b.h", b"c.h"}
    assert b"first" in found[b"deep/b.h"] and found[b"c.h"] == b"int c;\n"


def test_an_include_guard_takes_the_place_of_pragma_once(tmp_path: Path) -> None:
    (tmp_path / "a-b.h").write_bytes(b"// text\n#pragma once\nint a;\n")
    text = find_headers(b"#include <a-b.h>", [tmp_path])[b"a-b.h"]
    assert b"pragma" not in text
    assert text.startswith(b"#ifndef HEADER_a_b_h\n#define HEADER_a_b_h\n") and text.endswith(b"#endif\n")
