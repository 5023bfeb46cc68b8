"""Compares attention kernels: whether the answer is right, how many bytes it moves, and how fast it is.

This module exports the public API for plugins, tests and notebooks. Each name is loaded on first access, so importing
this package loads neither NumPy nor a compiler.

PYTEST_DONT_REWRITE: pytest rewrites the assertions of packages with a plugin, and warns if one is imported already, as
under `emulate -m pytest`.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

with contextlib.suppress(ImportError):
    # numba-cuda takes the place of numba.cuda by a .pth file, which Python reads when it starts. A notebook whose first
    # cell has installed the package runs in a Python that started before.
    import _numba_cuda_redirector as _numba_cuda_redirector  # type: ignore[import-not-found, import-untyped, unused-ignore]

if TYPE_CHECKING:
    from harness.compilers.cute.kernel import CuteFunction as CuteFunction
    from harness.compilers.cute.kernel import CuteTensor as CuteTensor
    from harness.compilers.ptx_text import PtxKernel as PtxKernel
    from harness.compilers.triton.kernel import TritonKernel as TritonKernel
    from harness.device.array import DeviceArray as DeviceArray
    from harness.device.device import Device as Device
    from harness.device.result import LaunchResult as LaunchResult
    from harness.execution.judging.question import Question as Question
    from harness.model.lesson import Edit as Edit
    from harness.model.lesson import Figure as Figure
    from harness.model.lesson import Lesson as Lesson
    from harness.model.lesson import Mistake as Mistake
    from harness.model.lesson import Prediction as Prediction
    from harness.model.lesson import Task as Task
    from harness.model.lesson import TaskCase as TaskCase
    from harness.model.lesson import TaskLimit as TaskLimit
    from harness.model.numerics import Numerics as Numerics
    from harness.model.peer_copy import PeerCopy as PeerCopy
    from harness.model.plan import Buffer as Buffer
    from harness.model.plan import Launch as Launch
    from harness.model.plan import Plan as Plan
    from harness.model.plan import Reshaped as Reshaped
    from harness.model.tensor_map import TensorMap as TensorMap
    from harness.model.traffic import Link as Link
    from harness.model.traffic import Traffic as Traffic
    from harness.model.variant import Registry as Registry
    from harness.model.variant import Variant as Variant
    from harness.operations._across_devices.problem import Chunk as Chunk
    from harness.operations.attention.cases.strategies import cases as cases
    from harness.operations.attention.layout import Layout as Layout
    from harness.operations.attention.problem import Problem as Problem
    from harness.operations.attention_backward.problem import BackwardProblem as BackwardProblem
    from harness.operations.kv_append.problem import AppendProblem as AppendProblem
    from harness.operations.mla_decode.problem import MlaProblem as MlaProblem
    from harness.operations.paged_attention.problem import PagedProblem as PagedProblem
    from harness.operations.ring_attention.problem import RingProblem as RingProblem
    from harness.operations.ring_attention_backward.problem import RingBackwardProblem as RingBackwardProblem
    from harness.operations.softmax.problem import SoftmaxProblem as SoftmaxProblem
    from harness.operations.tree_attention.problem import TreeProblem as TreeProblem
    from harness.studies.assertions import assert_no_races as assert_no_races
    from harness.studies.assertions import assert_traffic as assert_traffic
    from harness.studies.assertions import at_most as at_most
    from harness.studies.calls import bench as bench
    from harness.studies.calls import check as check
    from harness.studies.calls import compare as compare
    from harness.studies.calls import fuzz as fuzz
    from harness.studies.calls import history as history
    from harness.studies.calls import learn as learn
    from harness.studies.calls import report as report
    from harness.studies.calls import run as run
    from harness.studies.calls import traffic as traffic
    from harness.studies.calls import why as why
    from harness.studies.emulate.emulation import Emulation as Emulation
    from harness.studies.emulate.emulation import emulate as emulate
    from harness.support.errors import CompileError as CompileError
    from harness.support.errors import KernelFault as KernelFault
    from harness.support.errors import PlanError as PlanError
    from harness.support.errors import SandboxError as SandboxError
    from harness.support.errors import UnsupportedProblem as UnsupportedProblem
    from harness.support.errors import UsageError as UsageError

_HOMES = {
    "AppendProblem": "harness.operations.kv_append.problem",
    "BackwardProblem": "harness.operations.attention_backward.problem",
    "Buffer": "harness.model.plan",
    "Chunk": "harness.operations._across_devices.problem",
    "CompileError": "harness.support.errors",
    "CuteFunction": "harness.compilers.cute.kernel",
    "CuteTensor": "harness.compilers.cute.kernel",
    "Device": "harness.device.device",
    "DeviceArray": "harness.device.array",
    "Edit": "harness.model.lesson",
    "Emulation": "harness.studies.emulate.emulation",
    "Figure": "harness.model.lesson",
    "KernelFault": "harness.support.errors",
    "Launch": "harness.model.plan",
    "LaunchResult": "harness.device.result",
    "Layout": "harness.operations.attention.layout",
    "Lesson": "harness.model.lesson",
    "Link": "harness.model.traffic",
    "Mistake": "harness.model.lesson",
    "MlaProblem": "harness.operations.mla_decode.problem",
    "Numerics": "harness.model.numerics",
    "PagedProblem": "harness.operations.paged_attention.problem",
    "PeerCopy": "harness.model.peer_copy",
    "Plan": "harness.model.plan",
    "PlanError": "harness.support.errors",
    "Prediction": "harness.model.lesson",
    "Problem": "harness.operations.attention.problem",
    "PtxKernel": "harness.compilers.ptx_text",
    "Question": "harness.execution.judging.question",
    "Registry": "harness.model.variant",
    "Reshaped": "harness.model.plan",
    "RingBackwardProblem": "harness.operations.ring_attention_backward.problem",
    "RingProblem": "harness.operations.ring_attention.problem",
    "SandboxError": "harness.support.errors",
    "SoftmaxProblem": "harness.operations.softmax.problem",
    "Task": "harness.model.lesson",
    "TaskCase": "harness.model.lesson",
    "TaskLimit": "harness.model.lesson",
    "TensorMap": "harness.model.tensor_map",
    "Traffic": "harness.model.traffic",
    "TreeProblem": "harness.operations.tree_attention.problem",
    "TritonKernel": "harness.compilers.triton.kernel",
    "UnsupportedProblem": "harness.support.errors",
    "UsageError": "harness.support.errors",
    "Variant": "harness.model.variant",
    "assert_no_races": "harness.studies.assertions",
    "assert_traffic": "harness.studies.assertions",
    "at_most": "harness.studies.assertions",
    "bench": "harness.studies.calls",
    "cases": "harness.operations.attention.cases.strategies",
    "check": "harness.studies.calls",
    "compare": "harness.studies.calls",
    "emulate": "harness.studies.emulate.emulation",
    "fuzz": "harness.studies.calls",
    "history": "harness.studies.calls",
    "learn": "harness.studies.calls",
    "report": "harness.studies.calls",
    "run": "harness.studies.calls",
    "traffic": "harness.studies.calls",
    "why": "harness.studies.calls",
}
"""The module that defines each public name."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
