"""Implements --keep: stores a study's result in the user's store after it was published."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import platform
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.execution.results.place import KEEP_VARIABLE
from harness.options.standard_streams import complain
from harness.support.errors import StoreError

if TYPE_CHECKING:
    from harness.execution.results.kept_row import KeptRow
    from harness.options.output import ReportOptions
    from harness.text.study_result import StudyResult


def add_keep(parser: argparse.ArgumentParser) -> None:
    """Add --keep."""
    parser.add_argument_group("stored results").add_argument(
        "--keep",
        action="store_true",
        help=f"store the result for 'history' ({KEEP_VARIABLE}=always: store every result)",
    )


def keep_result(report: ReportOptions, shown: StudyResult[Any]) -> None:
    """Store a study's rows if the options request it. Raises `StoreError` if they cannot be stored."""
    if report.is_kept:
        keep_rows(report, shown.kept())


def keep_rows(report: ReportOptions, rows: Sequence[KeptRow]) -> None:
    """Store the rows of one command, with the versions and the driver.

    With --keep, reports their number and the store.
    """
    from harness.execution.results.store import open_store

    versions = json.dumps(package_versions())
    driver = driver_version() if any(row.device_kind == "gpu" for row in rows) else None
    stamped = [
        dataclasses.replace(row, versions=versions, driver=row.driver or (driver if row.device_kind == "gpu" else None))
        for row in rows
    ]
    with open_store() as store:
        number = store.keep(stamped)
        if report.keep:
            complain(f"stored {number} {'row' if number == 1 else 'rows'} in {store.path}")


def keep_or_warn(report: ReportOptions, shown: StudyResult[Any]) -> None:
    """Store a study's rows like `keep_result`, but warn instead of raising `StoreError`."""
    try:
        keep_result(report, shown)
    except StoreError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=4)


PACKAGES = (
    "attention-sandbox", "cupy-cuda12x", "cupy-cuda13x", "llvmlite", "ml_dtypes", "numba", "numba-cuda", "numpy",
    "nvidia-cuda-cccl-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-cccl", "nvidia-cuda-nvcc", "nvidia-cuda-nvrtc", "nvidia-nvvm", "torch", "triton",
)  # fmt: skip
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
