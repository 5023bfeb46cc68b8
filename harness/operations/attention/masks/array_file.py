"""An array in a .npy file that defines a mask. The mask stores the path and a digest, not the array."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.support.errors import ProblemError


@dataclass(frozen=True)
class ArrayFile:
    """An array that is loaded on access."""

    path: str
    """Path as the user gave it."""
    digest: str
    """SHA-256 of shape and elements, so that masks with other contents compare unequal."""
    shape: tuple[int, ...]

    @classmethod
    def read(cls, mask: str, path: str, is_valid: Callable[[np.ndarray], bool], needed: str) -> ArrayFile:
        """Open the file at `path` for a mask of kind `mask`. Raises `ProblemError` if `is_valid` rejects its array.

        `needed` describes valid arrays in the message.
        """
        array = _load(f"mask {mask}:{path}", path)
        if not isinstance(array, np.ndarray) or not array.size or not is_valid(array):
            actual = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "no array"
            raise ProblemError(f"mask {mask}:{path}: it has to be {needed}, not {actual}")
        return cls(path, _digest(array), array.shape)

    @property
    def array(self) -> np.ndarray:
        """The array. Raises `ProblemError` if the file has changed."""
        return _array(self)


@functools.lru_cache(maxsize=8)
def _array(file: ArrayFile) -> np.ndarray:
    array = _load(file.path, file.path)
    if _digest(array) != file.digest:
        raise ProblemError(f"{file.path} has changed since the mask was read from it")
    return array


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()


def _load(what: str, path: str) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not an .npy file"
        raise ProblemError(f"{what}: {reason}") from error
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array
