"""The gradients of ring attention as an operation: which module has which part of it."""

from __future__ import annotations

from typing import ClassVar

from harness.model.operation import operation_named
from harness.operations._across_devices.inputs import regimes_of
from harness.operations._across_devices.operation import divided_operation
from harness.operations._across_devices.properties import changes
from harness.operations.ring_attention.cases import RingBuild, RingCases
from harness.operations.ring_attention_backward.mistakes import known_mistakes
from harness.operations.ring_attention_backward.oracle import answer, tolerance
from harness.operations.ring_attention_backward.problem import RingBackwardProblem
from harness.operations.ring_attention_backward.properties import PROPERTIES

BACKWARD = operation_named("attention-backward")


class RingBackwardBuild(RingBuild):
    """What kernels of gradients have compiled in, for the blocks of a ring."""

    problem_class: ClassVar[type[RingBackwardProblem]] = RingBackwardProblem


CASES = RingCases(BACKWARD, RingBackwardBuild)

OPERATION = divided_operation(
    CASES,
    name="ring-attention-backward",
    idea="dQ, dK and dV of a sequence whose rows are divided over devices, K, V, dK and dV going round",
    regimes=regimes_of(BACKWARD),
    answer=answer,
    tolerance=tolerance,
    properties=PROPERTIES,
    changes=changes,
    known_mistakes=known_mistakes,
)
"""dQ, dK and dV of a sequence divided over devices, after Liu, Zaharia and Abbeel 2023, arXiv 2310.01889, section 3."""
