"""Wrong answers: of mistakes that paged kernels are known to make, attention's and the table's, and of trivial ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from harness.model.operation import Part, TrivialAnswer
from harness.operations.attention.mistakes.known_mistakes import known_mistakes as mistakes_of_attention
from harness.operations.paged_attention.oracle import answer, attention, gathered, groups_of_part, posed
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
    without_keys = right["lse"].copy()
    for group in groups_of_part(problem):
        if problem.lengths[group.sequences[0]] > 0:
            own = gathered(problem, inputs, group.sequences)
            for name, outputs in mistakes_of_attention(posed(problem, group.sequences), own, tile_keys):
                wrong = found.setdefault(name, {output: array.copy() for output, array in right.items()})
                for output, array in outputs.items():
                    group.write(wrong[output], array)
        else:
            group.write(without_keys, np.full_like(group.of(without_keys), -np.inf))
    yield from found.items()
    if problem.sinks and 0 in problem.lengths:
        yield "the answer without the sinks of sequences that have no keys", {**right, "lse": without_keys}
    table = inputs["table"]
    if problem.sequences > 1:
        # Entries behind a shorter sequence's last page and of evicted ones name no page; rows of the pool that no row
        # sees are NaN anyway.
        others = np.clip(np.roll(table, -1, axis=0), 0, problem.pool_pages - 1)
        yield "the answer with the pages of the next sequence", answer(problem, {**inputs, "table": others})


def trivial_answers(problem: PagedSequences, inputs: Mapping[str, np.ndarray]) -> dict[str, TrivialAnswer]:
    """O of each trivial mistake, shape (sequences, heads, q_len, head_dim) of a part."""
    seeing = [
        sequence for sequence in range(problem.sequences) if problem.lengths[sequence] > 0 and problem.rows[sequence]
    ]
    if not seeing:
        return {}

    @functools.lru_cache(maxsize=1)
    def mistakes(group: tuple[int, ...]) -> Mapping[str, TrivialAnswer]:
        """Attention's, of sequences that are alike, whose keys are gathered once for all mistakes."""
        return attention().trivial_answers(posed(problem, group), gathered(problem, inputs, group))

    def answer_part(name: str, part: Part) -> dict[str, Float64Array]:
        O = np.zeros(problem.o_shape)[part.where]
        for group in groups_of_part(problem, part):
            if problem.lengths[group.sequences[0]] > 0:
                group.write(O, mistakes(group.sequences)[name](group.part)["O"])
        return {"O": O}

    return {name: functools.partial(answer_part, name) for name in mistakes((seeing[-1],))}
