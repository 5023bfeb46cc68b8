"""Holds the variants by name, in the order in which they were added."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from harness.model.variant import Variant
from harness.support.errors import PluginError, UsageError
from harness.support.suggestion import did_you_mean


class Registry:
    """Variants by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._variants: dict[str, Variant] = {}
        self._origins: dict[str, str] = {}
        self.origin = "the caller"
        """Origin of the variants being added, for the message about duplicate names."""

    def add(self, variant: Variant) -> None:
        """Add a variant. Raises `PluginError` if its name is in use."""
        if variant.name in self._variants:
            raise PluginError(
                f"{self.origin} registers variant {variant.name!r}, but {self._origins[variant.name]} "
                "has registered that name already; choose another name"
            )
        self._variants[variant.name] = variant
        self._origins[variant.name] = self.origin

    def __iter__(self) -> Iterator[Variant]:
        return iter(self._variants.values())

    def __len__(self) -> int:
        return len(self._variants)

    def origin_of(self, name: str) -> str:
        """Return the module, file or package that registered the variant."""
        return self._origins[name]

    def get(self, name: str) -> Variant:
        """Return the variant of this name. Raises `UsageError` with the most similar name."""
        if name in self._variants:
            return self._variants[name]
        raise UsageError(f"no variant {name!r}{did_you_mean(name, self._variants, 0.3)} 'list' shows all")

    def select(self, patterns: str | None, operation: str | None = None) -> list[Variant]:
        """Return the variants that match one of the comma-separated patterns, or all if `patterns` is None.

        Only variants of `operation` match a pattern, unless it is None. The full name of a variant selects it for any
        operation. Raises `UsageError` if a pattern matches none.
        """
        offered = [variant for variant in self if operation in (None, variant.operation)]
        if patterns is None:
            return offered
        chosen: dict[str, Variant] = {}
        wanted = [part.strip() for part in patterns.split(",") if part.strip()]
        if not wanted:
            raise UsageError(f"{patterns!r} names no variant; 'list' shows all")
        for pattern in wanted:
            matches = [v for v in offered if fnmatchcase(v.name, pattern)]
            if not matches:
                matches = [self.get(pattern)]
            chosen.update((v.name, v) for v in matches)
        return list(chosen.values())
