"""Where the CUDA headers lie: the nvidia wheels of CUDA 12 and 13 or an installed toolkit."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from harness.support.errors import CompileError

# CUDA 12 has a wheel, and a folder, per component; CUDA 13 puts all of them into one.
_WHEEL_FOLDERS = (
    "cuda_runtime/include",
    "cuda_nvcc/include",
    "cuda_cccl/include",
    "cu13/include",
    "cu13/include/cccl",
)


@functools.cache
def include_directories() -> tuple[str, ...]:
    """Folders with `cuda_fp16.h`, `mma.h` and the CCCL, in search order. Raises `CompileError` where there are none."""
    found: dict[str, None] = {}
    for component in ("cudart", "nvcc", "cccl"):
        directory = _ask_pathfinder(component)
        if directory is not None:
            found[directory] = None
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for folder in _WHEEL_FOLDERS:
            path = Path(root, folder)
            if path.is_dir():
                found[str(path)] = None
    if not any(Path(directory, "cuda_fp16.h").is_file() for directory in found):
        raise CompileError(
            "the CUDA headers are not installed; run: pip install nvidia-cuda-runtime-cu12 (or -r requirements.txt)"
        )
    return tuple(found)


def _ask_pathfinder(component: str) -> str | None:
    try:
        from cuda import pathfinder

        directory = pathfinder.find_nvidia_header_directory(component)
    except Exception:  # each version raises something else for a component that it does not know
        return None
    return None if directory is None else str(directory)
