"""Replaces CuPy's cache directory if it is unusable. CuPy creates it on import and fails without it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

DIRECTORY_VARIABLE = "CUPY_CACHE_DIR"


def replace_unusable_directory() -> str | None:
    """Use a temporary directory for this process if CuPy's cache directory cannot be used. Call before importing CuPy.

    Returns a message of one line, or None if nothing was replaced.
    """
    directory = Path(os.environ.get(DIRECTORY_VARIABLE, os.path.expanduser("~/.cupy/kernel_cache")))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror
    else:
        if os.access(directory, os.W_OK | os.X_OK):
            return None
        reason = "Permission denied"
    own = tempfile.mkdtemp(prefix="cupy-kernel-cache-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    os.environ[DIRECTORY_VARIABLE] = own
    return f"CuPy keeps no kernels: {directory}: {reason}; set {DIRECTORY_VARIABLE} to a folder that you can write to"
