"""Variants for campaigns, made by functions that worker processes can call: one right kernel, and many wrong ones."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import cupy
import numpy as np

from harness.emulator.executor import EmulatorExecutor
from harness.execution.protocol import Device, Execution, Executor
from harness.model.plan import Buffer, Launch, Plan
from harness.model.variant import Variant
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.problem import Problem
from harness.options.machine import Machine
from harness.support.errors import KernelFault


@functools.cache
def _plugin() -> ModuleType:
    path = Path(__file__).parent / "plugins" / "one_thread_per_row.py"
    spec = importlib.util.spec_from_file_location("one_thread_per_row", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def right() -> Variant:
    plugin = _plugin()
    return Variant(name="right", plan=plugin.plan, supports=plugin.supports)


def edited(old: str, new: str) -> Variant:
    """The right kernel with one piece of its text replaced."""
    assert old in _plugin().CODE
    kernel = cupy.RawKernel(_plugin().CODE.replace(old, new), "one_thread_per_row")

    def plan(problem: Problem) -> Plan:
        sizes = (problem.q_len, problem.kv_len, problem.head_dim, problem.group)
        scalars = (*map(np.int32, sizes), np.float32(problem.tau), np.int32(problem.causal))
        grid = (-(-problem.q_len // 64), problem.batch * problem.heads)
        launch = Launch(kernel, grid, (64,), ("Q", "K", "V", "O", "lse", *scalars))
        return Plan((launch,), (Buffer("lse", problem.lse_shape, "float32"),))

    return Variant(name="edited", plan=plan, supports=_plugin().supports)


def slow() -> Variant:
    """Right, but a block takes milliseconds."""
    begins = "for (int c = 0; c < d; ++c) o[c] = 0.0f;"
    return edited(begins, "for (int turn = 0; turn < 25000; ++turn) *(volatile float*)o = 0.0f;" + begins)


def long_keys_do(what: str) -> Variant:
    """Right for up to 40 keys; beyond, planning does something to its process."""

    def plan(problem: Problem) -> Plan:
        if problem.kv_len > 40:
            if what == "exit":
                os._exit(7)
            if what == "segfault":
                ctypes.string_at(0)
            if what == "sleep":
                time.sleep(600)
            raise RuntimeError(what)
        return _plugin().plan(problem)

    return Variant(name="long-keys", plan=plan, supports=_plugin().supports)


def refuses(what: str) -> Variant:
    def supports(problem: Problem) -> str | None:
        if what == "all":
            return "it takes nothing"
        return "tails are out of reach" if problem.kv_len % 8 else _plugin().supports(problem)

    return Variant(name="refuses", plan=_plugin().plan, supports=supports)


def fails_everywhere() -> Variant:
    """It declares every regime."""
    plugin = _plugin()
    return Variant(name="fails-everywhere", plan=plugin.plan, supports=plugin.supports, fails_in=tuple(REGIMES))


def unloadable() -> Variant:
    raise RuntimeError("there is no such variant here")


def dies_while_loading() -> Variant:
    os._exit(3)


class LosesItsContext(Machine):
    """A machine whose executor plays a GPU: more than 40 keys are an illegal address, after which nothing works."""

    def executor(self, progress: Callable[[float], None] | None = None) -> Executor:
        return _LostExecutor(EmulatorExecutor(self.settings))


class _LostExecutor:
    def __init__(self, right: Executor) -> None:
        self.device = Device("gpu", "stand-in", "sm_90")
        self._right, self._lost = right, False

    def run(self, problem: Problem, plan: Plan, inputs: dict[str, np.ndarray]) -> Execution:
        self._lost = self._lost or problem.kv_len > 40
        if self._lost:
            raise KernelFault("out of bounds", "an illegal memory access was encountered")
        return self._right.run(problem, plan, inputs)


@dataclass(frozen=True)
class LosesItsProcess(Machine):
    """A machine whose executor does something to its own process where there are more than 40 keys."""

    what: str = "exit"

    def executor(self, progress: Callable[[float], None] | None = None) -> Executor:
        return _LosingExecutor(EmulatorExecutor(self.settings), self.what)


class _LosingExecutor:
    def __init__(self, right: Executor, what: str) -> None:
        self.device, self._right, self._what = right.device, right, what

    def run(self, problem: Problem, plan: Plan, inputs: dict[str, np.ndarray]) -> Execution:
        if problem.kv_len > 40:
            if self._what == "exit":
                os._exit(7)
            time.sleep(600)
        return self._right.run(problem, plan, inputs)
