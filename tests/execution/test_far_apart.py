"""Problems of more elements than 32 bits count, of which the emulator runs a sample: only right kernels pass."""

from __future__ import annotations

import dataclasses
import importlib.util
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from harness.emulator.executor import EmulatorExecutor
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import Attempt, attempt
from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import make_plan
from harness.execution.run_settings import CacheModel, RunSettings
from harness.gpu.executor import GpuExecutor
from harness.model.discovery import discover
from harness.model.plan import Launch, Plan
from harness.model.spread import FAR
from harness.model.variant import Registry, Variant
from harness.operations.attention.problem import Problem
from harness.operations.paged_attention.problem import PagedProblem
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.diagnosis import diagnosis_of
from harness.studies.fuzz.settings import CampaignSettings
from harness.support.gpu_data_sheets import GPUS
from harness.support.intervals import Interval
from tests.gpu.host_context import HostContext
from tests.mutants.loading import load

PLUGIN = Path(__file__).parent.parent / "plugins" / "offsets_of_32_bits.py"
ROWS = Problem(batch=2, heads=1, q_len=4100, kv_len=5, head_dim=16, far=FAR)
KEYS = Problem(heads=1, q_len=1, kv_len=4100, head_dim=16, far=FAR)
PAGES = PagedProblem(lengths=(40, 3), heads=2, kv_heads=2, head_dim=16, dtype="float32", far=FAR)


def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("offsets_of_32_bits", PLUGIN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def variant(name: str) -> Variant:
    registry = Registry()
    plugin().register(registry)
    return registry.get(name)


def tried(found: Variant, problem, executor=None) -> Attempt:
    executor = EmulatorExecutor() if executor is None else executor
    return attempt(found, problem, executor, question=Question.draw(problem))


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("name", "problem"),
    [("heads-of-64-bits", ROWS), ("heads-of-64-bits", KEYS), ("pages-of-64-bits", PAGES)],
)
def test_offsets_of_64_bits_are_right(name, problem):
    done = tried(variant(name), problem)
    assert done.verdict == "pass", done.reason
    assert done.claim is None and done.counted.write_bytes >= problem.compulsory_write_bytes


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("name", "problem", "why"),
    [
        ("unsigned-heads", ROWS, "elements of O were never written, the first at batch 1, head 0, row 0, column 0"),
        ("unsigned-heads", KEYS, "are NaN"),
        ("signed-heads", ROWS, "were never written"),
        ("signed-pages", PAGES, "out-of-bounds load of 4 bytes at byte offset -"),
        ("unsigned-heads-numba", ROWS, "were never written"),
    ],
)
def test_offsets_of_32_bits_are_found(name, problem, why):
    done = tried(variant(name), problem)
    assert done.verdict in ("fail", "error") and why in done.reason


@pytest.mark.compiles
def test_offsets_of_strides_are_taken_as_they_are():
    """Sequences of a layout lie 2^32 elements apart: strides of 64 bits, and products of these with an index."""
    problem = Problem(heads=2, q_len=5, kv_len=2050, head_dim=16, layout="bshd+8", far=FAR)  # type: ignore[arg-type]
    done = tried(discover().registry.get("fa2-cupy"), problem)
    assert done.verdict == "pass", done.reason
    mutant = tried(load("fa2-cupy~offset-of-a-sequence-in-32-bits"), problem)
    assert mutant.verdict in ("fail", "error")


@pytest.mark.compiles
@pytest.mark.parametrize("far", [0, 2**20])
def test_the_same_kernels_are_right_where_offsets_are_small(far):
    problem = Problem(batch=2, heads=2, q_len=70, kv_len=40, head_dim=8, far=far)
    assert tried(variant("signed-heads"), problem).verdict == "pass"


def sequences_in_turn(problem: Problem) -> Plan:
    """Blocks of the sequences alternate, as no grid shows."""
    module = plugin()
    text = module.HEADS.replace("head = blockIdx.y,", "head = blockIdx.y % BATCH * HEADS + blockIdx.y / BATCH,")
    sizes = {"D": problem.head_dim, "BATCH": problem.batch, "HEADS": problem.heads}
    return module.of_heads(module.cuda_kernel(module.ROW + text, "rows_of_heads", "long long", **sizes), problem)


@pytest.mark.compiles
def test_a_kernel_whose_blocks_are_in_another_order_is_refused_and_not_blamed():
    problem = Problem(batch=2, heads=2, q_len=70, kv_len=40, head_dim=8)
    other = Variant(name="in-turn", plan=sequences_in_turn)
    assert tried(other, problem).verdict == "pass"
    done = tried(other, Problem(batch=2, heads=2, q_len=70, kv_len=40, head_dim=8, far=2**20))
    assert done.verdict == "unsupported" and "its grid does not show which blocks" in done.reason


def test_persistent_blocks_are_refused():
    def plan(problem: Problem) -> Plan:
        (launch,) = sequences_in_turn(problem).launches
        return Plan((Launch(launch.kernel, (132,), launch.block, launch.args),))

    done = tried(Variant(name="persistent", plan=plan), ROWS)
    assert done.verdict == "unsupported"
    assert done.reason == (
        "kernel rows_of_heads has a grid of 132 x 1 x 1 blocks for any number of sequences; the emulator cannot "
        "run those of a few sequences alone"
    )


@pytest.mark.compiles
def test_counts_and_caches_are_those_of_the_blocks_that_run():
    """Which are as many as if the sequences lay side by side."""
    near = Problem(batch=2, heads=8, q_len=64, kv_len=40, head_dim=32)
    far = dataclasses.replace(near, far=2**26)
    executor = EmulatorExecutor(RunSettings(caches=CacheModel(GPUS["h200"])))
    done = [tried(variant("heads-of-64-bits"), problem, executor) for problem in (near, far)]
    assert done[0].verdict == done[1].verdict == "pass"
    assert done[0].counted.read_bytes == done[1].counted.read_bytes > 0
    modelled = [each.counted.launches[0].caches.buffers for each in done]
    assert [(c.buffer, c.l2_read_bytes, c.dram_read_bytes) for c in modelled[0]] == [
        (c.buffer, c.l2_read_bytes, c.dram_read_bytes) for c in modelled[1]
    ]


def test_a_batch_that_no_grid_holds_is_refused_with_what_would_do():
    done = tried(variant("heads-of-64-bits"), Problem(far=FAR))
    assert done.verdict == "unsupported"
    assert done.reason.endswith("; --far needs larger sequences for a smaller batch: 65,539 elements or more each")


@pytest.mark.compiles
def test_the_sanitizer_looks_at_the_blocks_that_run():
    problem = dataclasses.replace(ROWS, q_len=1030, head_dim=64, batch=1)
    sanitizer = EmulatorSanitizer(shuffled_runs=1)
    plan, inputs = make_plan(variant("heads-of-64-bits"), problem), Question.draw(problem).inputs
    assert sanitizer.check(variant("heads-of-64-bits"), problem, plan, inputs) == ()
    plan = make_plan(variant("unsigned-heads"), problem)
    found = sanitizer.check(variant("unsigned-heads"), problem, plan, inputs)
    assert {finding.kind for finding in found} == {"uninitialised read", "output not written"}


def test_a_problem_too_large_for_the_emulator_is_refused():
    done = tried(variant("heads-of-64-bits"), Problem(heads=1, q_len=65_600, kv_len=1, head_dim=8, far=2**35))
    assert done.verdict == "unsupported"
    assert "the emulator takes at most 34,359,738,368; choose a smaller --far" in done.reason


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "elements"), [("signed-heads", 31), ("unsigned-heads-numba", 32), ("signed-pages", 31)]
)
def test_a_campaign_finds_an_offset_of_32_bits_and_says_so(name, elements):
    wrong = variant(name)
    how = CampaignSettings(examples=200, seed=1)
    result = run_campaign(name, partial(variant, name), how=how, operation=wrong.operation)
    assert result.verdict == "fail" and result.examples < 30
    assert f"offset beyond 2^{elements} elements" in diagnosis_of(result.failure)
    assert f"offsets beyond 2^{elements} elements" in result.failure.takes
    assert result.failure.case.problem.far == 2**elements


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["heads-of-64-bits", "pages-of-64-bits"])
def test_a_campaign_does_not_blame_offsets_of_64_bits(name):
    right = variant(name)
    result = run_campaign(
        name, partial(variant, name), how=CampaignSettings(examples=40, seed=1), operation=right.operation
    )
    assert result.verdict == "pass", result.reason


@pytest.mark.parametrize("layout", ["bhsd", "bshd+2"])
def test_a_gpu_gets_the_huge_problem_with_its_sequences_in_place(monkeypatch, layout):
    """The executor of a GPU, on arrays of NumPy's: all blocks run, on arrays as large as the problem says."""
    seen: dict[str, np.ndarray] = {}
    problem = Problem(batch=2, heads=1, q_len=4, kv_len=4, head_dim=8, mask="documents:1+3", far=1000)
    problem = dataclasses.replace(problem, layout=layout)

    def body(Q, first_keys, O):
        seen.update(Q=Q.copy(), first_keys=first_keys.copy())
        O[...] = Q

    context = HostContext()
    monkeypatch.setattr("harness.gpu.executor.GpuContext", lambda: context)
    monkeypatch.setattr("harness.gpu.executor._time", lambda devices, run: Interval(1.0, 1.0, 1.0))
    plan = Plan((Launch(body, (1,), (32,), ("Q", "first_keys", "O")),))
    inputs = Question.draw(problem).inputs
    outputs = GpuExecutor().run(problem, plan, inputs).outputs
    assert (outputs["O"] == inputs["Q"]).all()
    places = list(problem.spread.extent.places)
    assert len(seen["Q"]) == problem.spread.extent.entries and (seen["Q"][places] == inputs["Q"]).all()
    assert np.isnan(np.delete(seen["Q"], places, axis=0)).all()
    assert (seen["first_keys"] == inputs["first_keys"][0]).all()
