"""Launches kernels with attributes, with cuLaunchKernelEx: in clusters, or before the previous launch has ended."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from harness.compilers.native_gpu import NativeGpu
from harness.compilers.toolchain import Call
from harness.model.plan import Launch
from harness.ptx.targets import may_overlap_launches
from harness.support.errors import PlanError


def has_attributes(launch: Launch, arch: str) -> bool:
    """Whether a launch on a GPU of this architecture has an attribute, which only cuLaunchKernelEx takes."""
    return launch.cluster is not None or (launch.overlaps_previous and may_overlap_launches(arch))


def with_attributes(function: int, launch: Launch, args: Sequence[Any], gpu: NativeGpu) -> Call:
    """Return a call that launches the driver's function with this handle, with arguments as CuPy takes them."""
    from cuda.bindings import driver

    parameters = _Parameters(args)
    config = launch_configuration(launch, gpu.stream.ptr, gpu.arch)

    def call() -> None:
        (error,) = driver.cuLaunchKernelEx(config, driver.CUfunction(function), parameters.address, 0)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise PlanError(
                f"kernel {launch.kernel_name}: {gpu.name} does not launch it {_in_words(launch)} ({error.name})"
            )

    return call


class _Parameters:
    """The arguments of a launch in host memory, in the layout that cuLaunchKernelEx reads."""

    def __init__(self, args: Sequence[Any]) -> None:
        words = [bytes_of(argument) for argument in args]
        self._values = [ctypes.create_string_buffer(word, len(word)) for word in words]
        self._places = (ctypes.c_void_p * len(words))(*(ctypes.addressof(value) for value in self._values))

    @property
    def address(self) -> int:
        """Address of the array of pointers to the arguments."""
        return ctypes.addressof(self._places)


def launch_configuration(launch: Launch, stream: int, arch: str) -> Any:
    """Return the CUlaunchConfig of a launch. Needs no GPU."""
    from cuda.bindings import driver

    config, attributes = driver.CUlaunchConfig(), []
    config.gridDimX, config.gridDimY, config.gridDimZ = (*launch.grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = (*launch.block, 1, 1)[:3]
    config.sharedMemBytes, config.hStream = launch.shared_bytes, driver.CUstream(stream)
    if launch.cluster is not None:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = attribute.value.clusterDim
        extents.x, extents.y, extents.z = (*launch.cluster, 1, 1)[:3]
        attributes.append(attribute)
    if launch.overlaps_previous and may_overlap_launches(arch):
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _in_words(launch: Launch) -> str:
    clusters = () if launch.cluster is None else (f"in clusters of {launch.cluster}",)
    return " and ".join((*clusters, *("before the previous launch has ended",) * launch.overlaps_previous))


def bytes_of(argument: Any) -> bytes:
    """Return an argument's bytes: a CuPy array's address, a NumPy scalar's bytes, or 8 bytes for a Python number."""
    import numpy as np

    if isinstance(argument, np.generic):
        return argument.tobytes()
    if hasattr(argument, "data"):
        return int(argument.data.ptr).to_bytes(8, "little")
    return np.asarray(argument).tobytes()
