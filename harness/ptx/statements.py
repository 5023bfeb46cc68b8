"""Finds the positions of functions and statements in a PTX text, without parsing their content.

It serves code that inserts text into PTX or needs little of it. It takes a tenth of the parser's time and, unlike the
parser, rejects nothing: the emulator or ptxas reports errors in the text. `canonical_text` removes what depends on the
location or the comments of the source.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

_COMMENT = r"//[^\n]*(?![^\n])|/\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/|\Z)"
_STRING = r'"[^"\n]*(?:"|(?![^\n]))'
"""Matches in only one way, whether closed or not, so that the time is linear in the length even of invalid text."""


def _up_to(closing: str) -> str:
    """Return a pattern for any text up to one of these characters, ignoring those in comments and strings."""
    plain = rf'[^/"{closing}]*'
    return rf"{plain}(?:(?:{_COMMENT}|{_STRING}|/(?![/*])){plain})*"


_BLANK = rf"(?:\s|{_COMMENT})*"
_FLAGS = re.DOTALL | re.ASCII
_FUNCTION = re.compile(
    rf"{_COMMENT}|{_STRING}"
    rf"|\.(?P<extern>extern{_BLANK}\.)?(?P<kind>entry|func)\b{_BLANK}(?:\({_up_to('()')}\){_BLANK})?"
    rf"(?P<name>[\w$%]+)(?:{_BLANK}\((?P<parameters>{_up_to('()')})\))?",
    _FLAGS,
)
_BODY = re.compile(rf"{_up_to('{;')}\{{", _FLAGS)
_END = r"(?:;|\Z)"
LOCATION = r"\.loc\s+\d+\s+\d+\s+\d+(?:\s*,\s*function_name\s[^,\n]*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?"
"""A `.loc`. It does not end with `;`, and an instruction may follow on its line."""
_STATEMENT = re.compile(
    rf"(?P<comment>{_COMMENT})|(?P<open>\{{)|(?P<close>\}})|(?P<label>[%$A-Za-z_][\w$]*\s*:(?!:))"
    rf"|(?P<location>{LOCATION})"
    rf"|(?P<directive>\.{_up_to(';')}{_END})|(?P<instruction>[@\w]{_up_to(';')}{_END})",
    _FLAGS,
)
_INSTRUCTION = re.compile(r"(?:@!?[\w$%]+\s+)?([\w.:]+)([^;]*)", _FLAGS)
_COMMENTS = re.compile(rf"{_STRING}|{_COMMENT}", _FLAGS)


class FunctionText(NamedTuple):
    """The head of a function in a PTX text."""

    name: str
    is_entry: bool
    is_extern: bool
    start: int
    """Position of `.entry` or `.func`."""
    parameters: tuple[int, int] | None
    """Begin and end of the text between the parentheses; None without parentheses."""
    end: int
    """Position after name and parameters, where directives for the compiler such as `.maxnreg` belong."""
    body: tuple[int, int] | None
    """Position after the opening brace, and the beginning of the next function or the end of the text, before which the
    body ends; None for a declaration."""


class Statement(NamedTuple):
    """A statement in the body of a function."""

    kind: str
    """`open` or `close` for the braces of a scope, `label`, `location` for a `.loc`, `directive`, or `instruction`."""
    start: int
    text: str
    """The whole text, including the final `;` or `:`."""


@functools.lru_cache(maxsize=16)
def functions(ptx: str) -> tuple[FunctionText, ...]:
    """Return all entries and functions of a module in the order of the text, including declarations."""
    heads = [match for match in _FUNCTION.finditer(ptx) if match["kind"]]
    limits = [*(match.start() for match in heads[1:]), len(ptx)]
    return tuple(
        FunctionText(
            match["name"],
            match["kind"] == "entry",
            match["extern"] is not None,
            match.start(),
            None if match["parameters"] is None else match.span("parameters"),
            match.end(),
            (opening.end(), limit) if (opening := _BODY.match(ptx, match.end(), limit)) else None,
        )
        for match, limit in zip(heads, limits)
    )


def entry_text(ptx: str, name: str) -> FunctionText | None:
    """Return the entry of this name; None if the module has none."""
    return next((function for function in functions(ptx) if function.is_entry and function.name == name), None)


def statements(ptx: str, function: FunctionText) -> Iterator[Statement]:
    """Yield the statements of a function's body, without comments; nothing for a declaration.

    The closing brace of the body comes last. It is missing if the text ends within the body.
    """
    return iter(()) if function.body is None else _statements_between(ptx, *function.body)


def _statements_between(ptx: str, start: int, limit: int) -> Iterator[Statement]:
    depth = 1
    for match in _STATEMENT.finditer(ptx, start, limit):
        kind = match.lastgroup
        assert kind is not None
        if kind != "comment":
            yield Statement(kind, match.start(), match[0])
            depth += (kind == "open") - (kind == "close")
            if depth == 0:
                return


def instructions(ptx: str) -> Iterator[tuple[str, str]]:
    """Yield opcode with modifiers, and operands, of every instruction: `("fma.rn.f32", " %f1, %f2, %f3, %f4")`.

    A text without functions is read like the body of a function.
    """
    bodies = [statements(ptx, function) for function in functions(ptx)] or [_statements_between(ptx, 0, len(ptx))]
    for statement in itertools.chain.from_iterable(bodies):
        if statement.kind == "instruction" and (parts := _INSTRUCTION.match(statement.text)):
            yield parts[1], parts[2]


def position_of_directive(ptx: str, name: str) -> int | None:
    """Return the position after the first directive of this name, such as `version`; None if there is none."""
    pattern = re.compile(rf"{_COMMENT}|{_STRING}|\.(?P<name>{name})\b", _FLAGS)
    return next((match.end() for match in pattern.finditer(ptx) if match["name"]), None)


def without_comments(text: str) -> str:
    """Return `text` with a space in place of each comment."""
    return _COMMENTS.sub(lambda match: match[0] if match[0][0] == '"' else " ", text)


_LOCATION = re.compile(r"^[ \t]*\.loc\b", re.MULTILINE)
_FILE = re.compile(r"^[ \t]*\.file\s+(\d{1,9})\b", re.MULTILINE | re.ASCII)


def has_line_table(ptx: str) -> bool:
    """Whether the text has line information."""
    return _LOCATION.search(ptx) is not None


def with_line_table(ptx: str, file: str, first_line: int) -> str:
    """Insert a `.loc` before the first instruction of each line. `ptx` begins at `first_line` of `file`.

    Before: `add.s32 %r1, %r1, 1;`. After: `.loc 1 12 1 add.s32 %r1, %r1, 1;`, and at the end of the text `.file 1
    "/home/me/kernel.ptx"`. Line numbers do not change, so those in messages stay valid.
    """
    number = 1 + max((int(match[1]) for match in _FILE.finditer(ptx)), default=0)
    parts: list[str] = []
    copied = 0
    line, counted = first_line, 0
    marked = 0
    for statement in (each for function in functions(ptx) for each in statements(ptx, function)):
        if statement.kind != "instruction":
            continue
        line += ptx.count("\n", counted, statement.start)
        counted = statement.start
        if line != marked:
            parts += [ptx[copied:counted], f".loc {number} {line} 1 "]
            copied, marked = counted, line
    quoted = file.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(parts) + ptx[copied:] + f'\n.file {number} "{quoted}"\n'


_ABOUT_SOURCE = re.compile(r"//|\.file\s|\$L__(tmp|func_begin|func_end|info_string)\w*:|\.common .* _ZN08NumbaEnv")
"""Beginnings of lines that describe the source or Numba's environment and have no effect on the GPU."""
_COMPILER_NAME = re.compile(r"_Z\w+|_cudapy_\w+")
"""Mangled names, which contain a module's path, and shared arrays, which Numba numbers consecutively in a process."""
_LOCATION_BEFORE = re.compile(rf"{LOCATION}\s*")
"""A `.loc`. In handwritten PTX, an instruction may follow on the same line."""
_LINE_COMMENT = re.compile(r"\s*//.*")


def canonical_text(ptx: str) -> str:
    """Return `ptx` without line tables, files, debug sections and comments, and with compilers' names numbered."""
    numbers: dict[str, str] = {}

    def numbered(name: re.Match[str]) -> str:
        return numbers.setdefault(name[0], f"_{len(numbers)}")

    return _COMPILER_NAME.sub(numbered, "\n".join(_code_lines(ptx)))


def _code_lines(ptx: str) -> Iterator[str]:
    in_section = False
    for line in map(str.strip, ptx.splitlines()):
        if in_section or line.startswith(".section"):
            in_section = line != "}"
        elif not _ABOUT_SOURCE.match(line) and (code := _LINE_COMMENT.sub("", _LOCATION_BEFORE.sub("", line))):
            yield code
