"""Answers that are wrong in a trivial way, for `Operation.trivial_answers`: scores ignored, or half of the keys."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from harness.model.operation import Part, TrivialAnswer
from harness.operations.attention.oracle import Block, answer_of, over_blocks, shapes_of
from harness.operations.attention.problem import Problem

Float64Array = npt.NDArray[np.float64]


def trivial_answers(problem: Problem, inputs: Mapping[str, np.ndarray]) -> dict[str, TrivialAnswer]:
    """O of each trivial mistake, of a part's shape."""
    mistakes = {"the mean of V": _equal_weights, "half of the keys": _half_of_the_keys}
    return {name: functools.partial(_answer, problem, inputs, mistake) for name, mistake in mistakes.items()}


def _answer(
    problem: Problem, inputs: Mapping[str, np.ndarray], mistake: Callable[[Block], Block], part: Part
) -> dict[str, Float64Array]:
    O = np.empty(shapes_of(problem, part)[0])

    def answer_block(block: Block) -> None:
        O[block.where] = answer_of(mistake(block))["O"]

    over_blocks(problem, inputs, answer_block, part)
    return {"O": O}


def _equal_weights(block: Block) -> Block:
    """All keys that a row sees have the same weight."""
    return dataclasses.replace(block, scores=np.where(block.visible, 0.0, -np.inf))


def _half_of_the_keys(block: Block) -> Block:
    """Each row loses the second half of the keys that it sees; a sink stays."""
    sink = block.rule.sinks is not None
    rank = np.cumsum(block.visible, axis=-1)
    keys: npt.NDArray[np.intp] = rank[..., -1:] - sink
    visible = block.visible & (2 * rank <= keys + 1)
    if sink:
        visible[..., -1] = block.visible[..., -1]
    return dataclasses.replace(block, visible=visible, scores=np.where(visible, block.scores, -np.inf))
