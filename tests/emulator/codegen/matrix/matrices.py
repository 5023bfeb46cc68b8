"""Random matrices of patterns: close and distant exponents, cancellation, subnormals, overflow, infinities and NaN."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from operands import Array

EXPONENT_BITS = {"f16": 5, "bf16": 8, "tf32": 8, "f32": 8}
FRACTION_BITS = {"f16": 10, "bf16": 7, "tf32": 23, "f32": 23}
"""Of tf32, those that are ignored too."""
BYTES = {"f16": np.uint16, "bf16": np.uint16, "tf32": np.uint32, "f32": np.uint32}


def patterns(
    rng: np.random.Generator,
    kind: str,
    shape: tuple[int, ...],
    exponents: tuple[int, int],
    zeros: float = 0.0,
    subnormal: float = 0.0,
    special: float = 0.0,
) -> Array:
    """Patterns with exponents from a range, and shares of zeros, subnormals, and infinities or NaN."""
    bits, fraction_bits = EXPONENT_BITS[kind], FRACTION_BITS[kind]
    bias = (1 << (bits - 1)) - 1
    exponent = np.clip(rng.integers(exponents[0], exponents[1] + 1, shape) + bias, 1, 2 * bias)
    fraction = rng.integers(0, 1 << fraction_bits, shape)
    simple = rng.random(shape)
    fraction = np.where(simple < 0.25, 0, np.where(simple < 0.4, (1 << fraction_bits) - 1, fraction))
    exponent = np.where(rng.random(shape) < subnormal, 0, exponent)
    magnitude = np.where(rng.random(shape) < zeros, 0, exponent << fraction_bits | fraction)
    infinite = ((1 << bits) - 1) << fraction_bits
    not_finite = np.where(rng.random(shape) < 0.7, infinite, infinite | fraction)
    magnitude = np.where(rng.random(shape) < special, not_finite, magnitude)
    return (magnitude | rng.integers(0, 2, shape) << (bits + fraction_bits)).astype(BYTES[kind])


def random_bits(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    """Any pattern."""
    return rng.integers(0, np.iinfo(BYTES[kind]).max, shape, dtype=BYTES[kind], endpoint=True)


Shape = tuple[int, int, int]
"""M, N, K."""


def problems(rng: np.random.Generator, kind: str, accumulator: str, shape: Shape, each: int) -> tuple[Array, ...]:
    """`each` triples of A, B and C of every sort, as arrays of matrices."""
    sorts = list(_sorts(rng, kind, accumulator, shape, each))
    return tuple(np.concatenate(matrices) for matrices in zip(*sorts))


def _sorts(
    rng: np.random.Generator, kind: str, accumulator: str, shape: Shape, each: int
) -> Iterator[tuple[Array, Array, Array]]:
    m, n, k = shape
    of_a, of_b, of_c = (each, m, k), (each, k, n), (each, m, n)
    wide = kind != "f16"
    lowest, highest = (-126, 127) if wide else (-14, 15)
    lowest_c, highest_c = (-126, 127) if accumulator == "f32" else (-14, 15)

    def draw(x: tuple[int, int], y: tuple[int, int], z: tuple[int, int], **shares: float) -> tuple[Array, ...]:
        return patterns(rng, kind, of_a, x, **shares), patterns(rng, kind, of_b, y, **shares), c(z, **shares)

    def c(exponents: tuple[int, int], **shares: float) -> Array:
        return patterns(rng, accumulator, of_c, exponents, **shares)

    yield draw((-3, 3), (-3, 3), (-4, 4))
    yield draw((-12, 12), (-12, 12), (-24, 24))
    yield draw((-12, 12), (-12, 12), (-14, 14), zeros=0.6)
    # One product, mostly, and C.
    yield draw((-12, 12), (-12, 12), (-30, 24), zeros=0.85)
    yield (*_cancelling(rng, kind, shape, each), c((-14, 6), zeros=0.3))
    yield draw((lowest, lowest + 3), (-2, 60) if wide else (-14, 6), (lowest_c, lowest_c + 4), subnormal=0.4)
    # Too small for the result: cut off, and never -0.
    small = (-100, -60) if wide else (-14, -10)
    yield draw(small, small, (lowest_c, lowest_c), zeros=0.5, subnormal=0.1)
    large = ((60, 66), (58, 64)) if wide else ((highest - 4, highest),) * 2
    yield draw(*large, (highest_c - 4, highest_c))
    yield draw((-3, 3), (-3, 3), (-4, 4), zeros=0.1, special=0.015)
    yield random_bits(rng, kind, of_a), random_bits(rng, kind, of_b), random_bits(rng, accumulator, of_c)


def _cancelling(rng: np.random.Generator, kind: str, shape: Shape, each: int) -> tuple[Array, Array]:
    """Each product twice, with both signs, and small ones in between."""
    m, n, k = shape
    half = k // 2
    sign = BYTES[kind](1 << (EXPONENT_BITS[kind] + FRACTION_BITS[kind]))
    a, b = patterns(rng, kind, (each, m, k), (-6, 6)), patterns(rng, kind, (each, k, n), (-6, 6))
    a[:, :, half:], b[:, half:] = a[:, :, :half] ^ sign, b[:, :half]
    small = rng.random((each, 1, k)) < 0.2
    a = np.where(small, patterns(rng, kind, (each, m, k), (-14, -6)), a)
    order = rng.permuted(np.tile(np.arange(k), (each, 1)), axis=1)
    return np.take_along_axis(a, order[:, None], 2), np.take_along_axis(b, order[:, :, None], 1)
