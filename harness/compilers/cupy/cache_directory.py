"""CuPy's own cache on disk, whose folder CuPy makes when it is imported and cannot do without."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

DIRECTORY_VARIABLE = "CUPY_CACHE_DIR"


def replace_unusable_directory() -> str | None:
    """Let CuPy use a folder for this process alone where its own cannot be used; one line that says so, else None.

    Has to be called before CuPy is imported.
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
