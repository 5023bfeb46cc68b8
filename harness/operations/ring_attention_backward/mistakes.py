"""Wrong answers of known mistakes in summing gradients over devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from harness.model.numerics import Numerics
from harness.operations.ring_attention_backward.oracle import OF_KEYS, answer, backward, chunk_gradients
from harness.operations.ring_attention_backward.problem import RingBackwardProblem

Float64Array = npt.NDArray[np.float64]
Answers = Iterator[tuple[str, Mapping[str, Float64Array]]]


def known_mistakes(
    problem: RingBackwardProblem, inputs: Mapping[str, np.ndarray], tile_keys: int | None = None
) -> Answers:
    """Yield the answer of each mistake with its name."""
    yield from backward().known_mistakes(problem.whole, inputs, tile_keys)
    if problem.devices == 1:
        return
    chunks, own = chunk_gradients(problem, inputs, Numerics()), answer(problem, inputs)
    per_device = len(problem.chunks[0])
    for device in range(problem.devices):
        parts = chunks[device * per_device : (device + 1) * per_device]
        without = {name: own[name] - sum(part.gradients[name] for part in parts) for name in OF_KEYS}
        yield f"dK and dV without the rows of device {device}", {**own, **without}
