"""Ring attention as an operation: which module has which part of it."""

from __future__ import annotations

from harness.model.operation import operation_named
from harness.operations._across_devices.mistakes import known_mistakes
from harness.operations._across_devices.operation import divided_operation
from harness.operations._across_devices.oracle import answer, tolerance
from harness.operations._across_devices.properties import PROPERTIES
from harness.operations.ring_attention.cases import RingBuild, RingCases

CASES = RingCases(operation_named("attention"), RingBuild)

OPERATION = divided_operation(
    CASES,
    name="ring-attention",
    idea="attention of a sequence whose rows are divided over devices, K and V going round",
    answer=answer,
    tolerance=tolerance,
    properties=PROPERTIES,
    known_mistakes=known_mistakes,
)
"""Attention of a sequence divided over devices, after Liu, Zaharia and Abbeel 2023, arXiv 2310.01889."""
