"""Copies of rows and of boxes with pitches."""

from __future__ import annotations

import ctypes

from harness.device.driver import status
from harness.device.driver.function_table import driver_function
from harness.device.driver.functions.copies import bytes_at
from harness.device.driver.functions.streams import enqueue
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError

_ARRAY = 3
"""The memory type of CUDA arrays, which are not supported."""


class _RowsEnd(ctypes.Structure):
    """One end of a `CUDA_MEMCPY2D`."""

    _fields_ = [
        ("x_bytes", ctypes.c_size_t), ("y", ctypes.c_size_t), ("kind", ctypes.c_int), ("host", ctypes.c_uint64),
        ("device", ctypes.c_uint64), ("array", ctypes.c_uint64), ("pitch", ctypes.c_size_t),
    ]  # fmt: skip


class _Rows(ctypes.Structure):
    _fields_ = [
        ("source", _RowsEnd), ("target", _RowsEnd), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class _BoxEnd(ctypes.Structure):
    """One end of a `CUDA_MEMCPY3D`."""

    _fields_ = [
        ("x_bytes", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t), ("level", ctypes.c_size_t),
        ("kind", ctypes.c_int), ("host", ctypes.c_uint64), ("device", ctypes.c_uint64), ("array", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class _Box(ctypes.Structure):
    _fields_ = [
        ("source", _BoxEnd), ("target", _BoxEnd), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    ]  # fmt: skip


def _base(end: _RowsEnd | _BoxEnd) -> int:
    if end.kind == _ARRAY:
        raise DriverError(status.NOT_SUPPORTED, "copies to and from CUDA arrays are not supported")
    return int(end.host if end.kind == 1 else end.device)


def _copy_row(driver: Driver, target: int, source: int, width: int) -> None:
    bytes_at(driver, target, width, written=True)[:] = bytes_at(driver, source, width, written=False)


def _copy_rows(driver: Driver, copy: _Rows) -> None:
    driver.context()
    starts = [_base(end) + end.pitch * end.y + end.x_bytes for end in (copy.target, copy.source)]
    for row in range(copy.height if copy.width else 0):
        target, source = (start + end.pitch * row for start, end in zip(starts, (copy.target, copy.source)))
        _copy_row(driver, target, source, copy.width)


def _copy_box(driver: Driver, copy: _Box) -> None:
    driver.context()
    ends = (copy.target, copy.source)
    for plane in range(copy.depth if copy.width else 0):
        for row in range(copy.height):
            target, source = (
                _base(end) + end.pitch * (end.height * (end.z + plane) + end.y + row) + end.x_bytes for end in ends
            )
            _copy_row(driver, target, source, copy.width)


@driver_function("cuMemcpy2D_v2", "p")
@driver_function("cuMemcpy2DUnaligned_v2", "p")
def copy_rows(driver: Driver, address: int) -> None:
    """Copy rows."""
    _copy_rows(driver, _Rows.from_address(address))


@driver_function("cuMemcpy2DAsync_v2", "pp")
def copy_rows_async(driver: Driver, address: int, stream: int) -> None:
    """Copy rows in the order of a stream."""
    given = _Rows.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(_Rows)))
    enqueue(driver, stream, lambda: _copy_rows(driver, given))


@driver_function("cuMemcpy3D_v2", "p")
def copy_box(driver: Driver, address: int) -> None:
    """Copy a box."""
    _copy_box(driver, _Box.from_address(address))


@driver_function("cuMemcpy3DAsync_v2", "pp")
def copy_box_async(driver: Driver, address: int, stream: int) -> None:
    """Copy a box in the order of a stream."""
    given = _Box.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(_Box)))
    enqueue(driver, stream, lambda: _copy_box(driver, given))
