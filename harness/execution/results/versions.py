"""What decides, besides a kernel's own text, what becomes of it: versions of packages, and of the GPU's driver."""

from __future__ import annotations

import importlib.metadata
import platform

PACKAGES = (
    "attention-sandbox",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "llvmlite",
    "ml_dtypes",
    "numba",
    "numba-cuda",
    "numpy",
    "nvidia-cuda-cccl-cu12",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-cuda-nvrtc-cu12",
    "torch",
)
"""Distributions whose version may change a figure; those that are not installed are not told."""


def package_versions() -> dict[str, str]:
    """Name -> version, Python's own first."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def driver_version() -> str | None:
    """The GPU driver's, through NVML; None where that is not there."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # not installed, no library, no permission: all mean that it is not known
        return None
