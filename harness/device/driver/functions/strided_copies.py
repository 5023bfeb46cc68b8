"""Copies of rows and of boxes: of memory with pitches, and of CUDA arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

from harness.device.driver import status
from harness.device.driver.function_table import driver_function
from harness.device.driver.functions.copies import bytes_at
from harness.device.driver.functions.streams import also_in_stream, enqueue
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError
from harness.device.textures import CudaArray

_HOST, _DEVICE, _ARRAY, _UNIFIED = 1, 2, 3, 4
"""Types of memory."""


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


class BoxEnd(ctypes.Structure):
    """One end of a `CUDA_MEMCPY3D`."""

    _fields_ = [
        ("x_bytes", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t), ("level", ctypes.c_size_t),
        ("kind", ctypes.c_int), ("host", ctypes.c_uint64), ("device", ctypes.c_uint64), ("array", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class Box(ctypes.Structure):
    """`CUDA_MEMCPY3D`."""

    _fields_ = [
        ("source", BoxEnd), ("target", BoxEnd), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    ]  # fmt: skip


class _Side(NamedTuple):
    """Where a copy begins at one end."""

    address: int
    row_bytes: int
    slice_bytes: int


def _side(driver: Driver, end: BoxEnd, width: int, height: int, depth: int) -> _Side:
    """Raises `DriverError` if an array does not have the box."""
    if end.kind == _ARRAY:
        array = driver.of_handle(end.array, CudaArray)
        texels = array.texels
        limits = (texels.extents[0] * array.format.texel_bytes, *texels.extents[1:])
        last = (end.x_bytes + width, end.y + height, end.z + depth)
        if any(each > limit for each, limit in zip(last, limits)):
            raise DriverError(
                status.INVALID_VALUE, f"a copy up to {last} of {array.allocation.name}, whose extents are {limits}"
            )
        address, row, slice_bytes = texels.address, texels.row_bytes, texels.slice_bytes
    else:
        address = int(end.host if end.kind == _HOST else end.device)
        row, slice_bytes = end.pitch, end.pitch * end.height
    return _Side(address + end.z * slice_bytes + end.y * row + end.x_bytes, row, slice_bytes)


def _copy_box(driver: Driver, copy: Box) -> None:
    driver.context()
    width = copy.width
    if not width:
        return
    target, source = (_side(driver, end, width, copy.height, copy.depth) for end in (copy.target, copy.source))
    for plane in range(copy.depth):
        for row in range(copy.height):
            there, here = (side.address + plane * side.slice_bytes + row * side.row_bytes for side in (target, source))
            bytes_at(driver, there, width, written=True)[:] = bytes_at(driver, here, width, written=False)


def _box(address: int) -> Box:
    return Box.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(Box)))


def prepared_copy(driver: Driver, address: int) -> Callable[[], None]:
    """A function that copies the box that a `CUDA_MEMCPY3D` describes now."""
    box = _box(address)
    return lambda: _copy_box(driver, box)


def _box_of_rows(address: int) -> Box:
    """A `CUDA_MEMCPY2D` as a box of one slice."""
    rows = _Rows.from_address(address)
    ends = (
        BoxEnd(end.x_bytes, end.y, 0, 0, end.kind, end.host, end.device, end.array, 0, end.pitch, 0)
        for end in (rows.source, rows.target)
    )
    return Box(*ends, rows.width, rows.height, 1)


@driver_function("cuMemcpy2D_v2", "p")
@driver_function("cuMemcpy2DUnaligned_v2", "p")
def copy_rows(driver: Driver, address: int) -> None:
    """Copy rows."""
    _copy_box(driver, _box_of_rows(address))


@driver_function("cuMemcpy2DAsync_v2", "pp")
def copy_rows_async(driver: Driver, address: int, stream: int) -> None:
    """Copy rows in the order of a stream."""
    given = _box_of_rows(address)
    enqueue(driver, stream, lambda: _copy_box(driver, given))


@driver_function("cuMemcpy3D_v2", "p")
def copy_box(driver: Driver, address: int) -> None:
    """Copy a box."""
    _copy_box(driver, _box(address))


@driver_function("cuMemcpy3DAsync_v2", "pp")
def copy_box_async(driver: Driver, address: int, stream: int) -> None:
    """Copy a box in the order of a stream."""
    enqueue(driver, stream, prepared_copy(driver, address))


def _part_of_array(array: int, offset: int) -> BoxEnd:
    return BoxEnd(x_bytes=offset, kind=_ARRAY, array=array)


def _copy_line(driver: Driver, target: BoxEnd, source: BoxEnd, size_bytes: int) -> None:
    _copy_box(driver, Box(source, target, size_bytes, 1, 1))


@driver_function("cuMemcpyHtoA_v2", "pppp")
@driver_function("cuMemcpyDtoA_v2", "pppp")
@also_in_stream("cuMemcpyHtoAAsync_v2", "ppppp")
def copy_to_array(driver: Driver, array: int, offset: int, source: int, size_bytes: int) -> None:
    """Copy to the first row of an array."""
    _copy_line(driver, _part_of_array(array, offset), BoxEnd(kind=_UNIFIED, device=source), size_bytes)


@driver_function("cuMemcpyAtoH_v2", "pppp")
@driver_function("cuMemcpyAtoD_v2", "pppp")
@also_in_stream("cuMemcpyAtoHAsync_v2", "ppppp")
def copy_from_array(driver: Driver, target: int, array: int, offset: int, size_bytes: int) -> None:
    """Copy from the first row of an array."""
    _copy_line(driver, BoxEnd(kind=_UNIFIED, device=target), _part_of_array(array, offset), size_bytes)


@driver_function("cuMemcpyAtoA_v2", "ppppp")
def copy_between_arrays(
    driver: Driver, target: int, target_offset: int, source: int, source_offset: int, size_bytes: int
) -> None:
    """Copy from the first row of an array to that of another."""
    _copy_line(driver, _part_of_array(target, target_offset), _part_of_array(source, source_offset), size_bytes)
