"""Calls of the driver while a Python exception is being raised.

C++ objects of `cuda.core` free in their destructors what they hold, and destructors also run while an exception passes
through a function. Python code fails if an exception is set. The functions that this module generates therefore set
it aside, call the driver's function, and restore it.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping
from typing import Any

from harness.emulator.native.llvm_compiler import compile_ir
from harness.emulator.native.object_loading import native_addresses
from harness.emulator.native.tier import Tier

_RELEASES = re.compile(r"Destroy|Free|Unload|Release|(Push|Pop|Set)Current")
_TYPES = {"p": "i64", "i": "i32", "u": "i32"}


def is_called_by_destructors(symbol: str) -> bool:
    """Whether a function of the driver releases something, or makes a context current in order to release something."""
    return _RELEASES.search(symbol) is not None


def preserving_exceptions(callbacks: Mapping[str, Any], parameters: Mapping[str, str]) -> dict[str, int]:
    """Addresses of functions that call `callbacks`, and leave a pending exception as it was.

    Both arguments have a value per symbol: an instance of a type that `ctypes.CFUNCTYPE` returned, and the letters of
    `DriverFunction.parameters`. Callers need not hold Python's global lock.
    """
    names = {symbol: f"preserving_exceptions_{symbol}" for symbol in callbacks}
    ir = "".join(_function(names[symbol], callbacks[symbol], parameters[symbol]) for symbol in callbacks)
    addresses = native_addresses(names.values(), compile_ir(ir, Tier.BASELINE))
    return {symbol: addresses[name] for symbol, name in names.items()}


def _function(name: str, callback: Any, parameters: str) -> str:
    declared = ", ".join(f"{_TYPES[letter]} %{number}" for number, letter in enumerate(parameters))
    return f"""
define i32 @{name}({declared}) {{
  %type = alloca ptr
  %value = alloca ptr
  %traceback = alloca ptr
  %lock = {_call("i32", ctypes.pythonapi.PyGILState_Ensure)}
  {_call("void", ctypes.pythonapi.PyErr_Fetch, ("ptr %type", "ptr %value", "ptr %traceback"))}
  %status = {_call("i32", callback, declared.split(", "))}
  %set.type = load ptr, ptr %type
  %set.value = load ptr, ptr %value
  %set.traceback = load ptr, ptr %traceback
  {_call("void", ctypes.pythonapi.PyErr_Restore, ("ptr %set.type", "ptr %set.value", "ptr %set.traceback"))}
  {_call("void", ctypes.pythonapi.PyGILState_Release, ("i32 %lock",))}
  ret i32 %status
}}
"""


def _call(returned: str, function: Any, arguments: Iterable[str] = ()) -> str:
    address = ctypes.cast(function, ctypes.c_void_p).value
    return f"call {returned} inttoptr (i64 {address} to ptr)({', '.join(arguments)})"
