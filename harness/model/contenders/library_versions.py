"""Which libraries with rows in `bench` are installed, and their versions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

PACKAGES = {
    "nvidia-cudnn-frontend": "cuDNN's front end",
    "flash-attn-4": "flash-attn-4",
    "quack-kernels": "QuACK",
    "nvidia-cutlass-dsl": "CuTe DSL",
}
"""Package -> what output calls it."""


def package_version(package: str) -> str | None:
    """Version of an installed package; None without it. Imports nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def where_installed(rows: Mapping[str, T], needed: Mapping[str, tuple[str, ...]]) -> dict[str, T]:
    """Rows without those that need a package that is not installed. `needed` has the packages of some rows."""
    return {name: row for name, row in rows.items() if all(map(package_version, needed.get(name, ())))}


def library_versions() -> dict[str, str]:
    """Versions of PyTorch, of the cuDNN that it uses, and of the installed `PACKAGES`. Imports PyTorch."""
    import torch

    versions = {"PyTorch": str(torch.__version__)}
    cudnn = torch.backends.cudnn.version()
    if cudnn is not None:
        versions["cuDNN"] = f"{cudnn // 10_000}.{cudnn // 100 % 100}.{cudnn % 100}"
    found = {name: package_version(package) for package, name in PACKAGES.items()}
    return versions | {name: version for name, version in found.items() if version is not None}
