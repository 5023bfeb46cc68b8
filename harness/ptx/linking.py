"""Links PTX modules into one, as a linker does with their machine code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.ptx.statements import functions, statements

_HEADER = re.compile(r"^[ \t]*\.(?:version|target|address_size)\b[^\n]*\n", re.MULTILINE)
_LINKAGE_BEFORE = re.compile(r"\.(visible|weak)\s+\Z")
_VARIABLE = re.compile(
    r"^[ \t]*(?:\.(?P<linkage>extern|visible|weak|common)\s+)?"
    r"\.(?:global|const)\b[^;={\[]*?(?P<name>[\w$]+)\s*(?:\[[^;={]*)?(?:=[^;]*)?;",
    re.MULTILINE,
)


class LinkError(ValueError):
    """Two modules define the same symbol."""


class _Symbol(NamedTuple):
    name: str
    linkage: str
    """`extern`, `visible`, `weak` or `common`; empty if only its own module sees it."""
    is_declaration: bool
    start: int
    end: int


def linked(texts: Sequence[str]) -> str:
    """Return one PTX module with the contents of several.

    The header is that of the first module. What a module declares and another one defines is left without its
    declaration. Of several weak definitions of a symbol, the first one stays, or the one that is not weak. Symbols
    without linkage get other names if another module has the same name. Raises `LinkError` if two modules define a
    symbol and neither definition is weak.
    """
    if len(texts) == 1:
        return texts[0]
    modules = [_with_own_names(texts, number) for number in range(len(texts))]
    symbols = [list(_symbols(text)) for text in modules]
    kept = _kept_definitions(symbols)
    parts = [
        _without(text, [each for each in found if _is_dropped(each, number, kept)])
        for number, (text, found) in enumerate(zip(modules, symbols, strict=True))
    ]
    # What is linked in comes first, since PTX has to declare a function before a call.
    header = "".join(_HEADER.findall(texts[0]))
    return header + "\n".join(_HEADER.sub("", text) for text in (*parts[1:], parts[0]))


def _symbols(text: str) -> Iterator[_Symbol]:
    outside = 0
    for function in functions(text):
        if function.start < outside:
            continue
        before = _LINKAGE_BEFORE.search(text, outside, function.start)
        start = before.start() if before else function.start
        yield from _variables(text, outside, start)
        end = text.find(";", function.end) + 1 or len(text)
        if function.body is not None:
            end = max((each.start + len(each.text) for each in statements(text, function)), default=function.body[1])
        linkage = "extern" if function.is_extern else before[1] if before else ""
        yield _Symbol(function.name, linkage, function.body is None, start, end)
        outside = end
    yield from _variables(text, outside, len(text))


def _variables(text: str, start: int, end: int) -> Iterator[_Symbol]:
    for match in _VARIABLE.finditer(text, start, end):
        linkage = match["linkage"] or ""
        yield _Symbol(match["name"], linkage, linkage == "extern", match.start(), match.end())


def _kept_definitions(modules: Sequence[Sequence[_Symbol]]) -> dict[str, tuple[int, _Symbol]]:
    """Return the definition that stays, with the number of its module, by name."""
    kept: dict[str, tuple[int, _Symbol]] = {}
    for number, symbols in enumerate(modules):
        for symbol in symbols:
            if symbol.is_declaration:
                continue
            other = kept.get(symbol.name)
            if other is not None and _is_strong(other[1]) and _is_strong(symbol):
                raise LinkError(f"two modules that are linked together define {symbol.name}")
            if other is None or (not _is_strong(other[1]) and _is_strong(symbol)):
                kept[symbol.name] = number, symbol
    return kept


def _is_dropped(symbol: _Symbol, number: int, kept: dict[str, tuple[int, _Symbol]]) -> bool:
    if symbol.name not in kept:
        return False
    return symbol.linkage == "extern" if symbol.is_declaration else kept[symbol.name] != (number, symbol)


def _is_strong(symbol: _Symbol) -> bool:
    return symbol.linkage not in ("weak", "common")


def _without(text: str, symbols: Sequence[_Symbol]) -> str:
    """Return the text with blank lines in place of these symbols, so that lines keep their numbers."""
    parts, position = [], 0
    for symbol in symbols:
        parts += [text[position : symbol.start], "\n" * text.count("\n", symbol.start, symbol.end)]
        position = symbol.end
    return "".join(parts) + text[position:]


def _with_own_names(texts: Sequence[str], number: int) -> str:
    """Return a module, with a name of its own for each symbol without linkage that another module has as well."""
    others = "\n".join(text for other, text in enumerate(texts) if other != number)
    text = texts[number]
    for symbol in list(_symbols(text)):
        name = rf"(?<![\w$%]){re.escape(symbol.name)}(?![\w$])"
        if not symbol.linkage and re.search(name, others):
            text = re.sub(name, lambda match: f"{match[0]}$module{number}", text)
    return text
