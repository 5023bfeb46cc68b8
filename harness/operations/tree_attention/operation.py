"""Tree attention as an operation. Its oracle and budget are those of ring attention: chunks of keys, put together."""

from __future__ import annotations

from harness.model.operation import operation_named
from harness.operations._across_devices.mistakes import known_mistakes
from harness.operations._across_devices.operation import divided_operation
from harness.operations._across_devices.oracle import answer, tolerance
from harness.operations._across_devices.properties import PROPERTIES
from harness.operations.tree_attention.cases import TreeBuild, TreeCases

CASES = TreeCases(operation_named("attention"), TreeBuild)

OPERATION = divided_operation(
    CASES,
    name="tree-attention",
    idea="attention of rows that all devices have, with keys that are divided over them",
    answer=answer,
    tolerance=tolerance,
    properties=PROPERTIES,
    known_mistakes=known_mistakes,
)
"""Attention with keys divided over devices, after Shyam et al. 2024, arXiv 2408.04093."""
