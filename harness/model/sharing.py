"""Defines which device holds which part of the tensors of a problem that several devices compute together.

Only the executors use parts. Everything else, such as the oracle and the error budget, sees whole tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from harness.model.problem import BaseProblem

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Share:
    """The part of a tensor that one device holds as a tensor of its own."""

    tensor: str
    """Name of the whole tensor, such as `K`."""
    buffer: str
    """Name of the part, such as `K@1`."""
    axis: int
    """The axis that is divided."""
    indices: range
    """Which indices along this axis it has, in order."""

    @property
    def where(self) -> tuple[slice, ...]:
        """Index of the part in the whole tensor."""
        rows = slice(self.indices.start, self.indices.stop, self.indices.step)
        return (*(slice(None),) * self.axis, rows)


@dataclass(frozen=True)
class Sharing:
    """The parts of all tensors. Each element of an output is in exactly one; one of an input may be in several."""

    held: BaseProblem
    """The same problem, with a tensor for each part in place of whole ones."""
    shares: tuple[Share, ...]

    @cached_property
    def buffers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the parts of each tensor."""
        found: dict[str, tuple[str, ...]] = {}
        for share in self.shares:
            found[share.tensor] = (*found.get(share.tensor, ()), share.buffer)
        return found

    def split(self, whole: Mapping[str, Array]) -> dict[str, Array]:
        """Return the parts of these whole arrays, C-contiguous, by name."""
        return {
            share.buffer: np.ascontiguousarray(whole[share.tensor][share.where])
            for share in self.shares
            if share.tensor in whole
        }

    def join(self, parts: Mapping[str, Array]) -> dict[str, Array]:
        """Return the whole arrays of these parts, with zeros where a part is missing."""
        whole: dict[str, Array] = {}
        for name, buffers in self.buffers.items():
            present = [parts[buffer] for buffer in buffers if buffer in parts]
            if present:
                shares = [share for share in self.shares if share.tensor == name]
                shape = list(present[0].shape)
                shape[shares[0].axis] = max(share.indices[-1] for share in shares) + 1
                whole[name] = np.zeros(shape, present[0].dtype)
                for share in shares:
                    if share.buffer in parts:
                        whole[name][share.where] = parts[share.buffer]
        return whole
