"""Wrong answers: of mistakes that paged kernels are known to make, attention's and the table's, and of trivial ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from harness.model.operation import Part, TrivialAnswer
from harness.operations.attention.mistakes.known_mistakes import known_mistakes as mistakes_of_attention
from harness.operations.paged_attention.oracle import answer, attention, by_length, gathered, posed, sequences_of_part
from harness.operations.paged_attention.sequences import PagedSequences

Float64Array = npt.NDArray[np.float64]
Answers = Iterator[tuple[str, Mapping[str, Float64Array]]]


def known_mistakes(problem: PagedSequences, inputs: Mapping[str, np.ndarray], tile_keys: int | None = None) -> Answers:
    """O and lse in float64 of each mistake, whole, with its name, such as `the answer without the last key`.

    A mistake that some sequences are too short for is made in the others alone. `tile_keys`: keys per tile, where the
    variant declares them.
    """
    right = answer(problem, inputs)
    found: dict[str, dict[str, Float64Array]] = {}
    for group in by_length(problem, range(problem.sequences)):
        if problem.lengths[group[0]] > 0:
            own = gathered(problem, inputs, group)
            for name, outputs in mistakes_of_attention(posed(problem, group), own, tile_keys):
                wrong = found.setdefault(name, {output: array.copy() for output, array in right.items()})
                for output, array in outputs.items():
                    wrong[output][group] = array
    yield from found.items()
    if problem.sinks and 0 in problem.lengths:
        empty = np.array(problem.lengths) == 0
        lse = np.where(empty[:, None, None], -np.inf, right["lse"])
        yield "the answer without the sinks of sequences that have no keys", {**right, "lse": lse}
    table = inputs["table"]
    if problem.sequences > 1:
        # Entries behind a shorter sequence's last page and of evicted ones name no page; rows of the pool that no row
        # sees are NaN anyway.
        others = np.clip(np.roll(table, -1, axis=0), 0, problem.pool_pages - 1)
        yield "the answer with the pages of the next sequence", answer(problem, {**inputs, "table": others})


def trivial_answers(problem: PagedSequences, inputs: Mapping[str, np.ndarray]) -> dict[str, TrivialAnswer]:
    """O of each trivial mistake, shape (sequences, heads, q_len, head_dim) of a part."""
    seeing = [sequence for sequence in range(problem.sequences) if problem.lengths[sequence] > 0]
    if not seeing:
        return {}

    @functools.lru_cache(maxsize=1)
    def mistakes(group: tuple[int, ...]) -> Mapping[str, TrivialAnswer]:
        """Attention's, of sequences of one length, whose keys are gathered once for all mistakes."""
        return attention().trivial_answers(posed(problem, group), gathered(problem, inputs, group))

    def answer_part(name: str, part: Part) -> dict[str, Float64Array]:
        sequences, of_each = sequences_of_part(problem, part)
        O = np.zeros(problem.o_shape)[part.where]
        for group in by_length(problem, sequences):
            if problem.lengths[group[0]] > 0:
                O[[sequence - sequences.start for sequence in group]] = mistakes(tuple(group))[name](of_each)["O"]
        return {"O": O}

    return {name: functools.partial(answer_part, name) for name in mistakes((seeing[-1],))}
