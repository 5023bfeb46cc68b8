"""A mask of bands as two numbers: how far a row sees before and behind its place."""

from __future__ import annotations

from harness.operations.attention.masks.mask import Band, Mask


def band_limits(mask: Mask) -> tuple[int | None, int | None]:
    """(before, after): keys ahead of row i's place, i + kv_len - q_len, and behind it; None: no limit.

    Of a mask that `is_band`.
    """
    limits = [part.limits for part in mask.parts if isinstance(part, Band)]
    assert len(limits) == len(mask.parts)
    before = min((left for left, _ in limits if left is not None), default=None)
    after = min((right for _, right in limits if right is not None), default=None)
    return before, after
