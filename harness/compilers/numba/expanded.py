"""Lists what one Numba kernel compiles: its text, the device functions that it calls, and their constants.

A kernel's maker chooses device functions and constants, which are in the kernel's closure. Features that are off are
functions that do nothing.
"""

from __future__ import annotations

import dis
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

_CONSTANTS = (bool, int, float, np.generic)


def expand(dispatcher: Any) -> str:
    """Return the source of the kernel and of all device functions that it calls, those called before their callers.

    Before each function stand its constants, and, where the function calls another by a name of its own, which it is.
    """
    sections: dict[Any, str] = {}
    _visit(dispatcher.py_func, sections, set())
    return "\n\n".join(sections.values())


def _visit(function: FunctionType, sections: dict[Any, str], open_: set[Any]) -> None:
    if function in open_:
        return
    open_.add(function)
    lines = [f"# --- {_place(function)}"]
    for name, value in _names(function):
        called = getattr(value, "py_func", None)
        if called is not None:
            _visit(called, sections, open_)
            if called.__name__ != name:
                lines.append(f"# {name}: {called.__name__} of {_place(called)}")
        elif isinstance(value, _CONSTANTS):
            lines.append(f"{name} = {value}")
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except OSError:
        text = f"# {function.__name__}: the source is not in a file\n"
    sections[_key(function)] = "\n".join(lines) + "\n" + text


def _key(function: FunctionType) -> Any:
    """Makers give different functions the same code with different constants: these are listed one by one."""
    constants = tuple((name, value) for name, value in _names(function) if isinstance(value, _CONSTANTS))
    return function.__code__ if not constants else (function.__code__, repr(constants))


def _names(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names outside of the function that it uses, with their values, in the order of their use."""
    closure = inspect.getclosurevars(function).nonlocals
    seen = set()
    for instruction in dis.get_instructions(function):
        name = instruction.argval
        if not isinstance(name, str) or name in seen:
            continue
        if instruction.opname == "LOAD_DEREF" and name in closure:
            seen.add(name)
            yield name, closure[name]
        elif instruction.opname == "LOAD_GLOBAL" and name in function.__globals__:
            seen.add(name)
            yield name, function.__globals__[name]


def _place(function: FunctionType) -> str:
    path = Path(function.__code__.co_filename)
    return f"{path.name}:{function.__code__.co_firstlineno}"
