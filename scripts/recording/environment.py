"""What a record was made with: the GPU of this machine, its driver, and the compilers."""

from __future__ import annotations

import datetime
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from harness.support.errors import UsageError


def environment() -> dict[str, str]:
    """Names and versions."""
    import cupy

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
    return {
        "gpu": name,
        "driver": driver,
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "cupy": cupy.__version__,
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "numba-cuda": version("numba-cuda"),
    }


def require_same_machine(kept: Mapping[str, Any], made_on: Mapping[str, str]) -> None:
    """Raise `UsageError` where a record to keep was made with anything else than `made_on`, but for the date."""
    differs = [key for key in made_on if key != "date" and kept.get(key) != made_on[key]]
    if differs:
        was = ", ".join(f"{key} {kept.get(key)}" for key in differs)
        raise UsageError(f"the record to keep is from another machine ({was}); leave --keep out")
