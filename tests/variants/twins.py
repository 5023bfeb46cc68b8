"""Algorithms that are written in CUDA and in Numba. test_twins.py holds the one to the bits, the bytes and the launches
of the other, so that what tests of every variant show of the first is shown of the second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lanes import exhaustive, thorough_unless

from harness.model.discovery import discover
from harness.model.variant import Variant

OPERATIONS = ("attention", "attention-backward", "paged-attention")


def _pairs() -> list[tuple[Variant, Variant]]:
    registry = [variant for variant in discover().registry if variant.operation in OPERATIONS]
    in_numba = {(v.operation, v.algorithm): v for v in registry if v.backend == "numba"}
    in_cuda = [variant for variant in registry if variant.backend == "cupy"]
    return [(v, in_numba[v.operation, v.algorithm]) for v in in_cuda if (v.operation, v.algorithm) in in_numba]


PAIRS = _pairs()
"""Of each such algorithm the variant in CUDA and that in Numba."""


SAMPLED = frozenset(numba.name for _, numba in PAIRS)


def of_one_language(kept: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """The cases for `pytest.mark.parametrize`: those that are not `kept` are not for the default lane.

    A case is a variant or its name, or a tuple that begins with one. Of twins in Numba, which take seconds to compile
    each kernel, the thorough lane runs a sample.
    """
    usual, further = [], []
    for case in cases:
        first = case[0] if isinstance(case, tuple) else case
        (further if getattr(first, "name", first) in SAMPLED and not kept(case) else usual).append(case)
    return [*thorough_unless(kept, usual), *exhaustive(further)]
