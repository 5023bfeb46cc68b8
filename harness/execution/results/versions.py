"""Versions of the packages and the GPU driver that determine how a kernel is compiled and runs."""

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
"""Distributions whose version may change a result; those that are not installed are left out."""


def package_versions() -> dict[str, str]:
    """Versions by package name, Python's own first."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def driver_version() -> str | None:
    """Version of the GPU driver, from NVML; None if NVML is not available."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # not installed, no library, no permission: the version is unknown
        return None
