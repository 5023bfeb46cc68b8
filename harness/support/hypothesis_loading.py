"""Imports Hypothesis, which is optional, without the plugins of other installed packages."""

from __future__ import annotations

import importlib
import os

from harness.support.errors import UsageError
from harness.support.exception_place import where_and_what

NO_PLUGINS = "HYPOTHESIS_NO_PLUGINS"
"""If this environment variable is set, Hypothesis imports no plugins (its module `entry_points`)."""


def load_hypothesis() -> None:
    """Import Hypothesis, unless already imported, without the plugins that installed packages provide for it.

    Those are for types of these packages, and may import pytest, which takes longer than all else. Raises `UsageError`
    if Hypothesis is not installed or cannot be imported.
    """
    before = os.environ.get(NO_PLUGINS)
    os.environ[NO_PLUGINS] = "1"
    try:
        importlib.import_module("hypothesis")
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise UsageError(f"Hypothesis could not be imported: {where_and_what(error)}") from error
        raise UsageError(
            "fuzz draws its problems with Hypothesis, which is not installed here; python -m pip install hypothesis"
        ) from error
    except Exception as error:
        raise UsageError(f"Hypothesis could not be imported: {where_and_what(error)}") from error
    finally:
        if before is None:
            del os.environ[NO_PLUGINS]
        else:
            os.environ[NO_PLUGINS] = before
