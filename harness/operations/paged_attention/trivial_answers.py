"""Answers that are wrong in a trivial way, for `Operation.trivial_answers`: attention's, sequence by sequence."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from harness.model.operation import Part, TrivialAnswer
from harness.operations.paged_attention.oracle import asked, attention, by_length, gathered, posed
from harness.operations.paged_attention.problem import PagedProblem

Float64Array = npt.NDArray[np.float64]


def trivial_answers(problem: PagedProblem, inputs: Mapping[str, np.ndarray]) -> dict[str, TrivialAnswer]:
    """O of each trivial mistake, shape (sequences, heads, q_len, head_dim) of a part."""
    seeing = [sequence for sequence in range(problem.sequences) if problem.lengths[sequence] > 0]
    if not seeing:
        return {}
    names = attention().trivial_answers(posed(problem, seeing[:1]), gathered(problem, inputs, seeing[:1]))
    return {name: functools.partial(_answer, problem, inputs, name) for name in names}


def _answer(problem: PagedProblem, inputs: Mapping[str, np.ndarray], name: str, part: Part) -> dict[str, Float64Array]:
    sequences, of_each = asked(problem, part)
    O = np.zeros(problem.q_shape)[part.where]
    for group in by_length(problem, sequences):
        if problem.lengths[group[0]] > 0:
            mistakes = attention().trivial_answers(posed(problem, group), gathered(problem, inputs, group))
            O[[sequence - sequences.start for sequence in group]] = mistakes[name](of_each)["O"]
    return {"O": O}
