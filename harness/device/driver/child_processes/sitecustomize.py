"""Runs at the start of a Python process that an emulated program has started (see the package's docstring)."""

from __future__ import annotations

import importlib.abc
import os
import sys
from pathlib import Path
from typing import Any

_LIBRARIES = frozenset({"cuda", "cupy", "cupy_backends", "numba.cuda", "numba_cuda", "pycuda", "torch", "triton"})
_FOLDER = Path(__file__).parent


class _DriverFirst(importlib.abc.MetaPathFinder):
    """Starts the emulated driver before the first import of a library that opens the driver. Finds nothing itself."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name in _LIBRARIES:
            sys.meta_path.remove(self)
            root = str(_FOLDER.parents[3])
            if root not in sys.path:
                sys.path.append(root)
            from harness.device.driver.child_processes import GPU_VARIABLE, start_driver

            start_driver(os.environ[GPU_VARIABLE])


def _run_next() -> None:
    """Run the `sitecustomize` that this one hides."""
    sys.path[:] = [entry for entry in sys.path if Path(entry) != _FOLDER]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if own is not None:
            sys.modules["sitecustomize"] = own


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _DriverFirst())
    _run_next()
