"""Computes the answer: the pool with the new rows, which are found by following the table entry by entry."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Arrays, Float64Array
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, Tolerance, TrivialAnswer
from harness.operations.kv_append.problem import AppendProblem

Integers = npt.NDArray[np.int64]

SAID_AT_MOST = 3
"""Maximum number of sequences that share a key and are named."""


def new_keys(problem: AppendProblem) -> tuple[Integers, Integers]:
    """Return the sequence and the key of every new token, in the order of K_new."""
    sequences = np.repeat(np.arange(problem.sequences), problem.new_lengths)
    keys = [np.arange(old, length) for old, length in zip(problem.old_lengths, problem.lengths)]
    return sequences, np.concatenate(keys)


def appended(
    problem: AppendProblem, inputs: Arrays, sequences: Integers, keys: Integers, names: Sequence[str] = "KV"
) -> dict[str, np.ndarray]:
    """Return copies of K and V in which token t is key keys[t] of sequence sequences[t].

    `names`: the pools that get the new keys and the new values, in this order.
    """
    pages = inputs["table"][sequences, keys // problem.page_size]
    found = {}
    for name, new in zip(names, ("K_new", "V_new")):
        found[name] = inputs[name].copy()
        # Advanced indexing with a slice in between gives (tokens, kv_heads, head_dim).
        found[name][pages, :, keys % problem.page_size] = inputs[new]
    return {name: found[name] for name in "KV"}


def exact_outputs(problem: AppendProblem, inputs: Arrays, part: Part = WHOLE) -> dict[str, np.ndarray]:
    """Return K and V after the append, in their dtype."""
    return {name: array[part.of(name)] for name, array in appended(problem, inputs, *new_keys(problem)).items()}


def answer(problem: AppendProblem, inputs: Arrays, part: Part = WHOLE) -> dict[str, Float64Array]:
    """Return K and V after the append, in float64."""
    return _widened(exact_outputs(problem, inputs, part))


def tolerance(
    problem: AppendProblem, inputs: Arrays, answer: Mapping[str, Float64Array], numerics: Numerics, part: Part = WHOLE
) -> dict[str, Tolerance]:
    """No error at all."""
    zeros = {name: np.broadcast_to(0.0, array.shape) for name, array in answer.items()}
    return {name: Tolerance(zero, zero) for name, zero in zeros.items()}


def needed_read_bytes(problem: AppendProblem, inputs: Arrays) -> int:
    """Bytes of the new keys and values, all of which are in the answer."""
    return problem.compulsory_write_bytes


def element_in_words(problem: AppendProblem, inputs: Arrays, output: str, index: tuple[int, ...]) -> str:
    """Return which key of which sequence a row of the pool is, such as `key 3 of sequence 1`."""
    page, _, row, _ = index
    sequences, places = np.nonzero(inputs["table"] == page)
    keys = places * problem.page_size + row
    is_key = keys < np.array(problem.lengths)[sequences]
    owners, found = sequences[is_key].tolist(), keys[is_key].tolist()
    if not owners:
        return "no key"
    age = "new " if found[0] >= problem.old_lengths[owners[0]] else ""
    if len(owners) == 1:
        return f"{age}key {found[0]} of sequence {owners[0]}"
    others = f" and {len(owners) - SAID_AT_MOST} more" if len(owners) > SAID_AT_MOST else ""
    return f"{age}key {found[0]} of sequences {', '.join(map(str, owners[:SAID_AT_MOST]))}{others}"


def trivial_answers(problem: AppendProblem, inputs: Arrays) -> dict[str, TrivialAnswer]:
    """K and V of each trivial mistake."""
    return {"the pool before the append": functools.partial(_before, inputs)}


def _before(inputs: Arrays, part: Part) -> dict[str, Float64Array]:
    return _widened({name: inputs[name][part.of(name)] for name in "KV"})


def known_mistakes(
    problem: AppendProblem, inputs: Arrays, tile_keys: int | None = None
) -> Iterator[tuple[str, Mapping[str, Float64Array]]]:
    """K and V in float64 of each mistake, with its name, such as `the answer without the last token`."""
    sequences, keys = new_keys(problem)
    if not len(keys):
        return
    new, pages = (np.array(each, np.int64)[sequences] for each in (problem.new_lengths, problem.sequence_pages))
    room = pages * problem.page_size
    is_last = keys == np.array(problem.lengths)[sequences] - 1
    mistakes: dict[str, tuple[npt.NDArray[np.bool_], int | Integers]] = {
        "the pool before the append": (keys < 0, 0),
        "the answer without the last new token of each sequence": (~is_last, 0),
        "the answer with lengths taken for those before the append": (keys + new < room, new),
        "the answer with every token a row too early": (keys > 0, -1),
        "the answer with every token a row too late": (keys + 1 < room, 1),
    }
    for name, (takes, shift) in mistakes.items():
        fewer = {**inputs, **{each: inputs[each][takes] for each in ("K_new", "V_new")}}
        yield name, _widened(appended(problem, fewer, sequences[takes], (keys + shift)[takes]))
    yield "the answer with K and V exchanged", _widened(appended(problem, inputs, sequences, keys, "VK"))


def _widened(arrays: Arrays) -> dict[str, Float64Array]:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return {name: array.astype(np.float64) for name, array in arrays.items()}
