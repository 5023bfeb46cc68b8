"""Keys and values that are stored in 8 bits, with a factor per key/value head, as serving engines store them.

The stored elements times their head's scale, exactly, are the keys and values of the problem: that rounding them
changed the answer is no error of a kernel. E4M3 is that of Micikevicius et al. 2022, "FP8 formats for deep learning",
arXiv 2209.05433: a sign, 4 bits of exponent and 3 of fraction, up to 448, with NaN and no infinity.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import numpy.typing as npt

from harness.support.errors import UsageError

Float64Array = npt.NDArray[np.float64]

E4M3 = "e4m3"
KV_DTYPES: Mapping[str, str] = {E4M3: "float8_e4m3fn"}
"""For each value of `kv_dtype` the dtype of K and V, a name of `ELEMENT_BYTES`."""
KV_DTYPE = "kv_dtype"
"""The problem's field, which is also the feature that a variant may list in `takes`."""
SCALES: Mapping[str, str] = {"K": "K_scale", "V": "V_scale"}
"""The inputs with the scales of K and of V: float32, (kv_heads,)."""
HEAD_DIM_UNIT = 8
"""Rows have a multiple of so many elements: 16 rows are whole sectors, and a thread copies 8 bytes at once."""
LARGEST = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
EXPONENTS = (0, -1, 3, 7, 12)
"""Powers of two by which a head's scale exceeds the one that makes its largest element `LARGEST`. With less than 0
large elements are cut off, with 12 most are subnormal. Scales of heads then differ by up to 2^13."""
LEAST_SCALE = float(np.finfo(np.float32).tiny)
"""The least normal number of float32. Kernels that flush subnormal numbers to zero read less than that as 0."""
SPECIAL_VALUES = (LARGEST, -LARGEST, 2.0**-9, -(2.0**-6), 0.0, -0.0)
"""Stored elements at the ends of the format: the largest, the smallest subnormal and the smallest normal, zeros."""


def draw_scales(rng: np.random.Generator, pool: np.ndarray) -> npt.NDArray[np.float32]:
    """(kv_heads,): scales with which the pool's finite elements, (pages, kv_heads, page_size, columns), use E4M3."""
    exponents = np.resize(rng.permutation(EXPONENTS), pool.shape[1])
    largest = np.array([_largest(pool[:, head]) for head in range(pool.shape[1])])
    scales: npt.NDArray[np.float32] = np.maximum(largest / LARGEST * 2.0**exponents, LEAST_SCALE).astype(np.float32)
    return scales


def stored(pool: np.ndarray, scales: npt.NDArray[np.float32]) -> np.ndarray:
    """The pool divided by each head's scale and rounded to nearest even, at most `LARGEST` in magnitude."""
    found = np.empty(pool.shape, ml_dtypes.float8_e4m3fn)
    for head, scale in enumerate(scales):
        found[:, head] = np.clip(pool[:, head].astype(np.float32) / scale, -LARGEST, LARGEST)
    return found


def multiplied(rows: np.ndarray, scales: npt.NDArray[np.float32]) -> Float64Array:
    """Stored elements times the scale of their head, exactly; `rows` is (sequences, kv_heads, keys, columns)."""
    product: Float64Array = rows.astype(np.float64) * scales.astype(np.float64)[:, None, None]
    return product


def kv_dtype_of_scales(scales: np.ndarray) -> str:
    """The problem's `kv_dtype`, given the scales. Raises `UsageError` if one is not at least `LEAST_SCALE`."""
    bad = np.flatnonzero(~(np.isfinite(scales) & (scales >= LEAST_SCALE)).reshape(-1))
    if len(bad):
        scale = scales.reshape(-1)[bad[0]]
        raise UsageError(f"the scale of key/value head {bad[0]} is {scale}; it has to be at least {LEAST_SCALE:.3g}")
    return E4M3


def _largest(elements: np.ndarray) -> float:
    """The largest finite magnitude, 1 if there is none above 0."""
    largest = np.max(np.abs(elements), initial=0, where=np.isfinite(elements))
    return float(largest) or 1.0


def why_invalid(kv_dtype: object, dtype: str, head_dim: int) -> str | None:
    """Why a problem cannot have this `kv_dtype`, or None."""
    if kv_dtype not in KV_DTYPES:
        return f"kv_dtype is {kv_dtype!r}; choose {' or '.join(KV_DTYPES)}, or leave it out for the dtype of Q"
    if dtype == "float32":
        return f"kv_dtype is {kv_dtype}, which goes with dtype float16 or bfloat16, not with float32"
    if head_dim % HEAD_DIM_UNIT:
        return f"head_dim is {head_dim}; with kv_dtype {kv_dtype} it has to be a multiple of {HEAD_DIM_UNIT}"
    return None
