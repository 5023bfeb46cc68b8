"""Identifies the kernels of a result: a digest of the compiled code and of the launch configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.compilers.remote_kernel import RemoteArgument
from harness.execution.planning.variant_calls import compiled_launches
from harness.model.plan import Launch, Plan
from harness.model.problem import BaseProblem
from harness.ptx.canonical_text import canonical_text

DIGITS = 16
"""Number of hexadecimal digits. Two kernels of a variant's history collide with a probability of 2^-64."""


def plan_digest(plan: Plan, problem: BaseProblem, arch: str) -> str:
    """Digest of everything that determines the behaviour of the plan's launches on `arch`, such as `sm_90`.

    It covers each kernel's PTX, grid, block, cluster, shared memory and arguments. It does not depend on comments,
    source locations or module names, but it does depend on the compiler. Raises what planning and compiling raise.
    """
    parts = [part for launch, compiled in compiled_launches(plan, problem, arch) for part in (
        *_how_it_is_launched(launch), str(compiled.max_registers), canonical_text(compiled.ptx)
    )]  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]


def _how_it_is_launched(launch: Launch) -> Iterator[str]:
    yield f"{_numbers(launch.grid)} {_numbers(launch.block)} {int(launch.shared_bytes)}"
    yield "" if launch.cluster is None else str(_numbers(launch.cluster))
    yield from map(_argument, launch.args)


def _numbers(extents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, extents))


def _argument(argument: Any) -> str:
    if isinstance(argument, RemoteArgument):
        return argument.type_name  # its value stays in its own process
    if isinstance(argument, np.void):
        return argument.tobytes().hex()
    kind = argument.dtype if isinstance(argument, np.generic) else type(argument).__name__
    return f"{kind} {argument!r}"
