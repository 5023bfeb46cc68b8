"""Where functions and their statements begin and end in a PTX text, found without parsing what they say.

Code that inserts text into PTX, or needs little of it, reads these positions. It takes a tenth of the time that the
parser takes, and unlike the parser it refuses nothing: the emulator or ptxas reports what is wrong with the text.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

_COMMENT = r"//[^\n]*(?![^\n])|/\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/|\Z)"
_STRING = r'"[^"\n]*(?:"|(?![^\n]))'
"""These match in one way only, closed or not, so that the time is linear in the length of the text, however broken."""


def _up_to(closing: str) -> str:
    """Any text up to one of these characters, which do not count in comments and strings."""
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
"""A `.loc`. It ends without a `;`, and an instruction may follow on its line."""
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
    """Begin and end of the text between the parentheses; None where there are no parentheses."""
    end: int
    """Position behind name and parameters, where directives for the compiler such as `.maxnreg` belong."""
    body: tuple[int, int] | None
    """Position behind the opening brace, and the begin of the next function or the end of the text, in front of which
    the body ends; None for a declaration."""


class Statement(NamedTuple):
    """A statement in the body of a function."""

    kind: str
    """`open` and `close` for the braces of a scope, `label`, `location` for a `.loc`, `directive`, `instruction`."""
    start: int
    text: str
    """All of it, with its final `;` or `:`."""


@functools.lru_cache(maxsize=16)
def functions(ptx: str) -> tuple[FunctionText, ...]:
    """All entries and functions of a module in the order of the text, declarations included."""
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
    """The entry of this name; None where the module has none."""
    return next((function for function in functions(ptx) if function.is_entry and function.name == name), None)


def statements(ptx: str, function: FunctionText) -> Iterator[Statement]:
    """The statements of a function's body, without comments; nothing for a declaration.

    The brace that closes the body comes last. Where the text ends within the body, that brace is missing.
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
    """Opcode with modifiers, and operands, of every instruction: `("fma.rn.f32", " %f1, %f2, %f3, %f4")`.

    A text without functions is read as if it were the body of one.
    """
    bodies = [statements(ptx, function) for function in functions(ptx)] or [_statements_between(ptx, 0, len(ptx))]
    for statement in itertools.chain.from_iterable(bodies):
        if statement.kind == "instruction" and (parts := _INSTRUCTION.match(statement.text)):
            yield parts[1], parts[2]


def without_comments(text: str) -> str:
    """`text` with a blank in place of each comment."""
    return _COMMENTS.sub(lambda match: match[0] if match[0][0] == '"' else " ", text)
