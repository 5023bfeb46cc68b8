"""The version of the distribution, which `pyproject.toml` reads from here, and its place in JSON output."""

from collections.abc import Mapping
from typing import Any

VERSION = "0.1.0"


def with_version(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with the version of the package as its last key, `version`."""
    return {**document, "version": VERSION}
