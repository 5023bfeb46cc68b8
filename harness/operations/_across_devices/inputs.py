"""How the inputs are drawn: as the operation draws them that is divided over devices, for the whole sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.cases.regime import Regime
from harness.model.operation import Operation
from harness.operations._across_devices.problem import DividedProblem


@dataclass(frozen=True)
class DrawnWhole:
    """Draws all inputs of the whole sequence. It can be sent to worker processes."""

    regime: Regime

    def __call__(self, rng: np.random.Generator, problem: DividedProblem) -> Sequence[npt.NDArray[np.float64]]:
        """Return Q, K, V and the others, in the order of the problem's inputs."""
        return self.regime.draw(rng, problem.whole)


def regimes_of(operation: Operation) -> Mapping[str, Regime]:
    """Return every regime of the operation by name, for the problems of a ring."""
    return {name: Regime(name, each.idea, DrawnWhole(each)) for name, each in operation.regimes.items()}
