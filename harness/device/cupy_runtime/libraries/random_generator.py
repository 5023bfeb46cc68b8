"""`cupy.random.Generator` with NumPy's random numbers, which differ from cuRAND's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.device.cupy_runtime.libraries.library_memory import LibraryMemory

_DISTRIBUTIONS = (
    "random", "uniform", "integers", "beta", "chisquare", "dirichlet", "exponential", "f", "geometric",
    "hypergeometric", "logseries", "standard_exponential", "poisson", "power", "standard_normal", "gamma",
    "standard_gamma", "binomial",
)  # fmt: skip
_TYPED = frozenset({"random", "integers", "standard_exponential", "standard_normal", "standard_gamma"})
"""Distributions that NumPy draws in several types."""


def _numpy_generator(bit_generator: Any) -> np.random.Generator:
    """The generator of NumPy with the seed of a bit generator of CuPy, which stores it."""
    if not hasattr(bit_generator, "_numpy_generator"):
        bit_generator._numpy_generator = np.random.Generator(np.random.Philox(bit_generator._seed_seq))
    found: np.random.Generator = bit_generator._numpy_generator
    return found


def _distribution(name: str) -> Callable[..., Any]:
    def draw(self: Any, *arguments: Any, out: Any = None, **named: Any) -> Any:
        import cupy

        dtype = named.get("dtype") if name in _TYPED else named.pop("dtype", None)
        if out is not None:
            named["size"] = out.shape
        host = [cupy.asnumpy(each) if isinstance(each, cupy.ndarray) else each for each in arguments]
        host_named = {
            key: cupy.asnumpy(each) if isinstance(each, cupy.ndarray) else each for key, each in named.items()
        }
        drawn = cupy.asarray(getattr(_numpy_generator(self.bit_generator), name)(*host, **host_named), dtype)
        if out is None:
            return drawn
        out[...] = drawn
        return out

    draw.__name__ = name
    return draw


class Generator:
    """Draws from the distributions of CuPy's class."""

    def __init__(self, bit_generator: Any) -> None:
        self.bit_generator = bit_generator


for _name in _DISTRIBUTIONS:
    setattr(Generator, _name, _distribution(_name))


def functions(memory: LibraryMemory) -> dict[str, Any]:
    """What replaces the contents of `cupy.random._generator_api`."""

    def init_curand(generator: int, state: int, seed: int, size: int) -> None:
        memory.explain_once("cuRAND", "random numbers")

    def random_raw(generator: Any, out: Any) -> None:
        out.set(np.asarray(_numpy_generator(generator).integers(0, (1 << 31) - 1, out.shape, np.int32)))

    return {"Generator": Generator, "init_curand": init_curand, "random_raw": random_raw}
