"""Modules that stand for CuPy's interfaces to libraries of machine code."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from harness.device.cupy_runtime.driver_calls import DriverCalls
from harness.device.cupy_runtime.refusal import refused_function

STAND_INS = {
    "cupy.cuda.cufft": ("", "cuFFT"),
    "cupy.cuda.thrust": ("thrust", "Thrust"),
    "cupy_backends.cuda.libs.cublas": ("cublas", "cuBLAS"),
    "cupy_backends.cuda.libs.curand": ("curand", "cuRAND"),
    "cupy_backends.cuda.libs.cusolver": ("", "cuSOLVER"),
    "cupy_backends.cuda.libs.cusparse": ("", "cuSPARSE"),
}
"""CuPy's modules: the module in `libraries` that computes with NumPy, if there is one, and the library."""


def _current_stream() -> int:
    import cupy

    return int(cupy.cuda.get_current_stream().ptr)


class StandInModule(ModuleType):
    """A module that is filled when it is used first. Functions that it lacks raise an error when they are called."""

    def __init__(self, name: str, call: DriverCalls) -> None:
        super().__init__(name)
        self._call = call
        self._source, self._library = STAND_INS[name]

    def __getattr__(self, name: str) -> Any:
        if name == "__pyx_capi__":
            raise ImportError(f"{self.__name__} calls machine code of {self._library}, which cannot be emulated")
        if name.startswith("__"):
            raise AttributeError(name)
        if self._source:
            from harness.device.cupy_runtime.libraries.library_memory import LibraryMemory

            library = importlib.import_module(f"harness.device.cupy_runtime.libraries.{self._source}")
            vars(self).update(library.functions(LibraryMemory(self._call.driver, self._library, _current_stream)))
            self._source = ""
            return getattr(self, name)
        return refused_function(self._call, f"{self.__name__}.{name}", self._library)
