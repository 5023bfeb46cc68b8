"""Wrong answers of known mistakes: attention's own, and those of putting chunks together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from harness.model.array_types import Float64Array
from harness.model.numerics import Numerics
from harness.operations._across_devices.oracle import ChunkAnswer, answer, attention, chunk_answers
from harness.operations._across_devices.problem import DividedProblem

Answers = Iterator[tuple[str, Mapping[str, Float64Array]]]


def known_mistakes(problem: DividedProblem, inputs: Mapping[str, np.ndarray], tile_keys: int | None = None) -> Answers:
    """Yield the answer of each mistake with its name."""
    yield from attention().known_mistakes(problem.whole, inputs, tile_keys)
    chunks = chunk_answers(problem, inputs, Numerics())
    if len(chunks) > 1:
        yield "the mean over devices, without their lse", _mean(chunks)
    per_device = len(problem.chunks[0])
    own = answer(problem, inputs)
    for device in range(problem.devices if problem.devices > 1 else 0):
        first = device * per_device
        others = chunks[:first] + chunks[first + per_device :]
        wrong = {name: array.copy() for name, array in own.items()}
        wrong["O"], wrong["lse"] = _merged(others)
        yield f"the answer without the keys of device {device}", wrong


def _mean(chunks: list[ChunkAnswer]) -> dict[str, Float64Array]:
    with np.errstate(all="ignore"):
        seen = sum((chunk.lse != -np.inf).astype(np.float64) for chunk in chunks)
        O = sum(np.where(chunk.lse[..., None] != -np.inf, chunk.O, 0) for chunk in chunks)
        return {"O": O / np.maximum(seen, 1)[..., None], "lse": _merged(chunks)[1]}


def _merged(chunks: list[ChunkAnswer]) -> tuple[Float64Array, Float64Array]:
    with np.errstate(all="ignore"):
        lse = np.logaddexp.reduce([chunk.lse for chunk in chunks])
        O = np.zeros_like(chunks[0].O)
        for chunk in chunks:
            weight = np.where(chunk.lse == -np.inf, 0, np.exp(chunk.lse - lse))[..., None]
            O += np.where(weight == 0, 0, weight * chunk.O)
        return O, lse
