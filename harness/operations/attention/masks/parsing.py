"""Parses masks, such as `causal+window:256`. Modules of this package define their kind of mask as `KIND`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from harness.operations.attention import masks
from harness.operations.attention.masks.mask import NO_MASK, Mask, intersection
from harness.support.errors import ProblemError
from harness.support.suggestion import did_you_mean


@functools.cache
def mask_kinds() -> Mapping[str, type[Mask]]:
    """Return every kind of mask by its name."""
    modules = (
        importlib.import_module(f"{masks.__name__}.{found.name}") for found in pkgutil.iter_modules(masks.__path__)
    )
    kinds = (module.KIND for module in modules if hasattr(module, "KIND"))
    return {kind.kind: kind for kind in sorted(kinds, key=lambda kind: kind.kind)}


def parse_mask(text: str) -> Mask:
    """Return the mask for a text: `none`, one of the kinds, or several joined by `+`. Raises `ProblemError`."""
    words = _words(text)
    if words == ["none"]:
        return NO_MASK
    return intersection(_parse_one(word, text) for word in words)


def _words(text: str) -> list[str]:
    """Split into the texts of single masks. They start with a letter, unlike further numbers of a list."""
    words: list[str] = []
    for word in (each.strip() for each in text.split("+")):
        if words and word and not word[0].isalpha():
            words[-1] += f"+{word}"
        else:
            words.append(word)
    return words


def _parse_one(word: str, text: str) -> Mask:
    kind, _, parameters = word.partition(":")
    kinds = mask_kinds()
    if kind not in kinds:
        spellings = ", ".join(["none", *(each.spelling for each in kinds.values())])
        raise ProblemError(
            f"mask {text!r}: there is no {kind!r}{did_you_mean(kind, kinds)} Masks: {spellings}; join several with +"
        )
    return kinds[kind].parse(parameters)


def mask_help() -> list[tuple[str, str]]:
    """Return the syntax and the description of each kind for `--help`."""
    return [("none", "every row sees every key"), *((k.spelling, k.idea) for k in mask_kinds().values())]
