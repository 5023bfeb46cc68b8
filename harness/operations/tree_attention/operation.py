"""Tree attention as an operation. Its oracle and budget are those of ring attention: chunks of keys, put together."""

from __future__ import annotations

from harness.model.operation import operation_named
from harness.operations._across_devices.inputs import regimes_of
from harness.operations._across_devices.mistakes import known_mistakes
from harness.operations._across_devices.operation import divided_operation
from harness.operations._across_devices.oracle import answer, tolerance
from harness.operations._across_devices.properties import PROPERTIES, changes
from harness.operations.tree_attention.cases import TreeBuild, TreeCases

FORWARD = operation_named("attention")
CASES = TreeCases(FORWARD, TreeBuild)

OPERATION = divided_operation(
    CASES,
    name="tree-attention",
    idea="attention of rows that all devices have, with keys that are divided over them",
    regimes=regimes_of(FORWARD),
    answer=answer,
    tolerance=tolerance,
    properties=PROPERTIES,
    changes=changes,
    known_mistakes=known_mistakes,
)
"""Attention with keys divided over devices, after Shyam et al. 2024, arXiv 2408.04093."""
