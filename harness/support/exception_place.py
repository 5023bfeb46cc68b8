"""Describes an exception raised by a user's code in one line: the place in that code, the exception, its message."""

from __future__ import annotations

import signal
import sysconfig
import traceback
from pathlib import Path

_HARNESS = str(Path(__file__).resolve().parents[1])
_INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def where_and_what(error: BaseException) -> str:
    """`file:line: Exception: message`, without line breaks.

    The place is the innermost line that is in neither this harness nor an installed library, which is the line that its
    author can change; if there is none, the innermost line outside the harness.
    """
    what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_HARNESS, "<frozen importlib"))
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)]
    if not frames:
        return what
    place = (own or frames)[-1]
    return f"{place.filename}:{place.lineno}: {what}"


def place_in_harness(error: BaseException) -> str:
    """`Exception: message (harness/file.py:line)`, without line breaks, for an exception raised by the harness.

    The place is the innermost line of the harness.
    """
    what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith(_HARNESS)]
    if not frames:
        return what
    return f"{what} ({Path(frames[-1].filename).relative_to(Path(_HARNESS).parent)}:{frames[-1].lineno})"


def raise_interrupt(error: BaseException) -> None:
    """Re-raise a Ctrl-C. All other exceptions of a user's code, including SystemExit, are errors of that code.

    If Ctrl-C is ignored, as in processes that leave it to their parent, a KeyboardInterrupt was raised by the code
    itself.
    """
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        raise error
