"""Ring attention as an operation: which module has which part of it, and its smaller parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.model.cases.case import Case
from harness.model.operation import Operation, Part
from harness.operations.ring_attention.cases import (
    FORWARD,
    RingAxes,
    builds_of,
    cases,
    enlarged,
    probed_axes,
    ring,
    simpler,
    size,
)
from harness.operations.ring_attention.inputs import REGIMES
from harness.operations.ring_attention.mistakes import known_mistakes
from harness.operations.ring_attention.oracle import answer, tolerance
from harness.operations.ring_attention.problem import RingProblem
from harness.operations.ring_attention.properties import PROPERTIES, changes

Arrays = Mapping[str, np.ndarray]


def choose_parts(problem: RingProblem, whole_flops: float) -> tuple[Part, ...]:
    """Return the parts that attention chooses for the whole sequence."""
    return FORWARD.parts(problem.whole, whole_flops)


def shorter(problem: RingProblem) -> Iterator[tuple[str, Any]]:
    """Yield the same problem with fewer rows."""
    for _, smaller in FORWARD.shorter(problem.whole):
        found = ring(smaller, problem.devices, problem.row_order)
        if found.q_len < problem.q_len:
            yield f"--seq-len {found.q_len}", found


def peculiarities(case: Case, tiles: Sequence[int], assumed_tile: Sequence[int] = ()) -> list[str]:
    """Return what distinguishes the case: devices and their order, then what attention says of the whole sequence."""
    p = case.problem
    rest = p.q_len % p.devices
    own = [f"{p.devices} devices" if p.devices > 1 else "1 device", f"{p.row_order} order"]
    own += [f"{p.q_len} rows, {rest} more than a multiple of the devices"] if rest else []
    return own + FORWARD.peculiarities(case.with_problem(p.whole), tiles, assumed_tile)


def _problem_of_arrays(arrays: Arrays, dtype: str, fields: Mapping[str, Any]) -> RingProblem:
    """Return the problem of Q, K and V of a whole sequence. Raises `UsageError` or `ProblemError`."""
    forward = FORWARD.problem_of_arrays
    assert forward is not None
    own = {name: fields[name] for name in ("devices", "row_order") if name in fields}
    others = {name: value for name, value in fields.items() if name not in own}
    whole = forward(arrays, dtype, others)
    sizes = {name: getattr(whole, name) for name in RingProblem().to_fields() if hasattr(whole, name)}
    return RingProblem.from_fields({**sizes, **own})


def _field_in_words(problem: RingProblem, name: str) -> list[str]:
    if name == "devices":
        return [f"{problem.devices} devices"]
    if name == "row_order":
        return [f"{problem.row_order} order"]
    return FORWARD.field_in_words(problem.whole, name)


OPERATION = Operation(
    name="ring-attention",
    idea="attention of a sequence whose rows are divided over devices, K and V going round",
    problem=RingProblem,
    regimes=REGIMES,
    answer=answer,
    tolerance=tolerance,
    numerics_used=lambda problem: FORWARD.numerics_used(problem.whole),
    trivial_answers=lambda problem, inputs: FORWARD.trivial_answers(problem.whole, inputs),
    shorter=shorter,
    needed_read_bytes=lambda problem, inputs: FORWARD.needed_read_bytes(problem.whole, inputs),
    parts=choose_parts,
    builds_of=builds_of,
    cases=cases,
    axes=RingAxes,
    leaves_regime=lambda case: FORWARD.leaves_regime(case.with_problem(case.problem.whole)),
    properties=PROPERTIES,
    changes=changes,
    simpler=simpler,
    size=size,
    enlarged=enlarged,
    probed_axes=probed_axes,
    peculiarities=peculiarities,
    tile_names=FORWARD.tile_names,
    known_mistakes=known_mistakes,
    hints=lambda problem, output: FORWARD.hints(problem.whole, output),
    settings=("mask", "scale", "devices", "row_order"),
    problem_of_arrays=_problem_of_arrays,
    lengths={"seq_len": ("q_len", "kv_len")},
    field_in_words=_field_in_words,
    require_sweepable=lambda problem: FORWARD.require_sweepable(problem.whole),
    flops_in_words=FORWARD.flops_in_words,
)
"""Attention of a sequence divided over devices, after Liu, Zaharia and Abbeel 2023, arXiv 2310.01889."""
