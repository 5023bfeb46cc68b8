"""Lets Numba's kernels have source lines, which numba-cuda leaves out unless each kernel asks for them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_DECORATORS = "numba.cuda.decorators"


class _LinesByDefault(importlib.abc.MetaPathFinder):
    """Finds the module that defines `cuda.jit`, and changes the default of its `lineinfo` after it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _DECORATORS:
            return None
        sys.meta_path.remove(self)  # asks the others, and is not needed again
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def load_and_change(module: ModuleType) -> None:
                load(module)
                _change_default(module.jit)

            loader.exec_module = load_and_change
        return spec


def _change_default(jit: Any) -> None:
    names = [p.name for p in inspect.signature(jit).parameters.values() if p.default is not p.empty]
    if "lineinfo" in names:  # older versions have no such parameter
        index = names.index("lineinfo")
        jit.__defaults__ = (*jit.__defaults__[:index], True, *jit.__defaults__[index + 1 :])
    from harness.compilers.numba.dispatcher import line_tables_without_variables

    line_tables_without_variables().__enter__()


def lines_by_default() -> None:
    """Make `lineinfo=True` the default of `numba.cuda.jit`, now or when it is imported."""
    loaded = sys.modules.get(_DECORATORS)
    if loaded is None:
        sys.meta_path.insert(0, _LinesByDefault())
    else:
        _change_default(loaded.jit)
