"""The user's own Q, K and V, out of .npy files: what problem they pose, and outputs in the same shape."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.operations.attention.inputs import NUMPY_DTYPES
from harness.operations.attention.masks import Mask
from harness.operations.attention.problem import Problem
from harness.support.errors import ProblemError, UsageError

NPY_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True)
class UserArrays:
    """Q, K and V as the sandbox holds them, and the shape in which the user did."""

    inputs: dict[str, np.ndarray]
    """Q, K, V: (batch, heads, len, dim), C-contiguous, bfloat16 as `ml_dtypes.bfloat16`."""
    dtype: str
    """float32, float16 or bfloat16."""
    single_head: bool
    """Given as (len, dim)."""

    def problem(self, mask: Mask, scale: float | None) -> Problem:
        """The problem that these arrays pose. Raises `UsageError` where their shapes do not fit together."""
        q, k, v = (self.inputs[name].shape for name in "QKV")
        if k != v:
            raise UsageError(f"K has shape {self._shown(k)} and V {self._shown(v)}; they have to be the same")
        if q[0] != k[0]:
            raise UsageError(f"Q has batch {q[0]} and K and V have {k[0]}; they have to be the same")
        if q[3] != k[3]:
            raise UsageError(
                f"the rows of Q have {q[3]} elements and those of K and V {k[3]}; they have to be the same"
            )
        try:
            return Problem(
                batch=q[0],
                heads=q[1],
                kv_heads=k[1],
                q_len=q[2],
                kv_len=k[2],
                head_dim=q[3],
                dtype=self.dtype,
                mask=mask,
                scale=scale,
            )
        except ProblemError as error:
            raise ProblemError(f"Q {self._shown(q)}, K and V {self._shown(k)}: {error}") from error

    def npy(self, output: np.ndarray) -> bytes:
        """O or lse as the content of an .npy file, in the shape of the user's arrays. bfloat16 as its bits, uint16."""
        if self.single_head:
            output = output[0, 0]
        if output.dtype == NUMPY_DTYPES["bfloat16"]:
            output = output.view(np.uint16)
        content = io.BytesIO()
        np.save(content, output, allow_pickle=False)
        return content.getvalue()

    def _shown(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[2:] if self.single_head else shape


def load_arrays(paths: Mapping[str, Path], dtype: str | None = None) -> UserArrays:
    """Read Q, K and V from .npy files: all (batch, heads, len, dim), or all (len, dim) for a single head.

    `dtype` is what they have to be; None takes what they are. NumPy has no bfloat16: with `dtype` bfloat16 the files
    hold its bits, as uint16 or as the two raw bytes that saving an `ml_dtypes.bfloat16` array gives.
    Raises `UsageError` where a file is missing, broken, of another dtype or another shape.
    """
    if dtype is not None and dtype not in NUMPY_DTYPES:
        raise UsageError(f"dtype is {dtype!r}; choose one of {', '.join(NUMPY_DTYPES)}")
    arrays = {name: _with_dtype(name, path, _read(name, path), dtype) for name, path in paths.items()}
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    if {array.ndim for array in arrays.values()} not in ({2}, {4}):
        raise UsageError(f"{shapes}: all have to be (batch, heads, len, dim), or all (len, dim)")
    if any(0 in array.shape for array in arrays.values()):
        raise UsageError(f"{shapes}: no extent may be 0")
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    if len(set(dtypes.values())) > 1:
        raise UsageError(f"{', '.join(f'{n} is {d}' for n, d in dtypes.items())}; all have to have the same dtype")
    single_head = arrays["Q"].ndim == 2
    inputs = {name: np.ascontiguousarray(array[None, None] if single_head else array) for name, array in arrays.items()}
    return UserArrays(inputs, next(iter(dtypes.values())), single_head)


def _read(name: str, path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            if file.read(len(NPY_MAGIC)) != NPY_MAGIC:
                raise UsageError(f"{name}: {path} is not an .npy file; write it with numpy.save")
            file.seek(0)
            array: np.ndarray = np.load(file, allow_pickle=False)
            return array
    except OSError as error:
        raise UsageError(f"{name}: cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, SyntaxError, MemoryError) as error:
        # numpy.load raises all of these for headers and data that are cut off or damaged.
        raise UsageError(f"{name}: {path} is a broken .npy file: {' '.join(str(error).split())}") from error


def _with_dtype(name: str, path: Path, array: np.ndarray, wanted: str | None) -> np.ndarray:
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    bits = native.dtype == np.uint16 or native.dtype.str in ("|V2", "<V2")
    if wanted == "bfloat16" and bits:
        return np.ascontiguousarray(native).view(NUMPY_DTYPES["bfloat16"])
    if bits:
        raise UsageError(
            f"{name}: {path} holds {native.dtype}; if these are the bits of bfloat16, say so with --dtype bfloat16"
        )
    if native.dtype.name not in ("float32", "float16"):
        raise UsageError(
            f"{name}: {path} holds {native.dtype}; it has to be float32, float16 or, with --dtype bfloat16, uint16. "
            "Convert it with .astype(numpy.float32)"
        )
    if wanted is not None and native.dtype.name != wanted:
        raise UsageError(f"{name}: {path} holds {native.dtype}, but --dtype is {wanted}; nothing is converted silently")
    return native
