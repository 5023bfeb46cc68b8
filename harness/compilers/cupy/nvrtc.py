"""Compiles CUDA C++ to PTX or machine code with NVRTC. Needs no GPU and no driver."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

from harness.support.errors import CompileError

HINTS = {
    'identifier "INFINITY" is undefined': (
        "\nNVRTC has no math.h, which defines INFINITY: write __int_as_float(0x7f800000), or include "
        "<math_constants.h> and write CUDART_INF_F"
    ),
    "invalid value for --gpu-architecture": (
        "\nA newer NVRTC may know the architecture: SANDBOX_CUDA=12 pip install --force-reinstall ."
    ),
}
"""What to do about a message of NVRTC, by a part of it."""


def compile_source(source: str, name: str, options: tuple[str, ...], expressions: tuple[str, ...] = ()) -> str:
    """Return the PTX of `source`. Messages call the file `name`.cu unless a `#line` names another.

    `expressions` are C++ names to instantiate, such as `kernel<float>`. Raises `CompileError` with NVRTC's log.
    """
    return compile_module(source, name, options, expressions)[0]


def compile_module(
    source: str, name: str, options: tuple[str, ...], expressions: tuple[str, ...] = ()
) -> tuple[str, dict[str, str]]:
    """Return the PTX of `source`, and the mangled name of each of the `expressions`.

    Parameters and errors are those of `compile_source`.
    """
    nvrtc = _nvrtc()
    with _compiled(source, name, options, expressions) as handle:
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, handle)
        lowered = (_check(nvrtc.nvrtcGetLoweredName(handle, each.encode()), f"find {each}") for each in expressions)
        return ptx, {each: found.decode() for each, found in zip(expressions, lowered)}


def compile_cubin(source: str, name: str, options: tuple[str, ...], expressions: tuple[str, ...] = ()) -> bytes:
    """Return the machine code of `source` for the architecture in `options`, such as `-arch=sm_90`.

    Parameters and errors are those of `compile_source`.
    """
    nvrtc = _nvrtc()
    with _compiled(source, name, options, expressions) as handle:
        return _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, handle)


@contextlib.contextmanager
def _compiled(source: str, name: str, options: tuple[str, ...], expressions: tuple[str, ...]) -> Iterator[Any]:
    nvrtc = _nvrtc()
    handle = _check(nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []), "create a program")
    try:
        for expression in expressions:
            _check(nvrtc.nvrtcAddNameExpression(handle, expression.encode()), f"add the name {expression}")
        (status,) = nvrtc.nvrtcCompileProgram(handle, len(options), [option.encode() for option in options])
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, handle).strip()
            hint = next((hint for part, hint in HINTS.items() if part in log), "")
            raise CompileError(
                f"kernel {name} did not compile with NVRTC {version_text()}:\n{log or status.name}{hint}"
            )
        yield handle
    finally:
        nvrtc.nvrtcDestroyProgram(handle)


@functools.cache
def version_text() -> str:
    """Return NVRTC's version, such as `12.9`."""
    nvrtc = _nvrtc()
    status, major, minor = nvrtc.nvrtcVersion()
    _check((status, None), "tell its version")
    return f"{major}.{minor}"


def require_architecture(arch: str) -> None:
    """Raise `CompileError` if NVRTC is older than the architecture of a GPU, such as `sm_100`.

    CuPy would compile for the newest one that NVRTC knows, and the driver would find no machine code for the GPU.
    """
    newest = max(_check(_nvrtc().nvrtcGetSupportedArchs(), "list its architectures"))
    if int(arch.removeprefix("sm_")) > newest:
        raise CompileError(
            f"NVRTC {version_text()} cannot compile for this GPU: the GPU is {arch}, and NVRTC supports up to "
            f"sm_{newest}; install newer packages, for example with: SANDBOX_CUDA=13 pip install --force-reinstall ."
        )


@functools.cache
def identity() -> str:
    """Identify the installed NVRTC library, including its patch release."""
    text = version_text()
    try:
        from cuda import pathfinder

        path = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
        status = os.stat(str(path))
    except Exception:  # pathfinder cannot find the library; its version still identifies it
        return text
    return f"{text} {status.st_size} {status.st_mtime_ns}"


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # the first call loads the library
    except (ImportError, RuntimeError) as error:
        raise CompileError(
            f"NVRTC is not available ({error}); run: pip install cuda-bindings nvidia-cuda-nvrtc-cu12 "
            "(CUDA 13: nvidia-cuda-nvrtc)"
        ) from error
    return nvrtc


def _check(result: tuple[Any, ...], what: str) -> Any:
    status = result[0]
    if status != _nvrtc().nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC could not {what}: {status.name}")
    return result[1] if len(result) > 1 else None


def _text(size_of: Any, read: Any, handle: Any) -> str:
    return _bytes(size_of, read, handle).rstrip(b"\0").decode("utf-8", "replace")


def _bytes(size_of: Any, read: Any, handle: Any) -> bytes:
    buffer = b" " * int(_check(size_of(handle), "tell a size"))  # buffer that NVRTC writes into
    _check(read(handle, buffer), "hand out its result")
    return buffer
