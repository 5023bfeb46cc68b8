"""The functions of the CUDA runtime for arrays, textures and surfaces, with CuPy's names and arguments.

They translate the runtime's structures to the driver's.
"""

from __future__ import annotations

import ctypes

from harness.device.cupy_runtime.driver_calls import RESULT, DriverCalls
from harness.device.driver import status
from harness.device.driver.functions.arrays import FORMATS, ArrayDescription
from harness.device.driver.functions.strided_copies import Box, BoxEnd
from harness.device.driver.functions.textures import NORMALIZED, READ_AS_INTEGER, SRGB, Resource, TextureDescription
from harness.device.textures import CudaArray

_IN_ARRAY, _IN_MEMORY = 3, 4
_ARRAY, _MIPMAPPED, _LINEAR, _PITCHED = range(4)


class _Channels(ctypes.Structure):
    """`cudaChannelFormatDesc`."""

    _fields_ = [("bits", ctypes.c_int * 4), ("kind", ctypes.c_int)]


class _Resource(ctypes.Structure):
    """The beginning of `cudaResourceDesc`; arrays only have the first field of memory."""

    _fields_ = [
        ("kind", ctypes.c_int), ("address", ctypes.c_uint64), ("channels", _Channels),
        ("size_or_width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("pitch", ctypes.c_size_t),
    ]  # fmt: skip


class _Texture(ctypes.Structure):
    """The beginning of `cudaTextureDesc`."""

    _fields_ = [
        ("modes", ctypes.c_int * 3), ("filter", ctypes.c_int), ("reads_floats", ctypes.c_int), ("srgb", ctypes.c_int),
        ("border", ctypes.c_float * 4), ("is_normalized", ctypes.c_int), ("anisotropy", ctypes.c_uint),
    ]  # fmt: skip


class _CopyEnd(ctypes.Structure):
    """One end of a `cudaMemcpy3DParms`: an array or memory, and a position in it."""

    _fields_ = [
        ("array", ctypes.c_uint64), ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t),
        ("address", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]  # fmt: skip


class _Copy(ctypes.Structure):
    _fields_ = [
        ("source", _CopyEnd), ("target", _CopyEnd), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
    ]  # fmt: skip


def in_memory(address: int, pitch: int) -> BoxEnd:
    """Rows of memory as an end of a copy."""
    return BoxEnd(kind=_IN_MEMORY, device=int(address), pitch=int(pitch))


def in_array(array: int, x_bytes: int, y: int) -> BoxEnd:
    """Rows of an array as an end of a copy."""
    return BoxEnd(kind=_IN_ARRAY, array=int(array), x_bytes=int(x_bytes), y=int(y))


def box_of_rows(target: BoxEnd, source: BoxEnd, width: int, height: int) -> Box:
    """A copy of `height` rows of `width` bytes."""
    return Box(source, target, int(width), int(height), 1)


class TextureFunctions:
    """Public methods have CuPy's names. They raise the runtime's error for wrong arguments."""

    def __init__(self, call: DriverCalls) -> None:
        self._call = call

    def _format(self, given: _Channels) -> tuple[int, int]:
        """`CUarray_format` and number of channels."""
        bits = [each for each in given.bits if each]
        number = {(kind, 8 * size): number for number, (kind, size) in FORMATS.items()}.get((given.kind, given.bits[0]))
        if number is None or bits != [given.bits[0]] * len(bits) or any(given.bits[len(bits) :]):
            raise self._call.error(status.INVALID_VALUE)
        return number, len(bits)

    def malloc3DArray(self, descPtr: int, width: int, height: int, depth: int, flags: int = 0) -> int:
        """Allocate an array."""
        format = self._format(_Channels.from_address(descPtr))
        description = ArrayDescription(width, height, depth, *format, flags)
        return self._call("cuArray3DCreate_v2", RESULT, ctypes.addressof(description))

    def mallocArray(self, descPtr: int, width: int, height: int, flags: int = 0) -> int:
        """Allocate an array of one or two dimensions."""
        return self.malloc3DArray(descPtr, width, height, 0, flags)

    def _resource(self, address: int) -> Resource:
        given, made = _Resource.from_address(address), Resource()
        made.kind = given.kind
        if given.kind == _ARRAY:
            made.of.array.array = given.address
        elif given.kind in (_LINEAR, _PITCHED):
            of = made.of.linear if given.kind == _LINEAR else made.of.pitched
            of.address, (of.format, of.channels) = given.address, self._format(given.channels)
            if given.kind == _LINEAR:
                of.size = given.size_or_width
            else:
                of.width, of.height, of.pitch = given.size_or_width, given.height, given.pitch
        return made

    def createTextureObject(self, ResDesc: int, TexDesc: int) -> int:
        """Create a texture object."""
        resource, given, made = self._resource(ResDesc), _Texture.from_address(TexDesc), TextureDescription()
        made.modes, made.filter, made.border = given.modes, given.filter, given.border
        made.flags = (
            READ_AS_INTEGER * (not given.reads_floats)
            | NORMALIZED * bool(given.is_normalized)
            | SRGB * bool(given.srgb)
        )
        made.anisotropy = given.anisotropy
        return self._call("cuTexObjectCreate", RESULT, ctypes.addressof(resource), ctypes.addressof(made), 0)

    def createSurfaceObject(self, ResDesc: int) -> int:
        """Create a surface object."""
        resource = self._resource(ResDesc)
        return self._call("cuSurfObjectCreate", RESULT, ctypes.addressof(resource))

    # Copies

    def _end(self, given: _CopyEnd) -> tuple[BoxEnd, int]:
        """An end of a copy, and the bytes of an element of the array; 0 for memory."""
        if not given.array:
            made = in_memory(given.address, given.pitch)
            made.x_bytes, made.y, made.z, made.height = given.x, given.y, given.z, given.height
            return made, 0
        self._call("cuCtxSynchronize")
        size = self._call.driver.of_handle(given.array, CudaArray).format.texel_bytes
        made = in_array(given.array, given.x * size, given.y)
        made.z = given.z
        return made, size

    def _box(self, address: int) -> Box:
        given = _Copy.from_address(address)
        (source, size), (target, target_size) = self._end(given.source), self._end(given.target)
        return Box(source, target, given.width * (size or target_size or 1), given.height, given.depth)

    def _copy(self, box: Box, stream: int | None) -> None:
        """Copy at once, or in the order of a stream."""
        if stream is None:
            self._call("cuMemcpy3D_v2", ctypes.addressof(box))
        else:
            self._call("cuMemcpy3DAsync_v2", ctypes.addressof(box), int(stream))

    def memcpy3D(self, Memcpy3DParmsPtr: int, stream: int | None = None) -> None:
        """Copy a box. Its width is in elements if an array takes part, else in bytes."""
        self._copy(self._box(Memcpy3DParmsPtr), stream)

    def memcpy2D(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int,
        stream: int | None = None,
    ) -> None:  # fmt: skip
        """Copy rows that are `dpitch` and `spitch` bytes apart."""
        self._copy(box_of_rows(in_memory(dst, dpitch), in_memory(src, spitch), width, height), stream)

    def memcpy2DFromArray(
        self, dst: int, dpitch: int, src: int, wOffset: int, hOffset: int, width: int, height: int, kind: int,
        stream: int | None = None,
    ) -> None:  # fmt: skip
        """Copy rows from an array."""
        self._copy(box_of_rows(in_memory(dst, dpitch), in_array(src, wOffset, hOffset), width, height), stream)

    def memcpy2DToArray(
        self, dst: int, wOffset: int, hOffset: int, src: int, spitch: int, width: int, height: int, kind: int,
        stream: int | None = None,
    ) -> None:  # fmt: skip
        """Copy rows to an array."""
        self._copy(box_of_rows(in_array(dst, wOffset, hOffset), in_memory(src, spitch), width, height), stream)

    # In the order of a stream, which is their last argument.
    memcpy3DAsync, memcpy2DAsync = memcpy3D, memcpy2D
    memcpy2DFromArrayAsync, memcpy2DToArrayAsync = memcpy2DFromArray, memcpy2DToArray
