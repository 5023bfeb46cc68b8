"""Selects the thread blocks of a launch that compute some entries of a huge problem, such as its last sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class BlockSample:
    """The blocks of some entries, which lie next to each other along one axis of the grid."""

    axis: int
    """The axis of the grid along which entries lie: 0, 1 or 2 for x, y or z."""
    blocks_per_entry: int
    """Number of consecutive indices along this axis that belong to one entry."""
    entries: tuple[int, ...]
    """The entries whose blocks run, in ascending order."""

    def numbers(self, grid: tuple[int, int, int]) -> npt.NDArray[np.int64]:
        """Return the linear indices of the blocks in ascending order, x varying fastest."""
        import numpy as np

        first = np.array(self.entries, np.int64)[:, None] * self.blocks_per_entry
        chosen = [np.arange(extent, dtype=np.int64) for extent in grid]
        chosen[self.axis] = (first + np.arange(self.blocks_per_entry, dtype=np.int64)).reshape(-1)
        x, y, z = chosen
        return ((z[:, None, None] * grid[1] + y[:, None]) * grid[0] + x).reshape(-1)
