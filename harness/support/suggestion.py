"""Suggests the name that the user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """Continue a message about an unknown name: with the most similar of `names`, or a full stop if none is similar."""
    known = list(names)
    longer = [each for each in known if name and each.startswith(name)]
    near = sorted(longer, key=len) or difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else "."
