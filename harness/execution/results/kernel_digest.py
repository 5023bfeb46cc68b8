"""Identifies the kernels of a result: a digest of the compiled code and of the launch configuration."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.compilers.remote_kernel import RemoteArgument
from harness.execution.planning import compiled_launches
from harness.model.plan import Launch, Plan
from harness.model.problem import BaseProblem

DIGITS = 16
"""Number of hexadecimal digits. Two kernels of a variant's history collide with a probability of 2^-64."""
_OF_SOURCE_LINES = re.compile(r"//|\.file\s|\$L__(tmp|func_begin|func_end|info_string)\w*:|\.common .* _ZN08NumbaEnv")
"""Prefixes of PTX lines that contain only source locations, which do not affect the GPU."""
_NAMED_BY_COMPILERS = re.compile(r"_Z\w+|_cudapy_\w+")
"""Mangled names, which contain a module's path, and shared arrays, which Numba numbers per process."""
_LOCATION = re.compile(r"\.loc\s+\d+\s+\d+\s+\d+(,\s*function_name\s+[^,]+,\s*inlined_at\s+\d+\s+\d+\s+\d+)?\s*")
"""A location that an instruction may follow on the same line, as in handwritten PTX."""
_COMMENT = re.compile(r"\s*//.*")


def plan_digest(plan: Plan, problem: BaseProblem, arch: str) -> str:
    """Digest of everything that determines the behaviour of the plan's launches on `arch`, such as `sm_90`.

    It covers each kernel's PTX, grid, block, cluster, shared memory and arguments. It does not depend on comments,
    source locations or module names, but it does depend on the compiler. Raises what planning and compiling raise.
    """
    parts = [part for launch, compiled in compiled_launches(plan, problem, arch) for part in (
        *_how_it_is_launched(launch), str(compiled.max_registers), kernel_text(compiled.ptx)
    )]  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]


def kernel_text(ptx: str) -> str:
    """PTX without line information, file names, debug sections and comments; compiler-generated names are numbered."""
    numbers: dict[str, str] = {}

    def numbered(name: re.Match[str]) -> str:
        return numbers.setdefault(name[0], f"_{len(numbers)}")

    return _NAMED_BY_COMPILERS.sub(numbered, "\n".join(_instructions(ptx)))


def _instructions(ptx: str) -> Iterator[str]:
    in_section = False
    for line in map(str.strip, ptx.splitlines()):
        if in_section or line.startswith(".section"):
            in_section = line != "}"
        elif not _OF_SOURCE_LINES.match(line) and (said := _COMMENT.sub("", _LOCATION.sub("", line))):
            yield said


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
