"""Plays the CUDA driver where modules are loaded and kernels launched: it notes what it is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class FakeDriver:
    """What of CuPy a native launch of PTX needs; it notes what it is asked for."""

    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 8, 1

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error = error
        self.driver = self
        device = SimpleNamespace(attributes={"MaxSharedMemoryPerBlockOptin": 232448})
        self.cuda = SimpleNamespace(
            driver=self, function=SimpleNamespace(Module=lambda: self), Device=lambda: device
        )  # fmt: skip

    def load(self, image: bytes) -> None:
        if self.error:
            raise self.error
        self.calls.append(("load", image))

    def get_function(self, name: str) -> Any:
        function = type("Function", (), {"ptr": 7, "__call__": lambda _, *a, **k: self.calls.append((name, *a, k))})
        return function()

    def funcGetAttribute(self, attribute: int, function: int) -> int:
        return {8: 48 * 1024, 1: 100}[attribute]

    def funcSetAttribute(self, function: int, attribute: int, value: int) -> None:
        if value > 232448:
            raise ValueError("invalid value")
        self.calls.append(("set", attribute, value))
