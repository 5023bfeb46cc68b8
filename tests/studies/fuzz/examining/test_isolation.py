"""What a variant does to its process is an answer, and the next case meets a fresh process."""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
from pathlib import Path

import fuzzed_variants
import numpy as np
import pytest
from lanes import exhaustive_unless

from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.operations.attention.cases.build import BUILDS
from harness.operations.attention.problem import Problem
from harness.options.machine import WORKER, Machine
from harness.studies.fuzz.examining.isolation import Worker
from harness.studies.fuzz.finding import CRASH, TIMEOUT
from harness.support.errors import SandboxError
from harness.support.processes.child_process import processor_seconds

SHORT = Case(Problem(heads=1, q_len=2, kv_len=3, head_dim=4))
LONG = Case(Problem(heads=1, q_len=2, kv_len=41, head_dim=4))


def worker(load: object, seconds: float = 60.0) -> Worker:
    return Worker(load, Machine(), seconds, BUILDS)


DEATHS = [("exit", "exit status 7"), ("segfault", "SIGSEGV")]


@pytest.mark.parametrize(("what", "word"), exhaustive_unless(lambda death: death[0] == "segfault", DEATHS))
def test_a_process_that_dies_is_an_answer_and_is_replaced(what: str, word: str):
    with worker(functools.partial(fuzzed_variants.long_keys_do, what)) as asked:
        assert asked.ask(SHORT).finding is None
        finding = asked.ask(LONG).finding
        assert finding is not None and finding.kind == CRASH
        assert word in finding.reason and "\n" not in finding.reason
        assert asked.ask(SHORT).finding is None
        assert asked.started == 1  # it was the variant's process that died, and not the one that knows the answer


def test_the_last_words_of_a_process_are_told():
    with worker(functools.partial(fuzzed_variants.long_keys_do, "segfault")) as asked:
        finding = asked.ask(LONG).finding
    assert finding is not None and "Segmentation fault" in finding.reason and "plan" in finding.reason


def test_processes_leave_no_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However they end: a worker that is killed cannot tidy up after itself or its planner."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with worker(fuzzed_variants.right) as asked:
        assert asked.ask(SHORT).finding is None
    assert not list(tmp_path.glob("attention-sandbox-*"))


def test_a_process_that_hangs_is_an_answer_and_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.studies.fuzz.examining.isolation.COMPILE_SECONDS", 0.0)
    monkeypatch.setattr("harness.studies.fuzz.examining.isolation.PATIENCE", 1.0)  # who sleeps uses no processor
    with worker(functools.partial(fuzzed_variants.long_keys_do, "sleep"), seconds=0.5) as asked:
        asked.start()
        process = asked._process
        finding = asked.ask(LONG).finding
        assert finding is not None and finding.kind == TIMEOUT and "0.5 s" in finding.reason
        assert process is not None and not process.is_alive()


def test_a_kernel_that_is_slow_but_not_stuck_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    """An eighth of its thread blocks take less than a case may, all of them more, on however fast a machine."""
    alone, many = (Case(Problem(heads=heads, q_len=2, kv_len=3, head_dim=4)) for heads in (1, 1024))
    with worker(fuzzed_variants.slow, seconds=60.0) as asked:
        asked.ask(alone)  # compiles
        assert asked._process is not None and asked._process.pid is not None
        assert asked.ask(many).finding is None  # makes the inputs and the expected answer, which a process keeps
        began = processor_seconds(asked._process.pid)
        assert asked.ask(many).finding is None
        seconds = (processor_seconds(asked._process.pid) - began) / 3
    with worker(fuzzed_variants.slow, seconds=seconds) as asked:
        asked.ask(alone)
        assert asked.seconds_for(many) == seconds > 0
        monkeypatch.setattr("harness.studies.fuzz.examining.isolation.STEADY", 60.0)
        assert asked.ask(many).finding is None
        monkeypatch.setattr("harness.studies.fuzz.examining.isolation.STEADY", 0.5)
        finding = asked.ask(many).finding
        assert finding is not None and finding.kind == TIMEOUT and "blocks end, but others keep" in finding.reason


def test_the_sanitizer_may_take_longer():
    looked_at = dataclasses.replace(SHORT, check=SANITIZER)
    with (
        worker(fuzzed_variants.right, 2.0) as asked,
        Worker(fuzzed_variants.right, Machine(dataclasses.replace(WORKER, sanitize=True)), 2.0, BUILDS) as sanitized,
    ):
        assert asked.seconds_for(looked_at) == sanitized.seconds_for(SHORT) == 10 * asked.seconds_for(SHORT)


def test_a_kind_of_mask_that_was_not_met_yet_may_have_to_be_compiled():
    causal = dataclasses.replace(SHORT, problem=dataclasses.replace(SHORT.problem, mask="causal"))
    with worker(fuzzed_variants.right, 2.0) as asked:
        assert asked.ask(SHORT).finding is None
        assert asked.seconds_for(SHORT) == 2.0
        assert asked.seconds_for(causal) > 10 * asked.seconds_for(SHORT)


def test_an_exception_costs_no_process():
    with worker(functools.partial(fuzzed_variants.long_keys_do, "the plan is not ready")) as asked:
        finding = asked.ask(LONG).finding
        assert finding is not None and finding.kind == "plan error" and "the plan is not ready" in finding.reason
        assert asked.ask(SHORT).error_over_budget is not None
        assert asked.started == 1


def test_the_variant_is_loaded_in_another_process():
    with worker(fuzzed_variants.right) as asked:
        asked.start()
        assert asked._process is not None and asked._process.pid != os.getpid()


@pytest.mark.parametrize(
    ("load", "reason"),
    [(fuzzed_variants.unloadable, "there is no such variant here"), (fuzzed_variants.dies_while_loading, "status 3")],
)
def test_a_variant_that_cannot_be_loaded_is_told(load: object, reason: str):
    with worker(load) as asked, pytest.raises(SandboxError, match=reason):
        asked.start()


def test_builds_come_back_as_the_variant_takes_them():
    with worker(fuzzed_variants.right) as asked:
        asked.start()
        assert {build.dtype for build in asked.builds} == {"float32"}


def blas_threads_of_a_worker() -> object:
    factor = np.ones((512, 512))
    factor @ factor
    raise SandboxError(f"NumPy has {len(os.listdir('/proc/self/task'))} threads here")


def test_workers_multiply_on_one_core_and_the_parent_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with worker(blas_threads_of_a_worker) as asked, pytest.raises(SandboxError, match="NumPy has 1 threads here"):
        asked.start()
    assert "OPENBLAS_NUM_THREADS" not in os.environ


@pytest.mark.exhaustive
def test_a_lost_context_does_not_poison_what_follows():
    with Worker(fuzzed_variants.right, fuzzed_variants.LosesItsContext(), 60.0, BUILDS) as asked:
        finding = asked.ask(LONG).finding
        assert finding is not None and finding.kind == "out of bounds"
        # In the same process this would be a fault, too.
        assert asked.ask(SHORT).finding is None
        assert asked.started == 2
