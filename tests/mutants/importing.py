"""How mutants are imported: their functions say that they are of one module and one file, whichever mutant has them.

A mutant differs from another in a few words. What Numba compiles is kept by what the functions are and where they
stand, so the functions that two mutants have in common are compiled once for both.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import linecache
import os
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType

_DIGEST = re.compile(r"_[0-9a-f]{16}(?=[./]|$)")
"""What tells the modules of one mutant from another's."""


def digested(name: str, digest: str) -> str:
    """The name of a module or package whose texts have this digest, of 16 hexadecimal digits or more."""
    return f"{name}_{digest[:16]}"


@functools.cache
def mutants_folder() -> Path:
    """Where mutants are written, on `sys.path`: one place per user, since worker processes die without cleaning up."""
    folder = Path(tempfile.gettempdir(), f"attention-sandbox-mutants-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise RuntimeError(f"{folder} belongs to somebody else: remove it or set TMPDIR")
    sys.path_hooks.insert(0, functools.partial(_finder, str(folder)))
    sys.path.append(str(folder))
    return folder


def _finder(folder: str, path: str) -> importlib.machinery.FileFinder:
    """A hook of `sys.path_hooks`."""
    if path != folder and not path.startswith(folder + os.sep):
        raise ImportError
    return importlib.machinery.FileFinder(path, (_MutantLoader, [".py"]))


class _MutantLoader(importlib.machinery.SourceFileLoader):
    """Of a module without the digest in its functions' names and files. A package keeps its name: imports need it."""

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        file = _DIGEST.sub("", self.path)
        text = Path(self.path).read_text()
        # There is no such file, and Numba and tracebacks read the lines of a function.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        if not self.is_package(self.name):
            module.__name__ = _DIGEST.sub("", self.name)
            sys.modules[module.__name__] = module
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))
