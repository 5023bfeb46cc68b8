"""Escapes characters that act on a terminal or are invisible to a reader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

_SUSPECT = re.compile(r"[^\n\t -~]")
_IGNORABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Characters that Python calls printable but that have no width (Unicode: Default_Ignorable_Code_Point)."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_JSON_ESCAPES = re.compile(r"\\(?:u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4})*|.)|\x7f")
"""Every escape in JSON, with those of characters in runs, because two may form one character; and DEL, which JSON does
not escape."""
_STAYING = r'"\/nt'
"""Second characters of two-character JSON escapes that are kept: quotes, slashes, line breaks and tabs."""
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89abcdefABCDEF]")


def printable(text: str) -> str:
    r"""Replace control characters, escape sequences, bidirectional and zero-width characters by escapes.

    Escapes are Python's: `\x1b`, `\u202e`, `\U000e0001`. Line breaks and tabs are kept. Printable text is unchanged, so
    the function is idempotent.
    """
    return _SUSPECT.sub(_escaped_unless_printable, text)


def encodable(text: str) -> str:
    r"""Replace lone surrogates, which files and databases reject, by escapes such as `\ud800`."""
    return text if text.isascii() else _SURROGATE.sub(_escaped, text)


def printable_json(text: str) -> str:
    """ASCII JSON in which each text is `printable`, for scripts that show texts unchanged."""
    return _in_json(printable, text)


def encodable_json(text: str) -> str:
    """ASCII JSON in which each text is `encodable`."""
    return _in_json(encodable, text) if _ESCAPED_SURROGATE.search(text) else text


def _in_json(change: Callable[[str], str], text: str) -> str:
    def changed(found: re.Match[str]) -> str:
        return json.dumps(change(json.loads(f'"{found[0]}"')))[1:-1] if found[0][-1] not in _STAYING else found[0]

    return _JSON_ESCAPES.sub(changed, text)


def _escaped_unless_printable(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() and not _IGNORABLE.match(found[0]) else _escaped(found)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
