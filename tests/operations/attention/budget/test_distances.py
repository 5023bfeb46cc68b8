from __future__ import annotations

import numpy as np
import pytest

from harness.operations.attention.budget.distances import Distances


@pytest.mark.parametrize("kind", ["spread", "needle", "far from zero", "equal", "one key"])
def test_sums_of_distances_are_never_too_small_and_hardly_too_large(kind: str):
    rng = np.random.default_rng(1)
    keys = 1 if kind == "one key" else 50
    v = rng.standard_normal((2, 3, keys, 4))
    weights = rng.random((2, 3, 7, keys)).astype(np.float32)
    if kind == "far from zero":
        v += 1000.0
    elif kind == "equal":
        v[...] = 3.1
    elif kind == "needle":
        weights[..., 1:] *= np.float32(1e-9)
    p = weights / weights.sum(axis=-1, keepdims=True)
    o = p.astype(np.float64) @ v
    distances = Distances.of(v, o)
    far = np.abs(v[:, :, None] - o[:, :, :, None])
    for found, true, most in (
        (distances.absolute(weights), np.einsum("bhrk,bhrkd->bhrd", weights, far), 1.6),
        (distances.squared(weights), np.einsum("bhrk,bhrkd->bhrd", weights, far * far), 1.01),
    ):
        # What is added for cancellation: 2^-10 of the spread, and its square.
        spread = np.ptp(v, axis=-2)[:, :, None] * weights.sum(axis=-1, keepdims=True)
        assert (found >= true * (1 - 1e-5)).all()
        if kind in ("spread", "far from zero"):
            assert (found <= most * true + spread * 2e-5).all()
        else:
            assert (found <= most * true + spread * 2e-3).all()
    assert np.allclose(distances.farthest(), far.max(axis=-2), rtol=1e-3, atol=1e-6)
