"""Encodes tensor maps with the driver and passes them to native launches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from harness.model.plan import Launch, Reshaped, map_leaves
from harness.model.tensor_map import PIECE_BYTES, TensorMap
from harness.support.errors import PlanError

if TYPE_CHECKING:
    import numpy as np

    from harness.compilers.native_gpu import NativeGpu

MAP_BYTES = 128
"""Size of a `CUtensorMap`."""
_TYPES = {
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float64": "FLOAT64",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "b4x16": "16U4_ALIGN8B",
    "b4x16_p64": "16U4_ALIGN16B",
    "b6x16_p32": "16U6_ALIGN16B",
}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def native_arguments(launch: Launch, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the launch's arguments as CuPy takes them. Raises `PlanError` if the driver rejects a tensor map."""
    return tuple(map_leaves(lambda leaf: _native(launch, leaf, arrays), argument) for argument in launch.args)


def uploaded(
    launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu, by_value: bool
) -> tuple[tuple[Any, ...], object]:
    """Return the launch's arguments as CuPy takes them, and an object that owns the device memory they refer to.

    Unless tensor maps are passed `by_value`, each is copied to device memory and replaced by its address. The memory
    stays allocated as long as the returned object lives. A map that the host copied before the launch needs no fence in
    the kernel (PTX ISA, tensormap proxy). Raises `PlanError` if the driver rejects a tensor map.
    """
    import numpy as np

    native = native_arguments(launch, arrays)
    places = [] if by_value else [i for i, argument in enumerate(launch.args) if isinstance(argument, TensorMap)]
    if not places:
        return native, None
    maps = gpu.cupy.empty((len(places), MAP_BYTES), np.uint8)  # CuPy aligns to 512 bytes; a tensor map needs 64
    maps.set(np.frombuffer(b"".join(native[i].tobytes() for i in places), np.uint8).reshape(maps.shape), gpu.stream)
    addresses = {i: np.uint64(int(maps.data.ptr) + MAP_BYTES * number) for number, i in enumerate(places)}
    return tuple(addresses.get(i, argument) for i, argument in enumerate(native)), maps


def keeping(kept: object, call: Callable[[], None]) -> Callable[[], None]:
    """Return a call that does the same as `call` and keeps the object `kept` alive."""
    return functools.partial(_call, call, kept)


def _call(call: Callable[[], None], kept: object) -> None:
    call()


def _native(launch: Launch, argument: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(argument, TensorMap):
        try:
            return encode(argument, int(arrays[argument.buffer].data.ptr))
        except PlanError as error:
            raise PlanError(f"kernel {launch.kernel_name}: {error}") from None
    if isinstance(argument, Reshaped):
        return arrays[argument.buffer].reshape(-1)[: argument.elements].reshape(argument.shape)
    return arrays[argument] if isinstance(argument, str) else argument


def encode(tensor_map: TensorMap, address: int) -> np.void:
    """Encode a tensor map of the buffer at `address`, in 128 bytes. Raises `PlanError` if the driver rejects it."""
    import numpy as np
    from cuda.bindings import driver

    rank = len(tensor_map.extents)
    error, encoded = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[tensor_map.dtype]}"),
        rank,
        address,
        [driver.cuuint64_t(extent) for extent in tensor_map.extents],
        [driver.cuuint64_t(stride) for stride in tensor_map.strides or (PIECE_BYTES,)],  # required even if unused
        [driver.cuuint32_t(extent) for extent in tensor_map.box],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[tensor_map.swizzle]}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise PlanError(f"the driver refuses {tensor_map} ({error.name})")
    words = [int(word) for word in encoded.opaque]
    native: np.void = np.void(np.array(words, dtype=np.uint64).tobytes())
    return native
