"""What a kernel does, as text that a comment, a docstring or a line break does not change.

The text depends on the sources alone: neither on compilers nor on the version of Python, so that a record made on one
machine can be recognised on any other.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import re
import token
import tokenize
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

_CUDA_TOKEN = re.compile(
    r"""
    (?P<comment> //(?:\\\n|[^\n])* | /\*.*?\*/ )
  | (?P<string> R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
  | (?P<directive> ^[ \t]*\# (?:\\\n|/\*.*?\*/|[^\n/]|/(?![/*]))* )
  | (?P<space> \s+ | \\\n )
  | (?P<word> [\w.]+ | <<= | >>= | \.\.\. | [-+*/%&|^=!<>]= | -> | \+\+ | -- | << | >> | && | \|\| | :: | \#\# | . )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


@functools.cache
def cuda_text(source: str) -> str:
    """CUDA C++ without comments, blanks and #line: a token per line, a preprocessor directive on one."""
    tokens = []
    for match in _CUDA_TOKEN.finditer(source):
        if match["directive"]:
            directive = re.sub(r"/\*.*?\*/|\\\n", " ", match["directive"], flags=re.DOTALL)
            words = directive.replace("#", "# ", 1).split()
            if words[1:2] != ["line"]:
                tokens.append(" ".join(words))
        elif match["string"] or match["word"]:
            tokens.append(match[0])
    return "\n".join(tokens)


def python_text(source: str) -> str:
    """Python without comments, docstrings, blank lines and the way that it is wrapped: a token per line."""
    lines: list[list[str]] = [[]]
    for text in _python_tokens(source):
        lines[-1].append(text)
        if text == _END_OF_LINE:
            lines.append([])
    return "\n".join(text for line in lines for text in _without_docstring(line))


_END_OF_LINE, _INDENT, _DEDENT = "NEWLINE", "INDENT", "DEDENT"


def _without_docstring(line: list[str]) -> list[str]:
    """The line, but for strings that are a statement of their own. How far it is indented stays."""
    indents = [text for text in line if text in (_INDENT, _DEDENT)]
    words = line[len(indents) : -1]
    return indents if words and all(re.match(r"[a-zA-Z]{0,2}['\"]", word) for word in words) else line


def _python_tokens(source: str) -> Iterator[str]:
    if source[:1].isspace():  # a function within another one
        source = f"if 1:\n{source}"
    start: tuple[int, int] | None = None
    nested = 0
    for item in tokenize.generate_tokens(io.StringIO(source).readline):
        name = token.tok_name[item.type]
        if name == "FSTRING_START":  # one token until Python 3.11, many since
            start, nested = start or item.start, nested + 1
        elif name == "FSTRING_END":
            nested -= 1
            if not nested and start is not None:
                yield _between(source, start, item.end)
                start = None
        elif start is None and name in (_END_OF_LINE, _INDENT, _DEDENT):
            yield name
        elif start is None and name not in ("COMMENT", "NL", "ENCODING", "ENDMARKER"):
            yield item.string


def _between(source: str, start: tuple[int, int], end: tuple[int, int]) -> str:
    lines = source.splitlines(keepends=True)[start[0] - 1 : end[0]]
    lines[-1] = lines[-1][: end[1]]
    return "".join(lines)[start[1] :]


class NotUnderstood(Exception):
    """A kernel refers to something whose influence on it cannot be told."""


_OPTIONS = ("fastmath", "max_registers", "launch_bounds", "inline", "forceinline")
"""Options of `numba.cuda.jit` that change what a kernel does. Which others there are differs by Numba's version."""
_DEFAULTS = (None, False, "never")
_PACKAGES = (
    "numba",
    "numpy",
    "cuda",
    "math",
    "operator",
    "builtins",
    "collections",
    "functools",
    "typing",
    "ml_dtypes",
    "cupy",
    "llvmlite",
)


def numba_text(dispatcher: Any) -> str:
    """A jitted function, and all device functions and constants that its names lead to.

    Raises `NotUnderstood` where a name leads to something that this function has no text for.
    """
    seen: dict[int, int] = {}
    return "\n".join(_of_function(dispatcher, seen))


def _of_function(function: Any, seen: dict[int, int]) -> Iterator[str]:
    if id(function) in seen:
        yield f"again {seen[id(function)]}"
        return
    seen[id(function)] = len(seen)
    options = getattr(function, "targetoptions", {})
    yield f"options {[(name, options[name]) for name in _OPTIONS if options.get(name) not in _DEFAULTS]}"
    python = getattr(function, "py_func", None) or getattr(function, "_defn", None) or function
    text = _source_of(python)
    yield text
    words = _words(text)
    cells = inspect.getclosurevars(python).nonlocals if python.__closure__ else {}
    for name, value in sorted({**python.__globals__, **cells}.items()):
        if name in words and name != python.__name__:
            yield f"name {name}"
            yield from _of_value(value, words, seen)


@functools.cache
def _words(text: str) -> frozenset[str]:
    """The tokens of `python_text`, and the names that format strings mention."""
    tokens = text.split("\n")
    formats = (item for item in tokens if re.match(r"[a-zA-Z]*[fF][a-zA-Z]*['\"]", item))
    return frozenset(tokens).union(*(re.findall(r"[^\W\d]\w*", item) for item in formats))


@functools.cache
def _source_of(function: Any) -> str:
    return python_text(inspect.getsource(function))


def _of_value(value: Any, words: frozenset[str], seen: dict[int, int]) -> Iterator[str]:
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, np.generic):
        yield f"{value.dtype} {value.item()!r}"
    elif isinstance(value, (np.dtype, np.ndarray)):
        yield str(value.dtype if isinstance(value, np.ndarray) else value)
        yield repr(value.tolist()) if isinstance(value, np.ndarray) else ""
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _of_value(item, words, seen)
    elif isinstance(value, types.ModuleType):
        yield from _of_members(value.__name__, vars(value), words, seen)
    elif isinstance(value, types.SimpleNamespace):
        yield from _of_members("namespace", vars(value), words, seen)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield repr(value)
    elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
        yield f"named tuple {value.__qualname__} {value._fields}"
    elif _package(type(value)) == "numba" and not hasattr(value, "py_func") and not hasattr(value, "_defn"):
        yield str(value)  # a type
    elif _package(value) in _PACKAGES and not hasattr(value, "py_func"):
        yield f"{value.__module__}.{getattr(value, '__name__', '')}"
    elif hasattr(value, "py_func") or hasattr(value, "_defn") or isinstance(value, types.FunctionType):
        yield from _of_function(value, seen)
    elif isinstance(value, functools._lru_cache_wrapper):
        yield from _of_value(value.__wrapped__, words, seen)
    else:
        raise NotUnderstood(f"{value!r} of type {type(value).__qualname__}")


def _of_members(name: str, members: dict[str, Any], words: frozenset[str], seen: dict[int, int]) -> Iterator[str]:
    """What a module or namespace holds under the names that a function uses."""
    yield name
    if name.partition(".")[0] not in _PACKAGES:
        for member in sorted(words & members.keys()):
            yield f"member {member}"
            yield from _of_value(members[member], words, seen)


def _package(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "").partition(".")[0]
