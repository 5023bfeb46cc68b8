"""What reaches a terminal, a page or a file acts on none of them."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from harness.support.printable import encodable, encodable_json, printable, printable_json

NASTY = {
    "\x1b[31m": "\\x1b[31m",
    "\x1b]0;title\x07": "\\x1b]0;title\\x07",
    "\x9b2J": "\\x9b2J",
    "a\rb\x00\x7f": "a\\rb\\x00\\x7f",
    "\u202egnp.exe\u2066": "\\u202egnp.exe\\u2066",
    "zero\u200bwidth\ufeff\u2060": "zero\\u200bwidth\\ufeff\\u2060",
    "hidden\ufe0f\u034f\u3164\U000e0101": "hidden\\ufe0f\\u034f\\u3164\\U000e0101",
    "tag\U000e0041": "tag\\U000e0041",
    "lone\ud800": "lone\\ud800",
    "line\u2028\u2029\x85": "line\\u2028\\u2029\\x85",
}
FINE = "Br 16\n\tK_j \\x1b é µ → 😀 漢字 e\u0301"


@pytest.mark.parametrize("text", NASTY)
def test_what_acts_or_hides_becomes_its_escape(text: str):
    assert printable(text) == NASTY[text]
    assert printable(printable(text)) == printable(text)
    assert json.loads(printable_json(json.dumps({text: [text]}))) == {NASTY[text]: [NASTY[text]]}


def test_what_can_be_read_stays():
    assert printable(FINE) == FINE and json.loads(printable_json(json.dumps(FINE))) == FINE
    assert encodable(FINE) == FINE and json.loads(encodable_json(json.dumps(FINE))) == FINE


def test_no_control_format_or_surrogate_character_is_left():
    def acting(text: str) -> set[str]:
        return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}

    assert acting(printable("".join(acting("".join(map(chr, range(sys.maxunicode + 1))))))) == {"\n", "\t"}


def test_lone_surrogates_alone_are_what_no_file_takes():
    assert encodable("a\x1b\ud83d b") == "a\x1b\\ud83d b"
    assert json.loads(encodable_json('"\\uD83D\\uDE00 \\uD83D \\\\ud800"')) == "😀 \\ud83d \\ud800"
