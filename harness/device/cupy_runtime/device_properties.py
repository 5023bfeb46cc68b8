"""The properties of a device as `cudaGetDeviceProperties` returns them, under CuPy's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
