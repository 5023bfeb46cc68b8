"""Records of what a GPU answered: which sources they were made with."""

from __future__ import annotations

import hashlib
from pathlib import Path

VARIANTS = Path(__file__).resolve().parents[2] / "variants"


def source_hash(algorithm: str) -> str:
    """Of all that decides what the kernels of an algorithm do: its folder, and the tiles that all share."""
    folders = (VARIANTS / "_tiles", VARIANTS / algorithm.replace("-", "_"))
    sources = sorted(p for folder in folders for p in folder.iterdir() if p.suffix in (".py", ".cu", ".cuh"))
    return hashlib.sha256(b"\0".join(p.name.encode() + b"\0" + p.read_bytes() for p in sources)).hexdigest()
