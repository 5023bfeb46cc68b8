"""Location of the store, and the setting that stores all results automatically."""

from __future__ import annotations

import os
from pathlib import Path

from harness.support.cache import user_directory
from harness.support.errors import UsageError
from harness.support.numbers import shown

DIRECTORY_VARIABLE = "ATTENTION_SANDBOX_RESULTS_DIR"
KEEP_VARIABLE = "ATTENTION_SANDBOX_KEEP"
FILE = "results.sqlite"


def store_path() -> Path:
    """$ATTENTION_SANDBOX_RESULTS_DIR/results.sqlite, else in attention-sandbox in $XDG_DATA_HOME or ~/.local/share.

    Separate from the cache of compiled kernels, which may be deleted at any time. Raises `UsageError` if there is
    neither a setting nor a home directory.
    """
    directory = user_directory(DIRECTORY_VARIABLE, "XDG_DATA_HOME", os.path.join(".local", "share"))
    if directory is None:
        raise UsageError(f"there is no home directory to keep results in; set {DIRECTORY_VARIABLE}")
    return directory / FILE


def keeps_always() -> bool:
    """Whether $ATTENTION_SANDBOX_KEEP is `always`. Raises `UsageError` if it has any other value."""
    text = os.environ.get(KEEP_VARIABLE, "")
    if text not in ("", "always"):
        raise UsageError(f"{KEEP_VARIABLE} is {shown(text)}; it is 'always', or unset, where --keep asks for it")
    return text == "always"
