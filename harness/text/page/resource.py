"""Loads style sheets and scripts, which lie next to the modules that use them."""

from __future__ import annotations

import functools
from importlib import resources


@functools.cache
def resource(name: str) -> str:
    """The text of a file in this folder, such as `page.css`."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
