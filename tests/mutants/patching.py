"""Mutants: the true variants with one mistake planted, each a few words of patch on the true text.

A mutant is not a copy. Its folder below variants/ and the tiles it uses are read as they are now, patched, and loaded as
a package of its own; where a kernel's text has moved on, the patch does not apply and says so.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.variant import Registry, Variant

VARIANTS = Path(__file__).resolve().parents[2] / "variants"
SHARED = "_tiles"


@dataclass(frozen=True)
class Patch:
    """One replacement in one file below variants/."""

    file: str
    """Such as `fa2/kernel.cu`."""
    old: str
    """Occurs in the file exactly once, or `times` times."""
    new: str
    times: int = 1

    def apply(self, text: str) -> str:
        """The patched text. Raises `ValueError` where the file does not hold what is to be replaced."""
        found = text.count(self.old)
        if found != self.times:
            raise ValueError(f"{self.file} has {self.old!r} {found} times, not {self.times}: renew this patch")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutant:
    """One planted mistake."""

    bug: str
    """Its class: the same words for the same mistake wherever it is planted."""
    variant: str
    """The true variant's name."""
    patches: tuple[Patch, ...]

    @property
    def name(self) -> str:
        """Of the mutated variant, such as `fa2-cupy~m-not-carried`."""
        return f"{self.variant}~{self.bug.replace(' ', '-')}"

    @property
    def folder(self) -> str:
        """Of the true variant, below variants/."""
        return self.variant.rpartition("-")[0].replace("-", "_")

    @property
    def backend(self) -> str:
        """`cupy` or `numba`."""
        return self.variant.rpartition("-")[2]


def patched_files(mutant: Mutant) -> dict[str, str]:
    """Every text file of the mutant's folder and of the tiles, patched; paths are relative to variants/."""
    texts = {
        f"{folder}/{path.name}": path.read_text()
        for folder in (SHARED, mutant.folder)
        for path in sorted((VARIANTS / folder).iterdir())
        if path.suffix in (".py", ".cu", ".cuh")
    }
    for patch in mutant.patches:
        texts[patch.file] = patch.apply(texts[patch.file])
    return texts


@functools.cache
def mutated_variant(mutant: Mutant) -> Variant:
    """The variant with the mistake in it, under the mutant's name. It claims no bytes: that is not what is asked here."""
    texts = patched_files(mutant)
    package = "mutant_" + hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    root = _folder() / package
    for path, text in texts.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".py":
            text = text.replace("from variants.", f"from {package}.").replace("from variants ", f"from {package} ")
        # The package is where CUDA sources are looked up as well.
        target.write_text(text.replace('f"variants.{folder}"', f'f"{package}.{{folder}}"'))
    (root / "__init__.py").write_text("")
    importlib.invalidate_caches()
    registry = Registry()
    importlib.import_module(f"{package}.{mutant.folder}").register(registry)
    return dataclasses.replace(registry.get(mutant.variant), name=mutant.name, claim=None)


@functools.cache
def _folder() -> Path:
    """Where this process keeps its mutants, on `sys.path`; gone with the process."""
    folder = tempfile.TemporaryDirectory(prefix="attention-sandbox-mutants-")
    _kept.append(folder)
    sys.path.append(folder.name)
    return Path(folder.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []
