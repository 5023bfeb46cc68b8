"""Forms of cp.reduce.async.bulk, numbers for them, and what NumPy says to each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

TYPES: dict[str, Any] = {
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "u64": np.uint64, "s64": np.int64, "b64": np.uint64,
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
}  # fmt: skip
FORMS = [
    *(f"add.{kind}" for kind in ("u32", "s32", "u64", "f32", "f64", "noftz.f16", "noftz.bf16")),
    *(f"{which}.{kind}" for which in ("min", "max") for kind in ("u32", "s32", "u64", "s64", "f16", "bf16")),
    "inc.u32",
    "dec.u32",
    *(f"{which}.{kind}" for which in ("and", "or", "xor") for kind in ("b32", "b64")),
]
RUN = 64
"""Bytes that each form combines."""


def model(form: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """`old` and `new` have the form's type."""
    operation, kind = form.split(".")[0], form.split(".")[-1]
    simple: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "add": np.add,
        "min": np.fmin, "max": np.fmax,
        "inc": lambda x, y: np.where(x >= y, 0, x + 1),
        "dec": lambda x, y: np.where((x == 0) | (x > y), y, x - 1),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        result = simple[operation](old, new).astype(TYPES[kind])
    return result


def drawn(form: str, rng: np.random.Generator) -> np.ndarray:
    """Any bits for whole numbers; floats near each other, with subnormal ones of f32."""
    kind = form.split(".")[-1]
    if kind[0] in "usb" and kind != "bf16":
        values = rng.integers(0, 256, RUN, np.uint8).view(TYPES[kind])
        return values % 5 if form[:3] in ("inc", "dec") else values
    values = rng.standard_normal(RUN // np.dtype(TYPES[kind]).itemsize).astype(TYPES[kind])
    if form == "add.f32":
        values[:4] = [1e-40, -1e-40, 1.2e-38, -1.2e-38]
    return values


def every_form() -> str:
    """One kernel for all: each form has its own 64 bytes of `x` and `y`."""
    statements = "\n".join(
        f'asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%0], [%1], {RUN};"'
        f'::"l"(y + {RUN * i}), "r"(place_of(s) + {RUN * i}) : "memory");'
        for i, form in enumerate(FORMS)
    )
    return f"""extern "C" __global__ void k(unsigned char* x, unsigned char* y) {{
      extern __shared__ __align__(128) unsigned char s[];
      for (int i = 0; i < {RUN * len(FORMS)}; ++i) s[i] = x[i];
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      {statements}
      COMMIT(); STORED();
    }}"""


TENSOR = """extern "C" __global__ void k(const __grid_constant__ Map to, float* x, int x0, int y0) {
  __shared__ __align__(1024) float s[256]; int t = threadIdx.x;
  for (int i = t; i < 256; i += 32) s[i] = x[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (t == 0) {
    for (int i = 0; i < 2; ++i)
      asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];"
        ::"l"(&to), "r"(place_of(s)), "r"(x0), "r"(y0) : "memory");
    COMMIT(); STORED();
  }
}"""
