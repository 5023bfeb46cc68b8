"""Launches kernels in thread block clusters, with cuLaunchKernelEx."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from harness.compilers.native_gpu import NativeGpu
from harness.compilers.toolchain import Call
from harness.model.plan import Launch
from harness.support.errors import PlanError


def in_clusters(function: int, launch: Launch, args: Sequence[Any], gpu: NativeGpu) -> Call:
    """Return a call that launches the driver's function with this handle, with arguments as CuPy takes them."""
    from cuda.bindings import driver

    parameters = _Parameters(args)
    config = launch_configuration(launch, gpu.stream.ptr)

    def call() -> None:
        (error,) = driver.cuLaunchKernelEx(config, driver.CUfunction(function), parameters.address, 0)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise PlanError(
                f"kernel {launch.kernel_name}: {gpu.name} does not launch it in clusters of {launch.cluster} "
                f"({error.name})"
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


def launch_configuration(launch: Launch, stream: int) -> Any:
    """Return the CUlaunchConfig of a launch in clusters. Needs no GPU."""
    from cuda.bindings import driver

    assert launch.cluster is not None
    config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*launch.grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = (*launch.block, 1, 1)[:3]
    config.sharedMemBytes, config.hStream = launch.shared_bytes, driver.CUstream(stream)
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    extents = attribute.value.clusterDim
    extents.x, extents.y, extents.z = (*launch.cluster, 1, 1)[:3]
    config.attrs, config.numAttrs = [attribute], 1
    return config


def bytes_of(argument: Any) -> bytes:
    """Return an argument's bytes: a CuPy array's address, a NumPy scalar's bytes, or 8 bytes for a Python number."""
    import numpy as np

    if isinstance(argument, np.generic):
        return argument.tobytes()
    if hasattr(argument, "data"):
        return int(argument.data.ptr).to_bytes(8, "little")
    return np.asarray(argument).tobytes()
