"""Tensor maps as a GPU has them: the driver encodes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.model.plan import Launch
from harness.model.tensor_map import TensorMap
from harness.support.errors import PlanError

if TYPE_CHECKING:
    import numpy as np

_TYPES = {
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float64": "FLOAT64",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


def native_arguments(launch: Launch, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
    """The launch's arguments as CuPy takes them. Raises `PlanError` where the driver refuses a tensor map."""
    return tuple(_native(launch, argument, arrays) for argument in launch.args)


def _native(launch: Launch, argument: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(argument, TensorMap):
        return _encoded(launch, argument, int(arrays[argument.buffer].data.ptr))
    return arrays[argument] if isinstance(argument, str) else argument


def _encoded(launch: Launch, tensor_map: TensorMap, address: int) -> np.void:
    import numpy as np
    from cuda.bindings import driver

    rank = len(tensor_map.extents)
    error, encoded = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[tensor_map.dtype]}"),
        rank,
        address,
        [driver.cuuint64_t(extent) for extent in tensor_map.extents],
        [driver.cuuint64_t(stride) for stride in tensor_map.strides],
        [driver.cuuint32_t(extent) for extent in tensor_map.box],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[tensor_map.swizzle]}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise PlanError(f"kernel {launch.kernel_name}: the driver refuses {tensor_map} ({error.name})")
    words = [int(word) for word in encoded.opaque]
    native: np.void = np.void(np.array(words, dtype=np.uint64).tobytes())
    return native
