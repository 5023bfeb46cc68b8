"""GPUs by name: what their makers say they can do at most. Dense matrices, boost clock, no sparsity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import UsageError

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Gpu:
    """One GPU's peaks."""

    name: str
    """What to show a person."""
    memory_bytes_per_s: float
    """Of its DRAM."""
    float32_flops: float
    """Multiplications and additions per second outside of tensor cores."""
    tensor_flops: Mapping[str, float]
    """dtype -> the same on tensor cores, accumulated in float32. Without an entry they do not know the dtype."""
    source: str
    """Where the figures stand."""


def _sixteen_bits(tera: float) -> dict[str, float]:
    return {"float16": tera * TERA, "bfloat16": tera * TERA}


# Where a datasheet gives tensor figures with sparsity only, half of them.
GPUS = {
    "h200": Gpu("H200 SXM", 4.8 * TERA, 67 * TERA, _sixteen_bits(989.5), "NVIDIA H200 Tensor Core GPU datasheet"),
    "h100": Gpu("H100 SXM", 3.35 * TERA, 67 * TERA, _sixteen_bits(989.5), "NVIDIA H100 Tensor Core GPU datasheet"),
    "a100": Gpu(
        "A100 SXM 80 GB", 2039 * GIGA, 19.5 * TERA, _sixteen_bits(312), "NVIDIA A100 Tensor Core GPU datasheet"
    ),
    "l40s": Gpu("L40S", 864 * GIGA, 91.6 * TERA, _sixteen_bits(362.05), "NVIDIA L40S datasheet"),
    "l4": Gpu("L4", 300 * GIGA, 30.3 * TERA, _sixteen_bits(121), "NVIDIA L4 Tensor Core GPU datasheet"),
    "rtx4090": Gpu(
        "GeForce RTX 4090", 1008 * GIGA, 82.6 * TERA, _sixteen_bits(165.2), "NVIDIA Ada GPU architecture, table 2"
    ),
    "v100": Gpu("V100 SXM2", 900 * GIGA, 15.7 * TERA, {"float16": 125 * TERA}, "NVIDIA V100 Tensor Core GPU datasheet"),
    "t4": Gpu("T4", 320 * GIGA, 8.1 * TERA, {"float16": 65 * TERA}, "NVIDIA T4 Tensor Core GPU datasheet"),
}


def gpu(name: str) -> Gpu:
    """The GPU of that name, in any case. Raises `UsageError` that names them all."""
    found = GPUS.get(name.lower())
    if found is None:
        raise UsageError(f"no GPU {name!r} in the table; choose one of {', '.join(GPUS)}")
    return found


def matching_gpu(device_name: str) -> Gpu | None:
    """The entry that CUDA's name of a device, such as "NVIDIA H200", belongs to; None where there is none."""
    words = device_name.lower().replace("-", " ").split()
    return next((entry for key, entry in GPUS.items() if key in words or key == "".join(words[-2:])), None)
