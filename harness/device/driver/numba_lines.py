"""Lets Numba's kernels have source lines, which numba-cuda leaves out unless each kernel asks for them."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

from harness.device.driver.module_changes import change_when_imported

_ENTERED = contextlib.ExitStack()
"""What stays changed until the process ends."""
_DISPATCHER = "numba.cuda.dispatcher"


def _compile_with_lines(dispatcher: Any) -> None:
    from harness.compilers.numba.dispatcher import line_tables_without_variables

    own = dispatcher.compile_cuda

    @functools.wraps(own)
    def compile_cuda(*arguments: Any, **options: Any) -> Any:
        # Numba takes one of the two, and debug information includes lines.
        return own(*arguments, **{**options, "lineinfo": not options.get("debug")})

    dispatcher.compile_cuda = compile_cuda
    _ENTERED.enter_context(line_tables_without_variables())


def lines_by_default() -> None:
    """Compile kernels of `numba.cuda` with `lineinfo=True` unless they have `debug=True`."""
    loaded = sys.modules.get(_DISPATCHER)
    if loaded is None:
        change_when_imported({_DISPATCHER: _compile_with_lines})
    else:
        _compile_with_lines(loaded)
