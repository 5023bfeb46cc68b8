"""What a record was made with: the GPU of this machine, its driver, and the compilers."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib.metadata import version


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
