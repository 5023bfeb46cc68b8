"""Compiling in another process gives the same code, and no accident there reaches this process."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.compilers.ptx_text import PtxKernel
from harness.emulator import executor as executor_module
from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import PLAIN
from harness.emulator.native.compile_worker import THIS_PROCESS, CompileWorker, WorkerPool
from harness.emulator.native.tier import Tier
from harness.model.operation import draw_inputs
from harness.model.plan import Launch, Plan
from harness.operations.attention.problem import Problem
from harness.support.errors import CompileError, UnsupportedInstruction

TIER = Tier.BASELINE
PTX = """.version 8.0
.target sm_90
.address_size 64
.entry k(.param .u64 a) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [a]; st.global.u64 [%rd1], %rd1; ret; }
"""


def test_the_object_is_the_one_made_here() -> None:
    worker = CompileWorker()
    assert worker.build_kernel(PTX, "k", PLAIN, TIER) == THIS_PROCESS.build_kernel(PTX, "k", PLAIN, TIER)
    worker.close()


def test_a_workers_error_is_raised_here_and_the_worker_continues() -> None:
    worker = CompileWorker()
    with pytest.raises(CompileError, match="no kernel 'missing'"):
        worker.build_kernel(PTX, "missing", PLAIN, TIER)
    with pytest.raises(UnsupportedInstruction, match=r"barrier\.cluster\.sync"):
        worker.build_kernel(PTX.replace("ret;", "barrier.cluster.sync; ret;"), "k", PLAIN, TIER)
    assert worker.build_kernel(PTX, "k", PLAIN, TIER)
    worker.close()


def test_a_worker_that_dies_is_an_error_and_is_replaced() -> None:
    worker = CompileWorker()
    first = worker.build_kernel(PTX, "k", PLAIN, TIER)
    assert worker._process is not None
    worker._process.kill()
    with pytest.raises(CompileError, match="ended without an answer"):
        worker.build_kernel(PTX, "k", PLAIN, TIER)
    assert worker.build_kernel(PTX, "k", PLAIN, TIER) == first
    worker.close()


def test_workers_are_used_again_and_end_with_their_pool() -> None:
    pool = WorkerPool(2)
    with pool.borrow() as one, pool.borrow() as other:
        assert one is not other
        one.build_kernel(PTX, "k", PLAIN, TIER)
        process = one._process
        assert process is not None
    with pool.borrow() as again:
        assert again in (one, other)
    del pool, one, other, again
    gc.collect()
    process.join(timeout=20)
    assert process.exitcode == 0


def test_a_worker_yields_to_its_session_and_ignores_ctrl_c() -> None:
    worker = CompileWorker()
    worker.build_kernel(PTX, "k", PLAIN, TIER)
    assert worker._process is not None
    pid = worker._process.pid
    assert pid is not None
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpgid(pid) != os.getpgid(0)
    assert os.getsid(pid) == os.getsid(0)
    worker.close()


def test_all_ptx_of_a_plan_is_made_before_llvm_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    compile_first = executor_module.compile_kernel

    def compile_kernel(*args: Any) -> Any:
        done.append("PTX")
        return compile_first(*args)

    monkeypatch.setattr(executor_module, "compile_kernel", compile_kernel)
    monkeypatch.setattr(executor_module, "native_kernel", lambda *_: done.append("native code"))
    plan = Plan((Launch(PtxKernel(PTX, "k"), (1,), (32,), ("O",)),) * 2)
    EmulatorExecutor().prepare(Problem(heads=1, q_len=1, kv_len=1), plan)
    assert done == ["PTX", "PTX", "native code", "native code"]


def test_there_are_no_more_workers_than_the_pool_may_have() -> None:
    pool = WorkerPool(1)
    borrowed = threading.Event()

    def borrow() -> None:
        with pool.borrow():
            borrowed.set()

    waiting = threading.Thread(target=borrow)
    with pool.borrow():
        waiting.start()
        assert not borrowed.wait(0.2)
    waiting.join(timeout=20)
    assert borrowed.is_set()


@pytest.mark.exhaustive
def test_the_runtime_too_can_be_built_there() -> None:
    worker = CompileWorker()
    assert worker.build_part("copies").startswith(b"\x7fELF")
    worker.close()


def test_preparing_ahead_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import cupy

    monkeypatch.setenv("ATTENTION_SANDBOX_CACHE_DIR", str(tmp_path / "cache"))
    kernel = cupy.RawKernel(
        'extern "C" __global__ void k(const float* q, float* o) { o[threadIdx.x] = 3 * q[7]; }', "k"
    )
    problem = Problem(heads=1, q_len=1, kv_len=1, head_dim=32)
    plan = Plan((Launch(kernel, (1,), (32,), ("Q", "O")),))
    executor = EmulatorExecutor()
    executor.prepare(problem, plan)
    inputs = draw_inputs(problem)
    assert (executor.run(problem, plan, inputs).outputs["O"] == np.float32(3) * inputs["Q"].flat[7]).all()


@pytest.mark.parametrize("flops", [0, 1e9])
def test_a_brief_problem_is_not_optimized_and_gives_the_same(
    flops: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import cupy

    monkeypatch.setenv("ATTENTION_SANDBOX_CACHE_DIR", str(tmp_path / "cache"))
    source = f"""extern "C" __global__ void brief(const float* q, float* o) {{
        float x = q[threadIdx.x % 32];
        for (int i = 0; i <= threadIdx.x % 5; i++) x = exp2f(x * q[i]) + {flops:.1f}f;
        o[threadIdx.x] = x;
    }}"""
    problem = Problem(heads=1, q_len=1, kv_len=1, head_dim=32)
    plan = Plan((Launch(cupy.RawKernel(source, "brief"), (1,), (32,), ("Q", "O")),))
    inputs = draw_inputs(problem)
    executor = EmulatorExecutor(brief_flops=flops)
    tiers: list[Tier] = []
    build = THIS_PROCESS.build_kernel
    monkeypatch.setattr(THIS_PROCESS, "build_kernel", lambda *job: (tiers.append(job[3]), build(*job))[1], raising=True)
    found = executor.run(problem, plan, inputs)
    assert tiers == [Tier.BASELINE if flops else Tier.OPTIMIZED]
    other = EmulatorExecutor(brief_flops=0 if flops else 1e9).run(problem, plan, inputs)
    assert found.outputs["O"].tobytes() == other.outputs["O"].tobytes()
    assert [launch.lane_instructions for launch in found.launches] == [l.lane_instructions for l in other.launches]
    # What is optimized already is not compiled again.
    assert len(tiers) == (2 if flops else 1)
