"""What a GPU answered to whole variants, and how far the emulator's answers may be from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem
from scripts.recording.archive import pack, unpack

Array = npt.NDArray[Any]

_KERNELS: list[dict[str, Any]] = [
    {"head_dim": 64},
    {"head_dim": 20},
    {"head_dim": 48, "dtype": "float16"},
    {"head_dim": 33, "dtype": "bfloat16"},
]
CASES: list[tuple[dict[str, Any], str]] = [
    # Without a scale all scores are zero: exp(0) is 1 on any machine, and all else is rounded as IEEE says.
    *(({"q_len": 33, "kv_len": 70, "scale": 0.0, **kernel}, "normal") for kernel in _KERNELS),
    *(({"q_len": 70, "kv_len": 33, "scale": 0.0, "mask": "causal", **kernel}, "normal") for kernel in _KERNELS),
    # A head dimension that is a power of two keeps equal scores equal.
    ({"q_len": 40, "kv_len": 65, "head_dim": 64}, "constant"),
    *(({"q_len": 33, "kv_len": 70, **kernel}, "normal") for kernel in _KERNELS),
    *(
        ({"q_len": 40, "kv_len": 97, "mask": "causal", "heads": 4, "kv_heads": 2, **kernel}, "normal")
        for kernel in _KERNELS
    ),
    *(
        ({"heads": 1, "q_len": 17, "kv_len": 70, "head_dim": 20}, regime)
        for regime in ("hot", "negative", "rising", "falling", "needle", "offset")
    ),
    ({"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 1, "kv_len": 300}, "normal"),
    ({"heads": 1, "q_len": 20, "kv_len": 40, "head_dim": 128}, "normal"),
    # Windows: tiles before and behind them, rows that see nothing.
    *(
        ({"q_len": 70, "kv_len": 97, "mask": mask, "head_dim": 48, "dtype": "float16"}, "normal")
        for mask in ("window:20,5", "causal+window:30")
    ),
    ({"q_len": 70, "kv_len": 33, "mask": "causal+window:20", "scale": 0.0}, "normal"),
    # Other masks, and weights that drop out.
    *(
        ({"q_len": 70, "kv_len": 97, "mask": mask, "scale": 0.0, **kernel}, "normal")
        for mask in ("documents:40+1+56", "causal+prefix:50", "blocks:24x20,3,heads", "flashmask:4,3")
        for kernel in ({}, {"dtype": "float16"})
    ),
    *(
        ({"q_len": 70, "kv_len": 97, "dropout": 0.2, "dropout_seed": 7, "scale": 0.0, **kernel}, "normal")
        for kernel in ({}, {"dtype": "float16"})
    ),
]
"""Problem and regime. Few kernels, so that there is little to compile."""
SEED = 11


@dataclass(frozen=True)
class Recorded:
    """One variant's answer to one case."""

    case: int
    variant: str
    plan: str
    """`plan_hash`."""
    outputs: Mapping[str, bytes]
    """`O`, and `lse` where it is stored."""


def problem_of(case: int) -> Problem:
    """The problem of a case of `CASES`."""
    return Problem(**CASES[case][0])


def inputs_of(case: int) -> dict[str, Array]:
    """The inputs of a case, drawn with the fixed `SEED`."""
    return draw_inputs(problem_of(case), CASES[case][1], SEED)


def is_exact(case: int) -> bool:
    """Whether every exp is of zero or of minus infinity, so that nothing is approximate."""
    fields, regime = CASES[case]
    return fields.get("scale") == 0.0 or regime == "constant"


def save(environment: dict[str, str], answers: list[Recorded]) -> bytes:
    """The record as a file."""
    rows = [
        {
            "case": one.case,
            "variant": one.variant,
            "plan": one.plan,
            "sizes": {name: len(data) for name, data in one.outputs.items()},
        }
        for one in answers
    ]
    cases = [[fields, regime] for fields, regime in CASES]
    parts = [data for one in answers for data in one.outputs.values()]
    return pack({"environment": environment, "cases": cases, "seed": SEED, "answers": rows}, parts)


def load(path: Path) -> tuple[dict[str, str], list[Any], list[Recorded]]:
    """Environment, cases and answers."""
    index, reader = unpack(path)
    answers = [
        Recorded(row["case"], row["variant"], row["plan"], dict(reader.take(row["sizes"]))) for row in index["answers"]
    ]
    return index["environment"], index["cases"], answers


def as_array(problem: Problem, name: str, data: bytes) -> Array:
    """An output's bytes -> array."""
    if name == "lse":
        return np.frombuffer(data, np.float32).reshape(problem.lse_shape)
    dtype = np.dtype(ml_dtypes.bfloat16) if problem.dtype == "bfloat16" else np.dtype(problem.dtype)
    return np.frombuffer(data, dtype).reshape(problem.q_shape)


EX2_ERROR = 2.5 * 2**-23
"""ex2.approx has two ulps on the hardware (PTX ISA, ex2), and half of one on the emulator."""
U = 2.0**-24
SMALLEST_TILE = 16
ROUNDING = {"float32": U, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def bounds(problem: Problem, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """How far two machines may be apart that differ in ex2.approx alone, per element of O and lse.

    A weight is a product of at most T + 1 exps over a sum of such, T being the number of key tiles: its relative
    difference is 2 (T + 2) EX2_ERROR. From there on each machine rounds its own numbers, at most n + 2 T + 4 times
    on the way to an element; P and O are rounded once more where they are stored in 16 bits.
    """
    q, k, v = (inputs[name].astype(np.float64) for name in ("Q", "K", "V"))
    k, v = (np.repeat(x, problem.group, axis=1) for x in (k, v))
    scores = problem.tau * (q @ k.swapaxes(-1, -2))
    row, key = np.ogrid[: problem.q_len, : problem.kv_len]
    scores = np.where(problem.mask.visible(row, key, problem.q_len, problem.kv_len), scores, -np.inf)
    largest = np.maximum(scores.max(-1, keepdims=True), np.finfo(np.float64).min)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    tiles = -(-problem.kv_len // SMALLEST_TILE)
    relative = 2 * (tiles + 2) * EX2_ERROR + 2 * (problem.kv_len + 2 * tiles + 4) * U
    stored = ROUNDING[problem.dtype]
    # Flushed results: a weight below the smallest normal number may be there or not.
    tiny = 2.0**-126 * problem.kv_len
    magnitude = weights @ np.abs(v)
    answer = np.abs(weights @ v)
    lse = np.abs(np.where(total > 0, largest + np.log(np.maximum(total, 1e-300)), 0.0))[..., 0]
    return {
        "O": (relative + 2 * stored * (stored > U)) * magnitude + 2 * stored * answer + 2 * stored * tiny + tiny,
        "lse": relative + 4 * U * lse,
    }
