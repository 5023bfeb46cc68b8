"""Records of what a GPU answered: what identifies the plans that they were made with."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.compilers.ptx_text import PtxKernel
from harness.compilers.triton.kernel import TritonKernel, as_kernel, is_function
from harness.model.plan import Launch, Plan
from harness.model.problem import BaseProblem
from scripts.recording.kernel_text import cuda_text, numba_text, python_text


def plan_hash(plan: Plan, problem: BaseProblem) -> str:
    """Changes with anything that decides what the plan's launches do, and with nothing else.

    That is: the kernels' text and options, grids, blocks, shared bytes, arguments, and the buffers.
    """
    buffers = [f"{b.name} {b.shape} {b.dtype}" for b in plan.all_buffers(problem).values()]
    parts = [*buffers, *(text for launch in plan.launches for text in _launch_text(launch))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def recorded_hashes(record: Mapping[str, Any], problem: int, variant: str) -> list[str]:
    """Hashes of the variant's plans of that problem when the record was made; empty if it was not recorded."""
    return [row["hash"] for row in record["plans"] if (row["problem"], row["variant"]) == (problem, variant)]


def _launch_text(launch: Launch) -> list[str]:
    arguments = [a if isinstance(a, str) else _scalar(a) for a in launch.args]
    geometry = f"{_numbers(launch.grid)} {_numbers(launch.block)} {int(launch.shared_bytes)}"
    return [launch.kernel_name, geometry, *arguments, *_kernel_text(launch.kernel)]


def _kernel_text(kernel: Any) -> list[str]:
    if hasattr(kernel, "py_func"):
        return [numba_text(kernel)]
    if isinstance(kernel, PtxKernel):
        return [kernel.text]
    if isinstance(kernel, TritonKernel) or is_function(kernel):
        return _triton_text(as_kernel(kernel))
    return [cuda_text(kernel.code), *map(str, kernel.options)]


def _triton_text(kernel: TritonKernel) -> list[str]:
    """The function without those that it calls, what it is compiled for, and the version of Triton."""
    chosen = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    chosen |= {**kernel.constexprs, **kernel.types, **kernel.options}
    text = python_text(inspect.getsource(kernel.function.fn))
    return [text, *(f"{name}={chosen[name]!r}" for name in sorted(chosen)), importlib.metadata.version("triton")]


def _numbers(extents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, extents))


def _scalar(value: Any) -> str:
    return f"{value.dtype} {value.item()!r}" if isinstance(value, np.generic) else f"{type(value).__name__} {value!r}"
