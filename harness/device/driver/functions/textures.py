"""Texture and surface objects. The handle of one is the address of its record, which kernels read."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, write_pointer
from harness.device.driver.functions.arrays import texel_format
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError
from harness.device.memory import Allocation
from harness.device.textures import CudaArray, Sampling, TexelRange, record
from harness.emulator.abi import texture_layout as tex

_ARRAY, _MIPMAPPED, _LINEAR, _PITCHED = range(4)
"""Kinds of resources."""
READ_AS_INTEGER, NORMALIZED, SRGB, _NO_TRILINEAR, _SEAMLESS = 1, 2, 16, 32, 64
_ALIGNMENT, _PITCH_ALIGNMENT = 512, 32
"""Of addresses and of rows in memory, as the device's attributes have them."""


class _Array(ctypes.Structure):
    _fields_ = [("array", ctypes.c_uint64)]


class _Linear(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_uint64), ("format", ctypes.c_int), ("channels", ctypes.c_uint), ("size", ctypes.c_size_t),
    ]  # fmt: skip


class _Pitched(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_uint64), ("format", ctypes.c_int), ("channels", ctypes.c_uint),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("pitch", ctypes.c_size_t),
    ]  # fmt: skip


class _AnyResource(ctypes.Union):
    _fields_ = [("array", _Array), ("linear", _Linear), ("pitched", _Pitched), ("reserved", ctypes.c_int * 32)]


class Resource(ctypes.Structure):
    """`CUDA_RESOURCE_DESC`."""

    _fields_ = [("kind", ctypes.c_int), ("of", _AnyResource), ("flags", ctypes.c_uint)]


class TextureDescription(ctypes.Structure):
    """`CUDA_TEXTURE_DESC`."""

    _fields_ = [
        ("modes", ctypes.c_int * 3), ("filter", ctypes.c_int), ("flags", ctypes.c_uint),
        ("anisotropy", ctypes.c_uint), ("mipmap", ctypes.c_float * 4), ("border", ctypes.c_float * 4),
        ("reserved", ctypes.c_int * 12),
    ]  # fmt: skip


@dataclass(frozen=True)
class _Object:
    """A texture or surface object."""

    magic: int
    allocation: Allocation
    resource: Resource
    description: TextureDescription | None


def _texels(driver: Driver, resource: Resource) -> TexelRange:
    """The texels of a resource. Raises `DriverError` if it has none."""
    if resource.kind == _ARRAY:
        return driver.of_handle(resource.of.array.array, CudaArray).texels
    if resource.kind == _MIPMAPPED:
        raise DriverError(status.NOT_SUPPORTED, "mipmapped arrays are not supported")
    if resource.kind not in (_LINEAR, _PITCHED):
        raise DriverError(status.INVALID_VALUE)
    is_linear = resource.kind == _LINEAR
    given = resource.of.linear if is_linear else resource.of.pitched
    format = texel_format(given.format, given.channels)
    width = given.size // format.texel_bytes if is_linear else given.width
    height, pitch = (1, given.size) if is_linear else (given.height, given.pitch)
    if given.address % _ALIGNMENT or (not is_linear and pitch % _PITCH_ALIGNMENT):
        raise DriverError(
            status.INVALID_VALUE,
            f"a texture at address {given.address:#x} with {pitch} bytes from row to row; the address has to be a "
            f"multiple of {_ALIGNMENT}, and the bytes of {_PITCH_ALIGNMENT}",
        )
    driver.device.memory.view(given.address, pitch * (height - 1) + width * format.texel_bytes)
    return TexelRange(given.address, format, (width, height, 1), pitch, pitch * height)


def _sampling(resource: Resource, texels: TexelRange, given: TextureDescription) -> Sampling:
    """How a texture is read. Raises `DriverError` for what no GPU does, or what is not supported."""
    format, flags = texels.format, given.flags
    if flags & SRGB:
        raise DriverError(status.NOT_SUPPORTED, "textures with sRGB colors are not supported")
    if flags & ~(READ_AS_INTEGER | NORMALIZED | _NO_TRILINEAR | _SEAMLESS):
        raise DriverError(status.INVALID_VALUE)
    narrow = format.kind != tex.FLOAT and format.channel_bytes < 4
    floats = narrow and not flags & READ_AS_INTEGER
    if given.filter == 1 and format.kind != tex.FLOAT and not floats:
        raise DriverError(status.INVALID_VALUE, "a texture of integers that are not read as floats cannot be filtered")
    if resource.kind == _LINEAR:  # neither filtered nor normalized; texels outside are 0
        return Sampling((tex.BORDER_COLOR,) * 3, reads_floats=floats)
    modes = (given.modes[0], given.modes[1], given.modes[2])
    if not all(mode in (tex.WRAP, tex.CLAMP, tex.MIRROR, tex.BORDER_COLOR) for mode in modes) or given.filter > 1:
        raise DriverError(status.INVALID_VALUE)
    return Sampling(modes, given.filter == 1, bool(flags & NORMALIZED), floats, tuple(given.border))


def _create(
    driver: Driver, result: int, magic: int, resource: Resource, description: TextureDescription | None
) -> None:
    texels = _texels(driver, resource)
    sampling = Sampling() if description is None else _sampling(resource, texels, description)
    allocation = driver.device.memory.allocate(tex.OBJECT_BYTES, driver.new_name("object"))
    driver.device.write(allocation.address, record(magic, texels, sampling))
    driver.objects[allocation.address] = _Object(magic, allocation, resource, description)
    write_pointer(result, allocation.address)


def _find(driver: Driver, handle: int, magic: int) -> _Object:
    found = driver.objects.get(handle)
    if not isinstance(found, _Object) or found.magic != magic:
        raise DriverError(status.INVALID_VALUE, f"there is no such object with the handle {handle:#x}")
    return found


def _destroy(driver: Driver, handle: int, magic: int) -> None:
    driver.context()
    _find(driver, handle, magic).allocation.free()
    del driver.objects[handle]


def _copy(kind: type[ctypes.Structure], address: int) -> ctypes.Structure:
    return kind.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(kind)))


@driver_function("cuTexObjectCreate", "pppp")
def create_texture(driver: Driver, result: int, resource: int, description: int, view: int) -> None:
    """Create a texture object of an array, or of memory."""
    driver.context()
    if view:
        raise DriverError(status.NOT_SUPPORTED, "views of resources are not supported")
    given, read = _copy(Resource, resource), _copy(TextureDescription, description)
    assert isinstance(given, Resource) and isinstance(read, TextureDescription)
    _create(driver, result, tex.TEXTURE_MAGIC, given, read)


@driver_function("cuTexObjectDestroy", "p")
def destroy_texture(driver: Driver, handle: int) -> None:
    """Destroy a texture object."""
    _destroy(driver, handle, tex.TEXTURE_MAGIC)


@driver_function("cuTexObjectGetResourceDesc", "pp")
def texture_resource(driver: Driver, result: int, handle: int) -> None:
    """The resource of a texture object."""
    found = _find(driver, handle, tex.TEXTURE_MAGIC)
    ctypes.memmove(result, ctypes.addressof(found.resource), ctypes.sizeof(Resource))


@driver_function("cuTexObjectGetTextureDesc", "pp")
def texture_description(driver: Driver, result: int, handle: int) -> None:
    """How a texture object is read."""
    found = _find(driver, handle, tex.TEXTURE_MAGIC)
    assert found.description is not None
    ctypes.memmove(result, ctypes.addressof(found.description), ctypes.sizeof(TextureDescription))


@driver_function("cuSurfObjectCreate", "pp")
def create_surface(driver: Driver, result: int, resource: int) -> None:
    """Create a surface object of an array."""
    driver.context()
    given = _copy(Resource, resource)
    assert isinstance(given, Resource)
    if given.kind != _ARRAY:
        raise DriverError(status.INVALID_VALUE, "a surface object needs an array")
    _create(driver, result, tex.SURFACE_MAGIC, given, None)


@driver_function("cuSurfObjectDestroy", "p")
def destroy_surface(driver: Driver, handle: int) -> None:
    """Destroy a surface object."""
    _destroy(driver, handle, tex.SURFACE_MAGIC)


@driver_function("cuSurfObjectGetResourceDesc", "pp")
def surface_resource(driver: Driver, result: int, handle: int) -> None:
    """The resource of a surface object."""
    found = _find(driver, handle, tex.SURFACE_MAGIC)
    ctypes.memmove(result, ctypes.addressof(found.resource), ctypes.sizeof(Resource))
