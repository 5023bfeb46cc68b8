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

    @functools.lru_cache(maxsize=1)
    def mistakes(group: tuple[int, ...]) -> Mapping[str, TrivialAnswer]:
        """Attention's, of sequences of one length, whose keys are gathered once for all mistakes."""
        return attention().trivial_answers(posed(problem, group), gathered(problem, inputs, group))

    def answer(name: str, part: Part) -> dict[str, Float64Array]:
        sequences, of_each = asked(problem, part)
        O = np.zeros(problem.q_shape)[part.where]
        for group in by_length(problem, sequences):
            if problem.lengths[group[0]] > 0:
                O[[sequence - sequences.start for sequence in group]] = mistakes(tuple(group))[name](of_each)["O"]
        return {"O": O}

    return {name: functools.partial(answer, name) for name in mistakes((seeing[-1],))}
