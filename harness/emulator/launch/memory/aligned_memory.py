"""Arrays with the alignment and padding that native code requires."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CACHE_LINE_BYTES = 64
SLACK_BYTES = 64
"""Padding after an array, for vector loads that extend beyond its end."""


def aligned_zeros(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes that start on a cache line, with padding after them."""
    raw = np.zeros(size_bytes + CACHE_LINE_BYTES + SLACK_BYTES, dtype=np.uint8)
    shift = -raw.ctypes.data % CACHE_LINE_BYTES
    return raw[shift : shift + size_bytes + SLACK_BYTES]
