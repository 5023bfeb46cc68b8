"""Encodes a planner's answers and errors as JSON, and validates them in the judge.

This module imports neither NumPy nor a compiler, so that the judge's process can use it cheaply.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from harness.model.problem import BaseProblem

Json = Any
"""A JSON value: a number, text, None, a list, or a dict with text keys."""
ERRORS = {kind.__name__: kind for kind in (CompileError, PlanError, PluginError, SandboxError, UsageError)}
"""Errors that are sent by their own name. All others become a `SandboxError`."""


MOST_CHARACTERS = 20_000
"""Maximum characters of an error's text, enough for a compiler's log. The rest is cut off."""


class Malformed(SandboxError):
    """Raised if a reply does not have the expected form."""


def checked(value: Json, *kinds: type) -> Any:
    """Return `value` if its type is exactly one of `kinds`, so a bool is not an int. Raises `Malformed` otherwise."""
    if type(value) not in kinds:
        raise Malformed(f"{value!r:.200} is no {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def message_of(said: Json) -> bytes:
    """Encode a value for `data_of`. Raises `ValueError`, `TypeError` or `RecursionError` for values that JSON lacks."""
    return json.dumps(said).encode()


def data_of(message: bytes) -> Json:
    r"""Decode a message. A lone surrogate in a text becomes its escape, such as `\ud800`, so that any file can hold it.

    Raises `ValueError` or `RecursionError` if it is not JSON.
    """
    return json.loads(encodable_json(message.decode("ascii")))


def error_to_json(error: BaseException) -> Json:
    """Encode an exception as its kind and the message that users see."""
    if isinstance(error, UnsupportedProblem):
        return {"kind": "UnsupportedProblem", "variant": error.args[0].split(" ")[0], "text": error.reason}
    if isinstance(error, KernelFault):
        return {"kind": "KernelFault", "fault": error.kind, "text": str(error)}
    text = str(error) if isinstance(error, SandboxError) else where_and_what(error)
    kind = next((each.__name__ for each in type(error).__mro__ if each.__name__ in ERRORS), "SandboxError")
    return {"kind": kind, "text": text}


def error_from_json(said: Json) -> SandboxError:
    """Decode an exception, to be raised. Raises `Malformed` if it has another form."""
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


ONCE = "plan"
"""The question whose reply is used only once, because each caller needs a new plan, whose modules are loaded again."""


class PrefetchedReplies:
    """A planner's replies to all questions of one attempt, except the claimed traffic, fetched in one message.

    One round trip per question would take longer than most answers. Replies are about one problem, until those about
    the next one replace them.
    """

    def __init__(self) -> None:
        self.cautious = False
        """Whether prefetching is off, so that the question that crashes a process can be identified."""
        self._problem: BaseProblem | None = None
        self._tile: Json = None
        self._generation = 0
        self._replies: dict[str, Json] = {}

    def put(self, problem: BaseProblem, said: Json, generation: int) -> None:
        """Store the result of `Planner.attempt`; `generation` is the number of the process. Raises `Malformed`."""
        replies = checked(said, dict)
        self._problem, self._generation = problem, generation
        self._tile = replies.pop("tile", None)
        self._replies = replies

    def take(self, what: str, problem: BaseProblem, tile: Json, generation: int) -> Json:
        """Return the reply to a question about the same problem object, or None if there is none."""
        if problem is not self._problem or generation != self._generation or what not in self._replies:
            return None
        if what == "plan" and tile != self._tile:
            return None
        reply = checked(self._replies.pop(what) if what == ONCE else self._replies[what], dict)
        if "error" not in reply and "answer" not in reply:
            raise Malformed(f"a reply of {reply!r:.200}")
        return reply
