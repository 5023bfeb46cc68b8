"""How Q, K and V are drawn: as for attention, for the whole sequence."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.model.cases.regime import Regime, by_name
from harness.operations.attention.inputs import REGIMES as OF_ATTENTION
from harness.operations.ring_attention.problem import RingProblem


def _drawn_as(name: str, rng: np.random.Generator, problem: RingProblem) -> Sequence[npt.NDArray[np.float64]]:
    return OF_ATTENTION[name].draw(rng, problem.whole)


REGIMES = by_name(
    *(Regime(each.name, each.idea, functools.partial(_drawn_as, each.name)) for each in OF_ATTENTION.values())
)
"""Every regime of attention by name."""
