"""A mutant by its name, in whatever process it is wanted: nothing of a campaign is imported for it."""

from __future__ import annotations

from harness.model.discovery import discover
from harness.model.variant import Variant
from tests.mutants.catalogue import MUTANTS
from tests.mutants.outside import OUTSIDE_MUTANTS, load_outside
from tests.mutants.patching import mutated_variant


def load(name: str) -> Variant:
    """The mutant of that name, in whatever process this is called."""
    return load_outside(OUTSIDE_MUTANTS[name]) if name in OUTSIDE_MUTANTS else mutated_variant(MUTANTS[name])


def load_right(name: str) -> Variant:
    """What the mutant of that name was made of."""
    if name in OUTSIDE_MUTANTS:
        return load_outside(OUTSIDE_MUTANTS[name], right=True)
    return discover().registry.get(MUTANTS[name].variant)
