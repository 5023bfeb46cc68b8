"""Functions of CuPy's modules that are not supported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.device.cupy_runtime.driver_calls import DriverCalls


def refused_function(call: DriverCalls, name: str, library: str = "") -> Callable[..., Any]:
    """A function that prints and counts its call, and raises an error with its name.

    `library` is the one whose machine code it runs on a GPU; without it, it is a function of NVIDIA's runtime.
    """

    def function(*arguments: Any, **named: Any) -> Any:
        error = call.refuse(name)
        if not library:
            raise error
        raise RuntimeError(
            f"{name} runs machine code of {library}, which cannot be emulated; copy the arrays to the host with "
            "cupy.asnumpy, and use NumPy or SciPy"
        ) from error

    return function
