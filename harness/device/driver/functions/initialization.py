"""Initialization, versions, error texts, and the addresses of functions."""

from __future__ import annotations

import ctypes

from harness.device.driver import status
from harness.device.driver.attributes import DRIVER_VERSION
from harness.device.driver.function_table import driver_function, read_text, write_int, write_pointer
from harness.device.driver.process import Driver, explain

_RUNTIME_TABLE = bytes.fromhex("6bd5fb6c5bf4e74a8987d93912fd9df9")
"""Identifier of the table without which the CUDA runtime does not start."""
_FOUND, _SYMBOL_NOT_FOUND = 0, 1


@driver_function("cuInit", "u")
def initialize(driver: Driver, flags: int) -> int:
    """Initialize the driver."""
    if flags:
        return status.INVALID_VALUE
    driver.initialized = True
    return status.SUCCESS


@driver_function("cuDriverGetVersion", "p")
def driver_version(driver: Driver, version: int) -> None:
    """The version of CUDA that the driver supports."""
    write_int(version, DRIVER_VERSION)


@driver_function("cuGetProcAddress", "ppip", since=11030)
@driver_function("cuGetProcAddress_v2", "ppipp", since=12000)
def proc_address(driver: Driver, symbol: int, function: int, version: int, flags: int, symbol_status: int = 0) -> int:
    """The address of a function for a version of CUDA, and whether there is one."""
    address = driver.address_of(read_text(symbol), version)
    write_pointer(function, address or 0)
    write_int(symbol_status, _SYMBOL_NOT_FOUND if address is None else _FOUND)
    return status.NOT_FOUND if address is None else status.SUCCESS


@driver_function("cuGetErrorName", "ip")
def error_name(driver: Driver, code: int, text: int) -> int:
    """The name of a status."""
    return _describe(driver, code, 0, text)


@driver_function("cuGetErrorString", "ip")
def error_string(driver: Driver, code: int, text: int) -> int:
    """The description of a status."""
    return _describe(driver, code, 1, text)


def _describe(driver: Driver, code: int, part: int, text: int) -> int:
    described = status.DESCRIPTIONS.get(code)
    if described is None:
        write_pointer(text, 0)
        return status.INVALID_VALUE
    kept = driver.texts.setdefault(2 * code + part, ctypes.create_string_buffer(described[part].encode()))
    write_pointer(text, ctypes.addressof(kept))
    return status.SUCCESS


@driver_function("cuGetExportTable", "pp")
def export_table(driver: Driver, table: int, identifier: int) -> int:
    """Tables of undocumented functions, of which there are none."""
    write_pointer(table, 0)
    if ctypes.string_at(identifier, len(_RUNTIME_TABLE)) == _RUNTIME_TABLE:
        explain(
            "the program uses a CUDA runtime (as PyTorch does), which needs undocumented functions of NVIDIA's driver "
            "(cuGetExportTable) and cannot run on the emulated one; CuPy can if it is imported after the emulation "
            "has started"
        )
    return status.NOT_FOUND


@driver_function("cuProfilerStart")
@driver_function("cuProfilerStop")
def control_profiler(driver: Driver) -> None:
    """Start or stop the profiler, which does nothing here."""
