"""Lets Numba's kernels have source lines, which numba-cuda leaves out unless each kernel asks for them."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_ENTERED = contextlib.ExitStack()
"""What stays changed until the process ends."""
_DISPATCHER = "numba.cuda.dispatcher"


class _LinesByDefault(importlib.abc.MetaPathFinder):
    """Finds the module that compiles kernels, and lets it compile them with lines after it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _DISPATCHER:
            return None
        sys.meta_path.remove(self)  # asks the others, and is not needed again
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def load_and_replace(module: ModuleType) -> None:
                load(module)
                _compile_with_lines(module)

            loader.exec_module = load_and_replace
        return spec


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
        sys.meta_path.insert(0, _LinesByDefault())
    else:
        _compile_with_lines(loaded)
