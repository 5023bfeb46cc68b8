"""Imports Hypothesis with care: it is not there everywhere, and it imports what other installed packages ask it to."""

from __future__ import annotations

import importlib
import os

from harness.support.errors import UsageError
from harness.support.exception_place import where_and_what

NO_PLUGINS = "HYPOTHESIS_NO_PLUGINS"
"""Where this is set in the environment, Hypothesis imports no plugins (its module `entry_points`)."""


def load_hypothesis() -> None:
    """Import Hypothesis, unless it was imported before, without the plugins that installed packages have for it.

    They are about types of those packages, and may import pytest, which takes longer than all else. Raises
    `UsageError` where Hypothesis is not installed, or does not import.
    """
    before = os.environ.get(NO_PLUGINS)
    os.environ[NO_PLUGINS] = "1"
    try:
        importlib.import_module("hypothesis")
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise UsageError(f"Hypothesis does not import: {where_and_what(error)}") from error
        raise UsageError(
            "fuzz draws its problems with Hypothesis, which is not installed here; python -m pip install hypothesis"
        ) from error
    except Exception as error:
        raise UsageError(f"Hypothesis does not import: {where_and_what(error)}") from error
    finally:
        if before is None:
            del os.environ[NO_PLUGINS]
        else:
            os.environ[NO_PLUGINS] = before
