"""Lets Python processes that an emulated program starts use the emulated driver, too.

They find `sitecustomize` of this folder by `PYTHONPATH`, and start the driver when they import a library of CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.device.driver.module_changes import change_when_imported

if TYPE_CHECKING:
    from harness.device.driver.process import Driver

GPU_VARIABLE = "SANDBOX_EMULATED_GPU"
"""The environment variable with the name of the GPU."""


_ENTERED = contextlib.ExitStack()
"""What stays changed until the process ends."""
_DISPATCHER = "numba.cuda.dispatcher"


def _compile_with_lines(dispatcher: Any) -> None:
    from harness.compilers.numba.dispatcher import line_tables_without_variables

    own = dispatcher.compile_cuda

    @functools.wraps(own)
    def compile_cuda(*arguments: Any, **options: Any) -> Any:
        # Numba takes one of the two, and debug information includes lines.
        return own(*arguments, **{**options, "lineinfo": not options.get("debug")})

    dispatcher.compile_cuda = compile_cuda
    _ENTERED.enter_context(line_tables_without_variables())


def lines_by_default() -> None:
    """Compile kernels of `numba.cuda` with `lineinfo=True` unless they have `debug=True`."""
    loaded = sys.modules.get(_DISPATCHER)
    if loaded is None:
        change_when_imported({_DISPATCHER: _compile_with_lines})
    else:
        _compile_with_lines(loaded)


def start_driver(gpu: str, *, sanitize: bool = False, seed: int = 0, step_limit: int | None = None) -> Driver:
    """Start the emulated driver in this process, for CuPy too, with source lines in the kernels of all compilers.

    Raises what `install` raises.
    """
    from harness.device.cupy_runtime.module_replacement import emulate_cupy
    from harness.device.driver.process import install

    driver = install(gpu, sanitize=sanitize, seed=seed, step_limit=step_limit)
    os.environ.setdefault("NVRTC_APPEND_FLAGS", "-lineinfo")
    warnings.filterwarnings("ignore", message="libnvJitLink")
    lines_by_default()
    emulate_cupy(driver)
    return driver


def start_in_children(gpu: str) -> None:
    """Let Python processes that this one starts from now on start the driver."""
    os.environ[GPU_VARIABLE] = gpu
    here, paths = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, paths)])
