"""FlashAttention-4's own kernels: right within the error budget, free of findings, and their bytes where counted."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from emulators import emulator

from harness import Problem, Registry, UsageError, Variant, compare
from harness.operations.attention_backward.problem import BackwardProblem
from variants import _cute
from variants.attention import fa4
from variants.attention_backward import fa4 as bwd_fa4

SQUARE, FEW_KEYS, TWO, DECODING = (1, 200, 200), (1, 260, 135), (2, 193, 300), (1, 1, 400)
SHORT, TINY, PAIR = (1, 130, 200), (1, 1, 1), (2, 65, 129)
"""Batch, rows and keys. Few are multiples of a tile."""
HALF, BRAIN = "float16", "bfloat16"

Build = tuple[tuple[tuple[int, int, int], ...], dict[str, Any]]
FORWARD: list[Build] = [
    ((SQUARE, PAIR, TINY, (1, 320, 70)), {"heads": 2, "head_dim": 64, "dtype": BRAIN}),
    ((SQUARE, FEW_KEYS, TWO), {"heads": 1, "head_dim": 128, "dtype": BRAIN, "mask": "causal"}),
    ((SQUARE, FEW_KEYS, TWO), {"heads": 1, "head_dim": 64, "dtype": BRAIN, "mask": "causal"}),
    ((SHORT, DECODING, (2, 70, 70)), {"heads": 4, "kv_heads": 2, "head_dim": 128, "dtype": HALF}),
    ((SHORT, (1, 1, 200), (2, 33, 65)), {"heads": 1, "head_dim": 256, "dtype": BRAIN}),
    ((SQUARE, PAIR, TINY), {"heads": 1, "head_dim": 96, "dtype": BRAIN}),
    (((1, 260, 260), (1, 300, 135), (1, 257, 300)),
     {"heads": 4, "kv_heads": 1, "head_dim": 64, "dtype": HALF, "mask": "causal"}),
    ((SQUARE, FEW_KEYS, TWO), {"heads": 1, "head_dim": 96, "dtype": HALF, "mask": "causal"}),
    ((SQUARE, FEW_KEYS, TWO), {"heads": 1, "head_dim": 64, "dtype": BRAIN, "mask": "causal+window:50"}),
    ((SQUARE, FEW_KEYS, TWO), {"heads": 1, "head_dim": 128, "dtype": BRAIN, "mask": "causal", "softcap": 20.0}),
    ((SQUARE, FEW_KEYS, (1, 193, 230)), {"heads": 1, "head_dim": 256, "dtype": HALF, "mask": "causal"}),
    ((SHORT, (1, 40, 300)), {"heads": 2, "head_dim": 128, "dtype": BRAIN, "sinks": True}),
    (((1, 100, 200), FEW_KEYS), {"heads": 1, "head_dim": 72, "dtype": HALF}),
]  # fmt: skip
"""Shapes of problems that the same compiled kernel computes, and the problems' other fields."""
MORE_KEYS, WIDE_SHAPES = (1, 140, 300), ((1, 70, 100), (1, 130, 60))
BACKWARD: list[Build] = [
    ((SQUARE, MORE_KEYS), {"heads": 2, "head_dim": 64, "dtype": BRAIN}),
    ((SQUARE, MORE_KEYS, (2, 260, 140)), {"heads": 1, "head_dim": 128, "dtype": BRAIN, "mask": "causal"}),
    ((SQUARE, MORE_KEYS, (2, 260, 140)), {"heads": 1, "head_dim": 64, "dtype": HALF, "mask": "causal"}),
    ((SQUARE, (1, 140, 260)), {"heads": 1, "head_dim": 128, "dtype": BRAIN}),
    (((1, 140, 140), (2, 70, 135)), {"heads": 2, "kv_heads": 1, "head_dim": 64, "dtype": HALF}),
    ((SQUARE, MORE_KEYS), {"heads": 1, "head_dim": 96, "dtype": BRAIN, "mask": "causal"}),
    (WIDE_SHAPES, {"heads": 1, "head_dim": 256, "dtype": BRAIN}),
    ((SQUARE, MORE_KEYS), {"heads": 1, "head_dim": 64, "dtype": BRAIN, "mask": "causal+window:60"}),
    (WIDE_SHAPES, {"heads": 1, "head_dim": 256, "dtype": BRAIN, "mask": "causal"}),
    (((1, 140, 200), (2, 70, 135)), {"heads": 4, "kv_heads": 2, "head_dim": 128, "dtype": HALF, "mask": "causal"}),
    (((1, 140, 200),), {"heads": 1, "head_dim": 96, "dtype": HALF}),
]


def problems(kind: Any, builds: list[Build]) -> list[Any]:
    """Every problem of a list."""
    return [
        kind(batch=batch, q_len=q_len, kv_len=kv_len, **fields)
        for shapes, fields in builds
        for batch, q_len, kv_len in shapes
    ]


PROBLEMS = [*problems(Problem, FORWARD), *problems(BackwardProblem, BACKWARD)]
SANITIZED = [*problems(Problem, [(shapes[:1], fields) for shapes, fields in FORWARD[:7]])]
SANITIZED += problems(BackwardProblem, [(shapes[:1], fields) for shapes, fields in (*BACKWARD[:5], BACKWARD[6])])


def variant(problem: Any) -> Variant:
    """The variant of the problem's operation, to run in this process, which has then imported PyTorch once."""
    registry = Registry()
    fa4.register(registry)
    bwd_fa4.register(registry)
    found = registry.get("fa4" if problem.operation == "attention" else "bwd-fa4")
    return dataclasses.replace(found, name=f"{found.name}-here")


@pytest.mark.needs_cute
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_is_right_within_the_budget(problem: Any) -> None:
    (row,) = compare(problem, [variant(problem)]).result.rows
    assert row.verdict == "pass", row.reason
    assert row.error_over_budget <= 1


@pytest.mark.needs_cute
@pytest.mark.parametrize("problem", SANITIZED, ids=str)
def test_the_sanitizer_finds_nothing(problem: Any) -> None:
    (row,) = compare(problem, [variant(problem)], sanitize=True).result.rows
    assert (row.verdict, row.findings) == ("pass", ())


@pytest.mark.needs_cute
def test_bytes_are_those_of_tiles_and_belong_to_lines_of_its_source() -> None:
    """Two tiles of 128 rows at head_dim 128: each reads its own rows and all keys, and stores once."""
    p = Problem(heads=1, q_len=256, kv_len=256, head_dim=128, dtype=HALF)
    inputs = {name: np.zeros(p.q_shape, np.float16) for name in "QKV"}
    execution = emulator().run(p, variant(p).plan(p), inputs)
    (launch,) = execution.launches
    whole, counted = 256 * 128 * 2, Counter[tuple[str, str]]()
    for site in launch.traffic:
        counted[site.buffer, site.kind] += site.requested_bytes
    assert counted == {
        ("Q", "load"): whole,
        ("K", "load"): 2 * whole,
        ("V", "load"): 2 * whole,
        ("O", "store"): whole,
        ("lse", "store"): 256 * 4,
    }
    assert {site.file.rpartition("/")[2] for site in launch.traffic if site.kind == "store"} == {"flash_fwd.py"}


@pytest.mark.compiles(False)
def test_without_its_packages_it_names_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fa4, bwd_fa4):
        monkeypatch.setattr(_cute, "versions", lambda: None)
        registry = Registry()
        module.register(registry)
        assert not list(registry)
        with pytest.raises(UsageError, match=rf"variant '{module.NAME}' is not available: .*pip install 'flash-attn-4"):
            registry.get(module.NAME)


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"dtype": "float32"}, "takes float16 and bfloat16"),
        ({"head_dim": 68}, "multiples of 8 up to 256"),
        ({"head_dim": 264}, "multiples of 8 up to 256"),
        ({"scale": -1.0}, "above 0"),
    ],
)
def test_what_it_does_not_take(fields: dict[str, Any], told: str) -> None:
    assert told in (_cute.unsupported(Problem(**{"dtype": HALF, **fields})) or "")
    assert _cute.unsupported(Problem(dtype=HALF, head_dim=256)) is None
