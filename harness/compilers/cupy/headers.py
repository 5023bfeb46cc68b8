"""Finds the CUDA headers and the user's files that a CUDA source includes."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from pathlib import Path

from harness.support.errors import CompileError

# CUDA 12 has one wheel and one folder per component; CUDA 13 has one folder for all of them.
_WHEEL_FOLDERS = (
    "cuda_runtime/include",
    "cuda_nvcc/include",
    "cuda_cccl/include",
    "cu13/include",
    "cu13/include/cccl",
)

_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*include(?:_next)?\b[ \t]*(.*)$", re.MULTILINE)
_TARGET = re.compile(r'["<]([^">]+)[">]')
_DIRECTORY_OPTIONS = ("-I", "--include-path", "-include-path")
_FORCED_INCLUDES = ("-include", "--pre-include", "-pre-include")


@functools.cache
def include_directories() -> tuple[str, ...]:
    """Return folders with `cuda_fp16.h`, `mma.h` and CCCL, from the nvidia wheels or a toolkit, in search order.

    Raises `CompileError` if there are none.
    """
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
            "the CUDA headers are not installed; run: pip install nvidia-cuda-runtime-cu12 "
            "(CUDA 13: nvidia-cuda-runtime)"
        )
    return tuple(found)


def _ask_pathfinder(component: str) -> str | None:
    try:
        from cuda import pathfinder

        directory = pathfinder.find_nvidia_header_directory(component)
    except Exception:  # the exception for an unknown component differs between versions
        return None
    return None if directory is None else str(directory)


def included_files(source: str, options: tuple[str, ...]) -> tuple[str | bytes, ...] | None:
    """Return path and content of each file in the user's `-I` folders that the source includes, directly or indirectly.

    Preprocessor conditions are ignored, so files may be listed that are not used, but none is missing. Returns None if
    the files are unknown, because of an include through a macro or one that an option forces. Headers of CUDA, CCCL and
    CuPy are omitted, as they change only with their versions.
    """
    directories = _directories(options)
    if directories is None:
        return None
    if not directories:
        return ()
    found: dict[Path, bytes] = {}
    pending = [(source, directories)]
    while pending:
        text, search = pending.pop()
        for rest in _DIRECTIVE.findall(text):
            target = _TARGET.match(rest)
            if target is None:
                return None
            for directory in search:
                path = Path(directory, target[1])
                if path in found or not path.is_file():
                    continue
                found[path] = path.read_bytes()
                pending.append((found[path].decode("utf-8", "replace"), [str(path.parent), *directories]))
                break
    return tuple(part for path in sorted(found) for part in (str(path), found[path]))


def _directories(options: tuple[str, ...]) -> list[str] | None:
    directories = []
    rest = iter(options)
    for option in rest:
        if option.startswith(_FORCED_INCLUDES) and not option.startswith("-include-path"):
            return None
        for prefix in _DIRECTORY_OPTIONS:
            if option.startswith(prefix):
                value = option[len(prefix) :].lstrip("=") or next(rest, "")
                directories.append(os.path.abspath(value))
                break
    return directories
