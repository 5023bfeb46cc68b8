"""Identifies the version of the sandbox that a process runs: its source files and the packages that affect results.

A worker whose version differs from the client's is left out, because results of two versions must not be mixed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.model.discovery import ENTRY_POINT_GROUP, REPOSITORY_ROOT

SUFFIXES = (".py", ".cu", ".cuh", ".ptx")
"""Suffixes of the files that a result depends on."""
PACKAGES = (
    "cupy-cuda12x", "cupy-cuda13x", "hypothesis", "llvmlite", "ml_dtypes", "numba", "numba-cuda", "numpy",
    "nvidia-cuda-cccl-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-cccl", "nvidia-cuda-nvcc", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-nvvm", "triton",
)  # fmt: skip
"""Packages that compile kernels, generate inputs, or compute the correct answers."""


@dataclass(frozen=True)
class Fingerprint:
    """Versions of everything that the results of a process depend on."""

    harness: str
    """Digest of the files of `harness/`."""
    variants: str
    """Digest of the files of `variants/`."""
    python: str
    """Python version, such as `3.11`."""
    packages: tuple[tuple[str, str], ...]
    """Name and version of each installed package of `PACKAGES` and of each package that provides variants."""

    def difference(self, other: Fingerprint) -> str | None:
        """Describe how `other` differs from this fingerprint, in a few words. None if they are equal."""
        found = []
        for name in ("harness", "variants"):
            theirs, ours = getattr(other, name), getattr(self, name)
            if theirs != ours:
                found.append(f"{name}/ {theirs[:8]}, not {ours[:8]}")
        if self.python != other.python:
            found.append(f"Python {other.python}, not {self.python}")
        own, theirs = dict(self.packages), dict(other.packages)
        for name in sorted(own.keys() | theirs.keys()):
            if own.get(name) != theirs.get(name):
                found.append(f"{name} {theirs.get(name, 'absent')}, not {own.get(name, 'absent')}")
        return "; ".join(found) or None

    @property
    def digest(self) -> str:
        """Digest of all fields."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


def fingerprint() -> Fingerprint:
    """Return the fingerprint of this process, with its files as they are on disk now."""
    return Fingerprint(
        harness=_digest(REPOSITORY_ROOT / "harness"),
        variants=_digest(REPOSITORY_ROOT / "variants"),
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        packages=_versions(),
    )


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES and "__pycache__" not in p.parts):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@functools.cache
def _versions() -> tuple[tuple[str, str], ...]:
    return tuple(sorted(set(_installed())))


def _installed() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if entry_point.dist is not None:
            yield entry_point.dist.name, entry_point.dist.version
    yield "machine", platform.machine()
