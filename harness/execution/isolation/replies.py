"""What a planner answers, or which error it ended with, as JSON that is checked before it is believed.

The judge's own process needs nothing more to ask, so that neither a compiler's module nor NumPy is loaded for it.
"""

from __future__ import annotations

import json
from typing import Any

from harness.support.errors import (
    CompileError,
    KernelFault,
    PlanError,
    PluginError,
    SandboxError,
    UnsupportedProblem,
    UsageError,
)
from harness.support.exception_place import where_and_what
from harness.support.printable import encodable_json

Json = Any
"""Numbers, text, None, lists of them and dicts by text."""
ERRORS = {kind.__name__: kind for kind in (CompileError, PlanError, PluginError, SandboxError, UsageError)}
"""What is told by its own name; every other exception becomes a `SandboxError`."""


MOST_CHARACTERS = 20_000
"""Of an error's text: a compiler's log has as many, and what has more is nobody's to read."""


class Malformed(SandboxError):
    """What came is not what was asked for."""


def checked(value: Json, *kinds: type) -> Any:
    """`value`, if it is exactly of one of these types: a bool is no int. Raises `Malformed`."""
    if type(value) not in kinds:
        raise Malformed(f"{value!r:.200} is no {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def message_of(said: Json) -> bytes:
    """What `data_of` reads. Raises `ValueError`, `TypeError` or `RecursionError` for what JSON does not have."""
    return json.dumps(said).encode()


def data_of(message: bytes) -> Json:
    r"""What a process sent, in texts that every file takes: a lone surrogate becomes its escape, such as `\ud800`.

    Raises `ValueError` or `RecursionError` for anything but JSON.
    """
    return json.loads(encodable_json(message.decode("ascii")))


def error_to_json(error: BaseException) -> Json:
    """An exception: its kind, and its message as a user reads it."""
    if isinstance(error, UnsupportedProblem):
        return {"kind": "UnsupportedProblem", "variant": error.args[0].split(" ")[0], "text": error.reason}
    if isinstance(error, KernelFault):
        return {"kind": "KernelFault", "fault": error.kind, "text": str(error)}
    text = str(error) if isinstance(error, SandboxError) else where_and_what(error)
    kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in ERRORS), "SandboxError")
    return {"kind": kind, "text": text}


def error_from_json(said: Json) -> SandboxError:
    """The exception to raise."""
    said = checked(said, dict)
    kind, text = checked(said.get("kind"), str), _shortened(checked(said.get("text"), str))
    if kind == "UnsupportedProblem":
        return UnsupportedProblem(_shortened(checked(said.get("variant"), str)), text)
    if kind == "KernelFault":
        fault = checked(said.get("fault"), str)
        return KernelFault(fault if fault in KernelFault.KINDS else "trap", text)
    return ERRORS.get(kind, SandboxError)(text)


def _shortened(text: str) -> str:
    more = len(text) - MOST_CHARACTERS
    return text if more <= 0 else f"{text[:MOST_CHARACTERS]}... and {more:,} more characters"
