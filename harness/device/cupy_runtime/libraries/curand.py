"""Random numbers, as `cupy_backends.cuda.libs.curand` draws them. The numbers differ from cuRAND's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.device.cupy_runtime.libraries.library_memory import LibraryMemory

_CONSTANTS = {
    "CURAND_RNG_PSEUDO_DEFAULT": 100, "CURAND_RNG_PSEUDO_XORWOW": 101, "CURAND_RNG_PSEUDO_MRG32K3A": 121,
    "CURAND_RNG_PSEUDO_MTGP32": 141, "CURAND_RNG_PSEUDO_MT19937": 142, "CURAND_RNG_PSEUDO_PHILOX4_32_10": 161,
    "CURAND_RNG_QUASI_DEFAULT": 200, "CURAND_RNG_QUASI_SOBOL32": 201, "CURAND_RNG_QUASI_SCRAMBLED_SOBOL32": 202,
    "CURAND_RNG_QUASI_SOBOL64": 203, "CURAND_RNG_QUASI_SCRAMBLED_SOBOL64": 204, "CURAND_ORDERING_PSEUDO_BEST": 100,
    "CURAND_ORDERING_PSEUDO_DEFAULT": 101, "CURAND_ORDERING_PSEUDO_SEEDED": 102, "CURAND_ORDERING_QUASI_DEFAULT": 201,
}  # fmt: skip
_VERSION = 10310
Draw = Callable[..., npt.NDArray[Any]]


def _uniform(random: np.random.Generator, count: int) -> npt.NDArray[np.float64]:
    """Numbers above 0 and up to 1, as cuRAND draws them."""
    return 1.0 - random.random(count)


_DRAWS: dict[str, tuple[npt.DTypeLike, Draw]] = {
    "generate": (np.uint32, lambda random, n: random.integers(0, 1 << 32, n, np.uint32)),
    "generateLongLong": (np.uint64, lambda random, n: random.integers(0, 1 << 64, n, np.uint64)),
    "generateUniform": (np.float32, _uniform),
    "generateUniformDouble": (np.float64, _uniform),
    "generateNormal": (np.float32, lambda random, n, mean, stddev: random.normal(mean, stddev, n)),
    "generateNormalDouble": (np.float64, lambda random, n, mean, stddev: random.normal(mean, stddev, n)),
    "generateLogNormal": (np.float32, lambda random, n, mean, stddev: random.lognormal(mean, stddev, n)),
    "generateLogNormalDouble": (np.float64, lambda random, n, mean, stddev: random.lognormal(mean, stddev, n)),
    "generatePoisson": (np.uint32, lambda random, n, lam: random.poisson(lam, n)),
}
"""Type of the elements, and how they are drawn: by a generator, their number, and parameters."""


class CURANDError(RuntimeError):
    """The error of CuPy's module."""


def functions(memory: LibraryMemory) -> dict[str, Any]:
    """The contents of `cupy_backends.cuda.libs.curand`."""
    generators: dict[int, np.random.Generator] = {}
    handles = itertools.count(1)

    def create(rng_type: int) -> int:
        memory.explain_once("cuRAND", "random numbers")
        handle = next(handles)
        generators[handle] = np.random.Generator(np.random.Philox(0))
        return handle

    def seed(generator: int, seed: int) -> None:
        generators[generator] = np.random.Generator(np.random.Philox(int(seed)))

    def filling(dtype: npt.DTypeLike, draw: Draw) -> Callable[..., None]:
        def fill(generator: int, outputPtr: int, num: int, *parameters: float) -> None:
            drawn = draw(generators[generator], int(num), *parameters)
            memory.array(outputPtr, dtype, int(num), written=True)[:] = drawn

        return fill

    return {
        **_CONSTANTS,
        "CURANDError": CURANDError,
        "createGenerator": create,
        "destroyGenerator": lambda generator: generators.pop(generator, None),
        "getVersion": lambda: _VERSION,
        "setStream": lambda generator, stream: None,
        "setPseudoRandomGeneratorSeed": seed,
        "setGeneratorOffset": lambda generator, offset: generators[generator].bit_generator.advance(int(offset)),  # type: ignore[attr-defined]
        "setGeneratorOrdering": lambda generator, order: None,
        **{name: filling(*row) for name, row in _DRAWS.items()},
    }
