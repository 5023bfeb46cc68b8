"""The gradients of ring attention as an operation: which module has which part of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np

from harness.model.array_types import Float64Array
from harness.model.cases.property import Property, Trial
from harness.model.numerics import Numerics
from harness.model.operation import operation_named
from harness.operations._across_devices.operation import divided_operation
from harness.operations._across_devices.properties import PROPERTIES as OF_RINGS
from harness.operations.ring_attention.cases import RingBuild, RingCases
from harness.operations.ring_attention_backward.oracle import OF_KEYS, answer, backward, chunk_gradients, tolerance
from harness.operations.ring_attention_backward.problem import RingBackwardProblem


class RingBackwardBuild(RingBuild):
    """What kernels of gradients have compiled in, for the blocks of a ring."""

    problem_class: ClassVar[type[RingBackwardProblem]] = RingBackwardProblem


CASES = RingCases(operation_named("attention-backward"), RingBackwardBuild)

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


OF_GRADIENTS = operation_named("attention-backward").properties
WEIGHTS_SUM = OF_GRADIENTS["weights-sum"]


def weights_sum(trial: Trial) -> str | None:
    """A row's weights add up to 1, over all devices."""
    return WEIGHTS_SUM.violation(dataclasses.replace(trial, problem=trial.problem.whole))


PROPERTIES: dict[str, Property] = {
    **OF_RINGS,
    "gradient-sum": OF_GRADIENTS["gradient-sum"],
    "weights-sum": dataclasses.replace(WEIGHTS_SUM, violation=weights_sum),
}
"""Every property by name: those of a ring, and those of gradients."""


OPERATION = divided_operation(
    CASES,
    name="ring-attention-backward",
    idea="dQ, dK and dV of a sequence whose rows are divided over devices, K, V, dK and dV going round",
    answer=answer,
    tolerance=tolerance,
    properties=PROPERTIES,
    known_mistakes=known_mistakes,
)
"""dQ, dK and dV of a sequence divided over devices, after Liu, Zaharia and Abbeel 2023, arXiv 2310.01889, section 3."""
