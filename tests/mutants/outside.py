"""Mutants that somebody wrote who had read the README and the pages on variants, and nothing of the fuzzer.

`written_outside/` has right kernels, in the styles that people write them in, and `slips.json` one realistic slip
after the other, each with a problem at which it shows. Its folders have further sets, written later by others:
`u-...` are the first one's, `v-...` those of `second/`, `w-...` those of `third/`, `x-...`, of gradients, those of
`fourth/`. They are as they came: what the fuzzer draws was not known to whoever wrote them, and they were not known to
whoever wrote the fuzzer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from dataclasses import dataclass
from pathlib import Path

from harness.model.variant import Registry, Variant
from tests.mutants.importing import digested, mutants_folder
from tests.mutants.patching import Patch

FOLDER = Path(__file__).parent / "written_outside"


@dataclass(frozen=True)
class OutsideMutant:
    """One slip in one of those kernels."""

    name: str
    """Of the mutated variant, such as `u-warp-row~kvhead-mod`."""
    style: str
    """How the kernel is written, such as `warp per row`."""
    bug: str
    """What is wrong, in his words."""
    variant: str
    """The right variant's name."""
    patch: Patch
    """In one file below `written_outside/`."""
    shows_at: str
    """Options of `compare` for a problem at which the answer is wrong, or the sanitizer finds something."""
    sanitize: bool = False
    """Whether its campaign runs under the sanitizer; these have what a default campaign has."""


def read_slips(path: Path) -> dict[str, OutsideMutant]:
    """The mutants of one `slips.json`, by name; their files lie beside it."""
    mutants = [
        OutsideMutant(
            name=f"{slip['variant']}~{slip['name']}",
            style=slip["style"],
            bug=slip["why"],
            variant=slip["variant"],
            patch=Patch(str((path.parent / slip["file"]).relative_to(FOLDER)), slip["find"], slip["replace"]),
            shows_at=slip["shows_at"],
        )
        for slip in json.loads(path.read_text())
    ]
    return {mutant.name: mutant for mutant in mutants}


OUTSIDE_MUTANTS = {
    name: mutant for path in sorted(FOLDER.rglob("slips.json")) for name, mutant in read_slips(path).items()
}
"""All of them: a set to each `slips.json`."""


def right_kernels() -> list[Path]:
    """The files that the slips were planted in."""
    return sorted(FOLDER.rglob("*.py"))


def text_of(mutant: OutsideMutant) -> str:
    """The file with the slip in it."""
    return mutant.patch.apply((FOLDER / mutant.patch.file).read_text())


def digest_of_outside(mutant: OutsideMutant) -> str:
    """Another one where the file with the slip has changed."""
    return hashlib.sha256(text_of(mutant).encode()).hexdigest()[:16]


def load_outside(mutant: OutsideMutant, right: bool = False) -> Variant:
    """The variant with the slip in it, under the mutant's name; or the `right` one, under its own."""
    text = text_of(mutant) if not right else (FOLDER / mutant.patch.file).read_text()
    # The same text is the same module, in whatever process: what was compiled of it is found again.
    module = digested(mutant.variant.replace("-", "_"), hashlib.sha256(text.encode()).hexdigest())
    path = mutants_folder() / f"{module}.py"
    if not path.exists():
        path.write_text(text)
    importlib.invalidate_caches()
    registry = Registry()
    importlib.import_module(module).register(registry)
    variant = registry.get(mutant.variant)
    return variant if right else dataclasses.replace(variant, name=mutant.name)
