"""Changes modules of other packages after they are imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]


class _ChangedModules(importlib.abc.MetaPathFinder):
    """Finds the modules that are changed after they are loaded, each once."""

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = dict(changes)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        change = self._changes.pop(name, None)  # the others are asked for the module next
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def load_and_change(module: ModuleType) -> None:
                load(module)
                change(module)

            loader.exec_module = load_and_change
        return spec


def change_when_imported(changes: Mapping[str, Change]) -> None:
    """Call a function with each of these modules, by name, after its import. None of them may be imported yet."""
    sys.meta_path.insert(0, _ChangedModules(changes))
