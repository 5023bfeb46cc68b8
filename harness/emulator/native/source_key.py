"""Hashes the sources that native code depends on, as part of its key in the disk cache."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

ABOVE = ("launch",)
"""Packages of the emulator that only use native code. All others, including future ones, are part of the hash.

The import contracts check that no other package imports these.
"""


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Return a hash of the code generator's sources, so that changing them invalidates the cache.

    The files are read without importing them, so a process that only reads cached code loads neither Numba nor the code
    generator.
    """
    return hash_of_sources(Path(__file__).parents[2])


def hash_of_sources(harness: Path) -> str:
    """Hash names and texts of all modules in `harness/ptx` and in the emulator's packages, except those in `ABOVE`."""
    emulator = harness / "emulator"
    rooms = (source for source in emulator.rglob("*/*.py") if source.relative_to(emulator).parts[0] not in ABOVE)
    sources = sorted((*rooms, *(harness / "ptx").rglob("*.py")))
    parts = (part for source in sources for part in (str(source.relative_to(harness)).encode(), source.read_bytes()))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
