"""One of PyTorch's ways to attention as a contender: what of a problem it is handed, and O as its output."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from harness.model.contenders.torch_contender import Tensors, TorchContender
from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem


def require_features(name: str, problem: Problem, takes: Sequence[str] = ()) -> None:
    """Raise `UnsupportedProblem` where scores or weights become what a library does not `take`."""
    if problem.dropout:
        reason = "it drops weights by its own random numbers, so its result could not be checked"
        raise UnsupportedProblem(name, reason)
    others = [feature for feature in problem.score_features if feature not in takes]
    if others:
        raise UnsupportedProblem(name, f"not passed to it: {' and '.join(others)}")


class TorchAttention(TorchContender):
    """Times the forward pass. Whoever wants gradients asks `attend` for an O that has a history."""

    def __init__(self, name: str, stage: Any, takes: Sequence[str] = ()) -> None:
        """`takes`: the score features that the library supports. Raises `UnsupportedProblem` for any other."""
        require_features(name, stage.problem, takes)
        super().__init__(name, stage)
        self._problem: Problem = stage.problem

    @abstractmethod
    def attend(self, given: Tensors) -> Any:
        """O of a set of inputs by name, on PyTorch's current stream, without waiting."""

    def _run(self, inputs: int) -> Tensors:
        return {"O": self.attend(self._inputs[inputs])}
