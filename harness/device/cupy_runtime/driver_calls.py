"""Calls of the emulated driver's functions by Python code that stands for NVIDIA's runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from harness.device.driver import status
from harness.device.driver.function_table import FUNCTIONS
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError

RESULT = object()
"""Stands for the pointer through which a function returns its result."""


class DriverCalls:
    """Calls driver functions by symbol in the primary context, which becomes current when it is needed.

    A call that fails raises `error(status)`; by default this is `DriverError`.
    """

    error: Callable[[int], Exception] = DriverError

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def __call__(self, symbol: str, *arguments: Any) -> int:
        """Call a function. If one of its arguments is `RESULT`, return the result as an unsigned number."""
        if not self.driver.initialized:
            self._run("cuInit", 0)
        if not self.driver.contexts:
            self._run("cuDevicePrimaryCtxRetain", 0, 0)
            self._run("cuCtxSetCurrent", self.driver.primary.handle)
        box = ctypes.c_uint64(0)
        self._run(symbol, *(ctypes.addressof(box) if each is RESULT else each for each in arguments))
        return box.value

    def _run(self, symbol: str, *arguments: Any) -> None:
        code = self.driver.call(FUNCTIONS[symbol], *arguments)
        if code != status.SUCCESS:
            raise self.error(code)

    def text(self, symbol: str, *arguments: Any, capacity: int = 256) -> bytes:
        """Call a function that stores a C string: a buffer and its capacity, and then its other arguments."""
        buffer = ctypes.create_string_buffer(capacity)
        self(symbol, ctypes.addressof(buffer), capacity, *arguments)
        return buffer.value

    def refuse(self, name: str) -> Exception:
        """Print that a function is not supported. Returns the error to raise."""
        return self.error(self.driver.refuse(name))
