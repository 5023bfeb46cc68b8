"""FlashAttention-4's own kernels for Blackwell (`sm_100a`): right within the error budget."""

from __future__ import annotations

import re
from typing import Any

import pytest
from test_fa4 import BRAIN, HALF, Build, problems, variant

from harness import Problem, UnsupportedProblem, compare
from harness.operations.attention_backward.problem import BackwardProblem
from variants import _cute
from variants.attention.fa4 import package

ARCH = "sm_100a"
TILES, SHORT_ROWS = (
    ((1, 300, 300), (1, 257, 1000), (2, 200, 300), (1, 400, 1)),
    ((1, 128, 384), (1, 1, 1), (2, 100, 1000), (1, 65, 127)),
)
"""Batch, rows and keys. Up to 128 rows, a block has one tile of rows and two of S, otherwise two tiles of rows."""
FORWARD: list[Build] = [
    (TILES, {"heads": 1, "head_dim": 128, "dtype": BRAIN}),
    (SHORT_ROWS, {"heads": 1, "head_dim": 128, "dtype": BRAIN}),
    (((1, 260, 600), (1, 513, 129), (2, 129, 64), (1, 1000, 70), (3, 150, 150)),
     {"heads": 1, "head_dim": 64, "dtype": BRAIN}),
    (((1, 65, 65), (1, 7, 513), (2, 128, 128), (1, 1, 1), (1, 33, 1000)), {"heads": 1, "head_dim": 64, "dtype": BRAIN}),
    (((1, 1000, 1000), (1, 257, 129), (2, 193, 300), (1, 300, 135)),
     {"heads": 1, "head_dim": 64, "dtype": BRAIN, "mask": "causal"}),
    (((1, 200, 300), (1, 300, 135), (2, 260, 260), (1, 700, 700)),
     {"heads": 2, "head_dim": 128, "dtype": BRAIN, "mask": "causal"}),
    (((1, 200, 300), (1, 129, 129), (2, 300, 100)),
     {"heads": 4, "kv_heads": 2, "head_dim": 64, "dtype": BRAIN, "mask": "causal"}),
    (((1, 17, 900), (1, 1, 400), (2, 32, 129), (1, 5, 1)),
     {"heads": 4, "kv_heads": 1, "head_dim": 128, "dtype": BRAIN}),
    (((1, 140, 200), (2, 70, 135), (1, 500, 500)), {"heads": 4, "kv_heads": 2, "head_dim": 128, "dtype": HALF}),
]  # fmt: skip
BACKWARD: list[Build] = [
    (((1, 200, 200), (1, 140, 300), (2, 260, 140), (1, 1, 1), (1, 600, 500)),
     {"heads": 1, "head_dim": 128, "dtype": BRAIN}),
    (((1, 200, 200), (1, 140, 300), (2, 260, 140), (1, 1, 70)), {"heads": 1, "head_dim": 64, "dtype": BRAIN}),
    (((1, 200, 200), (1, 140, 300), (2, 260, 140), (1, 600, 600)),
     {"heads": 1, "head_dim": 128, "dtype": BRAIN, "mask": "causal"}),
    (((1, 200, 200), (1, 140, 300), (2, 260, 140), (1, 1000, 1000)),
     {"heads": 1, "head_dim": 64, "dtype": BRAIN, "mask": "causal"}),
    (((1, 140, 200), (2, 70, 135), (1, 300, 300), (1, 129, 1)),
     {"heads": 2, "kv_heads": 1, "head_dim": 64, "dtype": HALF}),
    (((1, 140, 200), (2, 70, 135), (1, 300, 300)),
     {"heads": 4, "kv_heads": 2, "head_dim": 128, "dtype": BRAIN, "mask": "causal"}),
]  # fmt: skip
PROBLEMS = [*problems(Problem, FORWARD), *problems(BackwardProblem, BACKWARD)]


@pytest.mark.needs_cute
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_is_right_within_the_budget(problem: Any) -> None:
    (row,) = compare(problem, [variant(problem)], arch=ARCH).result.rows
    assert row.verdict == "pass", row.reason
    assert row.error_over_budget <= 1


@pytest.mark.needs_cute
@pytest.mark.parametrize(
    ("kind", "rows", "keys", "found", "reason"),
    [
        (Problem, 129, 300, "WAR race", r"(?s)with the load at .* still in flight: its warp has.*flash_fwd_sm100\.py"),
        (BackwardProblem, 140, 140, "store not awaited", "flash_bwd_sm100.py.* under way when the block ended"),
    ],
)
def test_what_the_sanitizer_finds(kind: Any, rows: int, keys: int, found: str, reason: str) -> None:
    """The forward pass has no `tcgen05.wait::ld`; the last store of dK and dV of a block is neither committed nor
    waited for. The PTX ISA asks for both."""
    problem = kind(heads=1, q_len=rows, kv_len=keys, head_dim=64, dtype=BRAIN)
    (row,) = compare(problem, [variant(problem)], arch=ARCH, sanitize=True).result.rows
    assert {finding.kind for finding in row.findings} == {found}
    for finding in row.findings:
        assert re.search(reason, finding.message), finding.message


@pytest.mark.needs_cute
def test_the_architecture_chooses_the_kernels() -> None:
    problem = Problem(heads=1, q_len=300, kv_len=300, head_dim=64, dtype=BRAIN)
    for arch, is_blackwells in (("sm_90", False), ("sm_90a", False), ("sm_100", True), ("sm_100a", True)):
        (launch,) = package.plan(problem, arch).launches
        assert ("tcgen05.mma" in launch.kernel.function.ptx) == is_blackwells, arch


@pytest.mark.compiles(False)
def test_head_dims_that_blackwells_kernels_do_not_have() -> None:
    problem = Problem(head_dim=192, dtype=HALF)
    _cute.require_support("fa4", problem, _cute.target_of("sm_90"))
    with pytest.raises(UnsupportedProblem, match="head_dim is 192"):
        _cute.require_support("fa4", problem, _cute.target_of("sm_100"))
