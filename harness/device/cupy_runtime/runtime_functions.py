"""The functions of the CUDA runtime that CuPy calls, on the emulated driver. Names and arguments are CuPy's."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from harness.device.cupy_runtime.driver_calls import RESULT, DriverCalls
from harness.device.cupy_runtime.texture_functions import TextureFunctions
from harness.device.driver import status
from harness.device.driver.functions.streams import enqueue
from harness.device.driver.graph import HOST

Implementation = Callable[..., Any]

_HOST_TO_DEVICE, _DEVICE_TO_HOST, _WITHIN_DEVICE = 1, 2, 3
_COPIES = {
    _HOST_TO_DEVICE: "cuMemcpyHtoD_v2", _DEVICE_TO_HOST: "cuMemcpyDtoH_v2", _WITHIN_DEVICE: "cuMemcpyDtoD_v2",
}  # fmt: skip
_ASYNC_COPIES = {
    _HOST_TO_DEVICE: "cuMemcpyHtoDAsync_v2", _DEVICE_TO_HOST: "cuMemcpyDtoHAsync_v2",
    _WITHIN_DEVICE: "cuMemcpyDtoDAsync_v2",
}  # fmt: skip
_UNREGISTERED, _MANAGED, _NO_DEVICE = 0, 3, -2
_KIND, _DEVICE_POINTER, _HOST_POINTER, _IS_MANAGED = 2, 3, 4, 8
_ATTACH_GLOBAL = 1
_RELAXED = 2
_INVALIDATED = 2
_INT_ATTRIBUTES = 3
"""The last attribute of a memory pool that has 4 bytes."""

FORWARDED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "driverGetVersion": ("cuDriverGetVersion", (RESULT,)),
    "deviceGetAttribute": ("cuDeviceGetAttribute", (RESULT, 0, 1)),
    "deviceCanAccessPeer": ("cuDeviceCanAccessPeer", (RESULT, 0, 1)),
    "deviceGetLimit": ("cuCtxGetLimit", (RESULT, 0)),
    "deviceSetLimit": ("cuCtxSetLimit", (0, 1)),
    "deviceSynchronize": ("cuCtxSynchronize", ()),
    "hostAlloc": ("cuMemHostAlloc", (RESULT, 0, 1)),
    "hostRegister": ("cuMemHostRegister_v2", (0, 1, 2)),
    "hostUnregister": ("cuMemHostUnregister", (0,)),
    "free": ("cuMemFree_v2", (0,)),
    "freeAsync": ("cuMemFreeAsync", (0, 1)),
    "freeArray": ("cuArrayDestroy", (0,)),
    "freeHost": ("cuMemFreeHost", (0,)),
    "memPrefetchAsync": ("cuMemPrefetchAsync", (0, 1, 2, 3)),
    "memAdvise": ("cuMemAdvise", (0, 1, 2, 3)),
    "streamCreateWithFlags": ("cuStreamCreate", (RESULT, 0)),
    "streamCreateWithPriority": ("cuStreamCreateWithPriority", (RESULT, 0, 1)),
    "streamGetFlags": ("cuStreamGetFlags", (0, RESULT)),
    "streamDestroy": ("cuStreamDestroy_v2", (0,)),
    "streamSynchronize": ("cuStreamSynchronize", (0,)),
    "eventCreateWithFlags": ("cuEventCreate", (RESULT, 0)),
    "eventDestroy": ("cuEventDestroy_v2", (0,)),
    "eventRecord": ("cuEventRecord", (0, 1)),
    "eventSynchronize": ("cuEventSynchronize", (0,)),
    "streamEndCapture": ("cuStreamEndCapture", (0, RESULT)),
    "graphDestroy": ("cuGraphDestroy", (0,)),
    "graphExecDestroy": ("cuGraphExecDestroy", (0,)),
    "graphLaunch": ("cuGraphLaunch", (0, 1)),
    "graphUpload": ("cuGraphUpload", (0, 1)),
    "mallocFromPoolAsync": ("cuMemAllocFromPoolAsync", (RESULT, 0, 1, 2)),
    "deviceGetDefaultMemPool": ("cuDeviceGetDefaultMemPool", (RESULT, 0)),
    "deviceGetMemPool": ("cuDeviceGetMemPool", (RESULT, 0)),
    "deviceSetMemPool": ("cuDeviceSetMemPool", (0, 1)),
    "memPoolDestroy": ("cuMemPoolDestroy", (0,)),
    "memPoolTrimTo": ("cuMemPoolTrimTo", (0, 1)),
    "destroyTextureObject": ("cuTexObjectDestroy", (0,)),
    "destroySurfaceObject": ("cuSurfObjectDestroy", (0,)),
    "profilerStart": ("cuProfilerStart", ()),
    "profilerStop": ("cuProfilerStop", ()),
}
"""Functions that pass their arguments on: the driver's function, and what it is given: arguments by position."""


def _forwarded(call: DriverCalls, symbol: str, order: Sequence[Any]) -> Implementation:
    has_result = any(each is RESULT for each in order)

    def function(*arguments: int) -> int | None:
        result = call(symbol, *(each if each is RESULT else int(arguments[each]) for each in order))
        return result if has_result else None

    return function


_ATTRIBUTES: dict[str, int | tuple[int, ...]] = {
    "sharedMemPerBlock": 8, "regsPerBlock": 12, "warpSize": 10, "maxThreadsPerBlock": 1, "maxThreadsDim": (2, 3, 4),
    "maxGridSize": (5, 6, 7), "clockRate": 13, "totalConstMem": 9, "major": 75, "minor": 76, "textureAlignment": 14,
    "texturePitchAlignment": 51, "multiProcessorCount": 16, "kernelExecTimeoutEnabled": 17, "integrated": 18,
    "canMapHostMemory": 19, "computeMode": 20, "maxTexture1D": 21, "maxTexture2D": (22, 23),
    "maxTexture3D": (24, 25, 26), "concurrentKernels": 31, "ECCEnabled": 32, "pciBusID": 33, "pciDeviceID": 34,
    "pciDomainID": 50, "tccDriver": 35, "memoryClockRate": 36, "memoryBusWidth": 37, "l2CacheSize": 38,
    "maxThreadsPerMultiProcessor": 39, "isMultiGpuBoard": 84, "cooperativeLaunch": 95,
    "cooperativeMultiDeviceLaunch": 96, "maxTexture1DMipmap": 77, "maxTexture1DLayered": (42, 43),
    "maxTexture2DMipmap": (73, 74), "maxTexture2DLinear": (70, 71, 72), "maxTexture2DLayered": (27, 28, 29),
    "maxTexture2DGather": (45, 46), "maxTexture3DAlt": (47, 48, 49), "maxTextureCubemap": 52,
    "maxTextureCubemapLayered": (53, 54), "maxSurface1D": 55, "maxSurface1DLayered": (61, 62),
    "maxSurface2D": (56, 57), "maxSurface2DLayered": (63, 64, 65), "maxSurface3D": (58, 59, 60),
    "maxSurfaceCubemap": 66, "maxSurfaceCubemapLayered": (67, 68), "surfaceAlignment": 30, "asyncEngineCount": 40,
    "unifiedAddressing": 41, "streamPrioritiesSupported": 78, "globalL1CacheSupported": 79,
    "localL1CacheSupported": 80, "sharedMemPerMultiprocessor": 81, "regsPerMultiprocessor": 82, "managedMemory": 83,
    "multiGpuBoardGroupID": 85, "hostNativeAtomicSupported": 86, "pageableMemoryAccess": 88,
    "concurrentManagedAccess": 89, "computePreemptionSupported": 90, "canUseHostPointerForRegisteredMem": 91,
    "sharedMemPerBlockOptin": 97, "pageableMemoryAccessUsesHostPageTables": 100, "directManagedMemAccessFromHost": 101,
    "persistingL2CacheMaxSize": 108, "maxBlocksPerMultiProcessor": 106, "accessPolicyMaxWindowSize": 109,
    "reservedSharedMemPerBlock": 111, "deviceOverlap": 15, "maxTexture1DLinear": 69,
    "singleToDoublePrecisionPerfRatio": 87,
}  # fmt: skip
"""The number of `CUdevice_attribute` for each property."""


def device_properties(attribute: Callable[[int], int], name: bytes, uuid: bytes, memory_bytes: int) -> dict[str, Any]:
    """All properties by name. `attribute` returns the value of an attribute by its number."""
    properties: dict[str, Any] = {"name": name, "totalGlobalMem": memory_bytes}
    for key, number in _ATTRIBUTES.items():
        properties[key] = attribute(number) if isinstance(number, int) else tuple(attribute(each) for each in number)
    return {**properties, "uuid": uuid, "luid": b"", "luidDeviceNodeMask": 0}


class RuntimeFunctions:
    """The functions whose arguments differ from the driver's. Public methods have CuPy's names."""

    def __init__(self, call: DriverCalls, pointer_attributes: Callable[..., Any]) -> None:
        self._call = call
        self._pointer_attributes = pointer_attributes

    # Device

    def check_status(self, status: int) -> None:
        """Raise the error of a status other than success."""
        if status:
            raise self._call.error(status)

    def getDeviceCount(self) -> int:
        """The number of devices."""
        return 1

    def getDevice(self) -> int:
        """The current device."""
        return 0

    def setDevice(self, device: int) -> None:
        """Make a device current. There is only device 0."""
        if device:
            raise self._call.error(status.INVALID_DEVICE)

    def _ensure_context(self) -> None:
        """Make a context current."""
        self._call("cuCtxSynchronize")

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        """The properties of a device by name."""
        self.setDevice(device)
        uuid = ctypes.create_string_buffer(16)
        self._call("cuDeviceGetUuid_v2", ctypes.addressof(uuid), 0)
        return device_properties(
            lambda number: self._call("cuDeviceGetAttribute", RESULT, number, 0),
            self._call.text("cuDeviceGetName", 0),
            uuid.raw,
            self._call("cuDeviceTotalMem_v2", RESULT, 0),
        )

    def deviceGetPCIBusId(self, device: int) -> str:
        """The PCI bus identifier of a device."""
        return self._call.text("cuDeviceGetPCIBusId", device).decode()

    def deviceGetByPCIBusId(self, pci_bus_id: str) -> int:
        """The device with a PCI bus identifier."""
        text = ctypes.create_string_buffer(pci_bus_id.encode())
        return self._call("cuDeviceGetByPCIBusId", RESULT, ctypes.addressof(text))

    def _deviceEnsurePeerAccess(self, device: int) -> None:
        """Let the current device access another, of which there is none."""
        self.setDevice(device)

    # Memory

    def malloc(self, size: int) -> int:
        """Allocate device memory. The address of no bytes is 0."""
        return self._call("cuMemAlloc_v2", RESULT, int(size)) if size else 0

    def mallocAsync(self, size: int, stream: int) -> int:
        """Allocate device memory in the order of a stream."""
        return self._call("cuMemAllocAsync", RESULT, int(size), int(stream)) if size else 0

    def mallocManaged(self, size: int, flags: int = _ATTACH_GLOBAL) -> int:
        """Allocate managed memory."""
        return self._call("cuMemAllocManaged", RESULT, int(size), flags) if size else 0

    def memGetInfo(self) -> tuple[int, int]:
        """Free and total bytes of device memory."""
        total = ctypes.c_uint64()
        return self._call("cuMemGetInfo_v2", RESULT, ctypes.addressof(total)), total.value

    def memcpy(self, dst: int, src: int, size: int, kind: int) -> None:
        """Copy between host and device."""
        self._call(_COPIES.get(kind, "cuMemcpy"), int(dst), int(src), int(size))

    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:
        """Copy in the order of a stream."""
        self._call(_ASYNC_COPIES.get(kind, "cuMemcpyAsync"), int(dst), int(src), int(size), int(stream))

    def memcpyPeer(self, dst: int, dstDevice: int, src: int, srcDevice: int, size: int) -> None:
        """Copy between devices, of which there is one."""
        self._call("cuMemcpy", int(dst), int(src), int(size))

    def memcpyPeerAsync(self, dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int) -> None:
        """Copy between devices in the order of a stream."""
        self._call("cuMemcpyAsync", int(dst), int(src), int(size), int(stream))

    def memset(self, ptr: int, value: int, size: int) -> None:
        """Fill with a byte."""
        self._call("cuMemsetD8_v2", int(ptr), value & 0xFF, int(size))

    def memsetAsync(self, ptr: int, value: int, size: int, stream: int) -> None:
        """Fill with a byte in the order of a stream."""
        self._call("cuMemsetD8Async", int(ptr), value & 0xFF, int(size), int(stream))

    def pointerGetAttributes(self, ptr: int) -> Any:
        """What is known of a pointer, as CuPy's `PointerAttributes`."""
        kind = self.pointerGetMemoryType(ptr)
        if kind == _UNREGISTERED:
            return self._pointer_attributes(_NO_DEVICE, 0, int(ptr), kind)
        host = self._pointer_attribute(ptr, _HOST_POINTER) or 0
        return self._pointer_attributes(0, self._pointer_attribute(ptr, _DEVICE_POINTER), host, kind)

    def pointerGetMemoryType(self, ptr: int) -> int:
        """The `cudaMemoryType` of a pointer."""
        if self._pointer_attribute(ptr, _IS_MANAGED):
            return _MANAGED
        return self._pointer_attribute(ptr, _KIND) or _UNREGISTERED

    def _pointer_attribute(self, ptr: int, number: int) -> int | None:
        """An attribute; None if the address is not known to the driver, or has no such attribute."""
        try:
            return self._call("cuPointerGetAttribute", RESULT, number, int(ptr))
        except Exception as error:
            if getattr(error, "status", None) == status.INVALID_VALUE:
                return None
            raise

    # Streams and events

    def streamCreate(self) -> int:
        """Create a stream."""
        return self._call("cuStreamCreate", RESULT, 0)

    def streamGetPriority(self, stream: int) -> int:
        """The priority of a stream, which is 0 or negative."""
        return ctypes.c_int32(self._call("cuStreamGetPriority", int(stream), RESULT)).value

    def streamQuery(self, stream: int) -> int:
        """The status of a stream, which is complete or records a graph."""
        return self._status("cuStreamQuery", stream)

    def _status(self, symbol: str, handle: int) -> int:
        try:
            self._call(symbol, int(handle))
        except Exception as error:
            found = getattr(error, "status", None)
            if found is None:
                raise
            return int(found)
        return status.SUCCESS

    def streamWaitEvent(self, stream: int, event: int, flags: int = 0) -> None:
        """Let a stream wait for an event, which has happened."""
        self._call("cuStreamWaitEvent", int(stream), int(event), flags)

    def streamAddCallback(self, stream: int, callback: Implementation, arg: int, flags: int = 0) -> None:
        """Call a function after the work in a stream, which is complete."""
        self._call("cuStreamQuery", int(stream))
        callback(stream, status.SUCCESS, arg)

    def launchHostFunc(self, stream: int, callback: Implementation, arg: int) -> None:
        """Call a function in the order of a stream."""
        self._call("cuStreamIsCapturing", int(stream), RESULT)
        enqueue(self._call.driver, int(stream), lambda: callback(arg), HOST)

    def _launchHostFuncUnmanaged(self, stream: int, func_arg: tuple[Implementation, Any]) -> None:
        """Call a function in the order of a stream; it comes with its argument."""
        self.launchHostFunc(stream, *func_arg)

    def eventCreate(self) -> int:
        """Create an event."""
        return self._call("cuEventCreate", RESULT, 0)

    def eventQuery(self, event: int) -> int:
        """The status of an event, which has happened."""
        return self._status("cuEventQuery", event)

    def eventElapsedTime(self, start: int, end: int) -> float:
        """Milliseconds between two events."""
        bits = self._call("cuEventElapsedTime", RESULT, int(start), int(end))
        return float(struct.unpack("f", struct.pack("I", bits))[0])

    # Graphs and memory pools

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


_NOT_OF_CUPY = ("__", "_pointer_attribute", "_status")
"""Beginnings of names that are not CuPy's."""


def runtime_functions(call: DriverCalls, pointer_attributes: Callable[..., Any]) -> dict[str, Implementation]:
    """All implemented functions by CuPy's names. `pointer_attributes` is CuPy's class for attributes of a pointer."""
    own = RuntimeFunctions(call, pointer_attributes)
    textures = TextureFunctions(call)
    return {
        **{name: _forwarded(call, *row) for name, row in FORWARDED.items()},
        **{name: getattr(own, name) for name in vars(RuntimeFunctions) if not name.startswith(_NOT_OF_CUPY)},
        **{name: getattr(textures, name) for name in vars(TextureFunctions) if not name.startswith("_")},
    }
