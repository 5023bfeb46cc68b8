"""Types of NumPy arrays that many modules use."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Arrays = Mapping[str, np.ndarray]
"""Arrays by name."""
