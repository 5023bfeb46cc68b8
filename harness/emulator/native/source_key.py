"""What native code depends on, as part of its key in the cache on disk."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

ABOVE = ("launch",)
"""Rooms of the emulator that only use native code. All others, and those that nobody has thought of yet, may shape it.

That nothing below imports these is what the import contracts check.
"""


@lru_cache(maxsize=1)
def source_hash() -> str:
    """A hash of the code that makes code: whoever changes it need not remember to raise a number.

    Found from files, so that a warm start imports neither Numba nor the code generator.
    """
    return hash_of_sources(Path(__file__).parents[2])


def hash_of_sources(harness: Path) -> str:
    """A hash of names and texts of all modules in `harness/ptx` and in the emulator's rooms, but for those `ABOVE`."""
    emulator = harness / "emulator"
    rooms = (source for source in emulator.rglob("*/*.py") if source.relative_to(emulator).parts[0] not in ABOVE)
    sources = sorted((*rooms, *(harness / "ptx").rglob("*.py")))
    parts = (part for source in sources for part in (str(source.relative_to(harness)).encode(), source.read_bytes()))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
