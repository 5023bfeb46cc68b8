"""The functions of the CUDA runtime for recording streams, graphs and memory pools, with CuPy's names and arguments."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.device.cupy_runtime.driver_calls import RESULT, DriverCalls

_RELAXED = 2
_INVALIDATED = 2
_INT_ATTRIBUTES = 3
"""The last attribute of a memory pool that has 4 bytes."""


class GraphFunctions:
    """The functions whose arguments differ from the driver's. Public methods have CuPy's names."""

    def __init__(self, call: DriverCalls) -> None:
        self._call = call

    def streamBeginCapture(self, stream: int, mode: int = _RELAXED) -> None:
        """Let a stream record a graph."""
        self._call("cuStreamBeginCapture_v2", int(stream), mode)

    def streamIsCapturing(self, stream: int) -> bool:
        """Whether a stream records a graph. Raises `RuntimeError` if a call was made that cannot be recorded."""
        state = self._call("cuStreamIsCapturing", int(stream), RESULT)
        if state == _INVALIDATED:
            raise RuntimeError("a call that cannot be recorded has invalidated the recording of the stream")
        return bool(state)

    def graphInstantiate(self, graph: int) -> int:
        """Make a graph executable."""
        return self._call("cuGraphInstantiateWithFlags", RESULT, int(graph), 0)

    def graphDebugDotPrint(self, graph: int, path: str, flags: int) -> None:
        """Write a graph in the language of Graphviz."""
        text = ctypes.create_string_buffer(path.encode())
        self._call("cuGraphDebugDotPrint", int(graph), ctypes.addressof(text), flags)

    def memPoolCreate(self, properties: Any) -> int:
        """Create a memory pool."""
        return self._call("cuMemPoolCreate", RESULT, 0)

    def memPoolGetAttribute(self, pool: int, number: int) -> int:
        """An attribute of a memory pool."""
        return self._call("cuMemPoolGetAttribute", int(pool), number, RESULT)

    def memPoolSetAttribute(self, pool: int, number: int, value: float) -> None:
        """Change an attribute of a memory pool."""
        box = (ctypes.c_int32 if number <= _INT_ATTRIBUTES else ctypes.c_uint64)(int(value))
        self._call("cuMemPoolSetAttribute", int(pool), number, ctypes.addressof(box))
