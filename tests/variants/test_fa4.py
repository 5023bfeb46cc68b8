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
from variants._cute.documents import document_starts
from variants.attention.fa4 import package as fa4
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
    ((SQUARE, SHORT, FEW_KEYS), {"heads": 2, "head_dim": 64, "dtype": BRAIN, "mask": "documents:70+0+60"}),
    (((1, 300, 300), SHORT, FEW_KEYS), {"heads": 2, "head_dim": 64, "dtype": BRAIN, "mask": "causal+documents:40+90"}),
    ((TWO,), {"heads": 4, "kv_heads": 2, "head_dim": 128, "dtype": HALF, "mask": "causal+documents:1+1+130/200+57"}),
    ((SQUARE,), {"heads": 1, "head_dim": 64, "dtype": HALF, "mask": f"documents:{'+'.join(['3'] * 60)}"}),
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
    ((SQUARE, MORE_KEYS, FEW_KEYS), {"heads": 1, "head_dim": 64, "dtype": BRAIN, "mask": "documents:70+0+60"}),
    ((SQUARE, MORE_KEYS, FEW_KEYS), {"heads": 1, "head_dim": 64, "dtype": BRAIN, "mask": "causal+documents:40+90"}),
    (((2, 140, 140),), {"heads": 2, "kv_heads": 1, "head_dim": 64, "dtype": HALF, "mask": "documents:9+99/70+70"}),
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
SANITIZED += [p for p in PROBLEMS if "documents" in str(p.mask) and p.q_len <= 200]


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
    # As on a GPU: a sink far above all scores of a row makes lse infinite, and the second set of inputs may have one.
    overflows = problem.sinks and "of lse are off" in str(row.reason) and "inf instead of" in str(row.reason)
    assert row.verdict == "pass" or overflows, row.reason
    assert row.error_over_budget <= 1


@pytest.mark.needs_cute
@pytest.mark.parametrize("problem", SANITIZED, ids=str)
def test_the_sanitizer_finds_nothing(problem: Any) -> None:
    (row,) = compare(problem, [variant(problem)], sanitize=True).result.rows
    assert (row.verdict, row.findings) == ("pass", ())


@pytest.mark.needs_cute
@pytest.mark.parametrize(("mask", "tiles_per_key"), [("none", 2), ("documents:128+128", 1)])
def test_bytes_are_those_of_tiles_and_belong_to_lines_of_its_source(mask: str, tiles_per_key: int) -> None:
    """Two tiles of 128 rows at head_dim 128: each reads its own rows and the keys that it sees, and stores once."""
    p = Problem(heads=1, q_len=256, kv_len=256, head_dim=128, dtype=HALF, mask=mask)
    inputs = {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in p.inputs}
    execution = emulator().run(p, variant(p).plan(p), inputs)
    launch = execution.launches[-1]
    whole, counted = 256 * 128 * 2, Counter[tuple[str, str]]()
    for site in launch.traffic:
        if not site.buffer.startswith("cu_seqlens"):
            counted[site.buffer, site.kind] += site.requested_bytes
    assert counted == {
        ("Q", "load"): whole,
        ("K", "load"): tiles_per_key * whole,
        ("V", "load"): tiles_per_key * whole,
        ("O", "store"): whole,
        ("lse", "store"): 256 * 4,
    }
    assert {site.file.rpartition("/")[2] for site in launch.traffic if site.kind == "store"} == {"flash_fwd.py"}


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("q_len", "kv_len", "rows", "keys"),
    [
        (9, 9, (0, 2, 5, 9), (0, 2, 5, 9)),
        (5, 9, (0, 0, 1, 5), (0, 2, 5, 9)),  # the first document has no rows
        (11, 9, (0, 2, 4, 7, 11), (0, 0, 2, 5, 9)),  # rows before the first key
    ],
)
def test_where_documents_start(q_len: int, kv_len: int, rows: tuple[int, ...], keys: tuple[int, ...]) -> None:
    problem = Problem(batch=2, q_len=q_len, kv_len=kv_len, mask="causal+documents:9/2+0+3+4", dtype=HALF)
    assert document_starts(problem, 1) == (rows, keys)


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


@pytest.mark.compiles(False)
def test_gradients_of_documents_need_an_aligned_lse() -> None:
    fields = {"heads": 2, "dtype": HALF, "kv_len": 99, "mask": "documents:50+49"}
    assert "264 bytes" in (bwd_fa4.why_unsupported(BackwardProblem(batch=2, q_len=33, **fields)) or "")
    for batch, q_len in ((2, 34), (1, 33)):
        assert bwd_fa4.why_unsupported(BackwardProblem(batch=batch, q_len=q_len, **fields)) is None
