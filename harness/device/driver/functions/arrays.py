"""CUDA arrays: creation, and what is known of them."""

from __future__ import annotations

import ctypes

from harness.device.driver import status
from harness.device.driver.attributes import MEMORY_BYTES
from harness.device.driver.function_table import driver_function, write_pointer
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError
from harness.device.textures import CudaArray, TexelFormat
from harness.emulator.abi import texture_layout as tex

FORMATS = {
    0x01: (tex.UNSIGNED, 1), 0x02: (tex.UNSIGNED, 2), 0x03: (tex.UNSIGNED, 4), 0x08: (tex.SIGNED, 1),
    0x09: (tex.SIGNED, 2), 0x0A: (tex.SIGNED, 4), 0x10: (tex.FLOAT, 2), 0x20: (tex.FLOAT, 4),
}  # fmt: skip
"""Kind and bytes of a channel, by `CUarray_format`."""
LAYERED, SURFACE, CUBE, GATHER = 1, 2, 4, 8
_FLAGS = LAYERED | SURFACE | CUBE | GATHER


class _Description(ctypes.Structure):
    """`CUDA_ARRAY_DESCRIPTOR`."""

    _fields_ = [
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int), ("channels", ctypes.c_uint),
    ]  # fmt: skip


class ArrayDescription(ctypes.Structure):
    """`CUDA_ARRAY3D_DESCRIPTOR`."""

    _fields_ = [
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t), ("format", ctypes.c_int),
        ("channels", ctypes.c_uint), ("flags", ctypes.c_uint),
    ]  # fmt: skip


def texel_format(number: int, channels: int) -> TexelFormat:
    """The format with a `CUarray_format`. Raises `DriverError` if there is none, or none with so many channels."""
    found = TexelFormat(*FORMATS.get(number, (-1, 0)), channels)
    if not found.is_known:
        raise DriverError(status.INVALID_VALUE, f"there is no format of {channels} channels of CUarray_format {number}")
    return found


def format_number(format: TexelFormat) -> int:
    """The `CUarray_format` of a format."""
    return next(number for number, each in FORMATS.items() if each == (format.kind, format.channel_bytes))


def _create(driver: Driver, result: int, given: ArrayDescription) -> int:
    driver.context()
    format = texel_format(given.format, given.channels)
    if given.flags & ~_FLAGS:
        raise DriverError(status.NOT_SUPPORTED, f"arrays with flags {given.flags:#x} are not supported")
    is_flat = not given.height and given.depth and not given.flags & LAYERED
    if not given.width or is_flat or (given.flags & CUBE and (given.depth % tex.CUBE_FACES or not given.depth)):
        extents = (given.width, given.height, given.depth)
        raise DriverError(status.INVALID_VALUE, f"there is no array with extents {extents} and flags {given.flags:#x}")
    size = CudaArray.row_bytes_for(format, given.width) * max(1, given.height) * max(1, given.depth)
    if driver.device.memory.used_bytes + size > MEMORY_BYTES:
        return status.OUT_OF_MEMORY
    allocation = driver.device.memory.allocate(size, driver.new_name("array"))
    made = CudaArray(format, given.width, given.height, given.depth, given.flags, allocation)
    write_pointer(result, driver.new_handle(made))
    return status.SUCCESS


@driver_function("cuArrayCreate_v2", "pp")
def create(driver: Driver, result: int, description: int) -> int:
    """Create an array of one or two dimensions."""
    given = _Description.from_address(description)
    return _create(driver, result, ArrayDescription(given.width, given.height, 0, given.format, given.channels, 0))


@driver_function("cuArray3DCreate_v2", "pp")
def create_3d(driver: Driver, result: int, description: int) -> int:
    """Create an array of up to three dimensions, layers or faces."""
    return _create(driver, result, ArrayDescription.from_address(description))


@driver_function("cuArrayDestroy", "p")
def destroy(driver: Driver, array: int) -> None:
    """Destroy an array."""
    driver.context()
    driver.remove_handle(array, CudaArray).allocation.free()


@driver_function("cuArrayGetDescriptor_v2", "pp")
def describe(driver: Driver, description: int, array: int) -> None:
    """Extents and format of an array."""
    found, given = driver.of_handle(array, CudaArray), _Description.from_address(description)
    given.width, given.height = found.width, found.height
    given.format, given.channels = format_number(found.format), found.format.channels


@driver_function("cuArray3DGetDescriptor_v2", "pp")
def describe_3d(driver: Driver, description: int, array: int) -> None:
    """Extents, format and flags of an array."""
    found, given = driver.of_handle(array, CudaArray), ArrayDescription.from_address(description)
    given.width, given.height, given.depth = found.width, found.height, found.depth
    given.format, given.channels, given.flags = format_number(found.format), found.format.channels, found.flags
