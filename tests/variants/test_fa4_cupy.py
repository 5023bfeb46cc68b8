"""What the kernel of FlashAttention-4 for Blackwell does besides what every variant is tested for."""

from __future__ import annotations

import heapq
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from kernel_resources import LARGEST_BLOCK_BYTES, assert_in_registers, last_launch
from lanes import exhaustive_unless

from harness.compilers import compile_kernel
from harness.compilers.ptxas import find_ptxas, resources
from harness.emulator import executor
from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import Instruments
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.planning.variant_calls import make_plan
from harness.execution.protocol import Execution
from harness.execution.run_settings import RunSettings
from harness.execution.schedule.timeline import TimelineRecorder
from harness.model.arithmetic.rounding import CUBIC
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.tile_sizes import TileSizes
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.support.errors import PlanError, UnsupportedProblem
from harness.support.gpu_data_sheets import usual_gpu
from variants.attention import fa4
from variants.attention.fa4 import STATIC_BYTES, Fa4Tile

VARIANT = discover().registry.get("fa4-cupy")
SETTINGS = RunSettings(arch="sm_100a")
EXECUTOR = emulator(SETTINGS)
BUILDS = ((64, "float16", "causal"), (64, "float16", "none"), (128, "bfloat16", "causal"), (128, "bfloat16", "none"))
"""Kernels: head_dim, dtype, mask. The default lane has the first one."""


def test_products_in_tensor_memory_are_counted_with_their_shape():
    executor = EmulatorExecutor(SETTINGS, instruments=Instruments(instructions=True))
    problem = Problem(heads=2, q_len=512, kv_len=256, head_dim=64, dtype="float16")
    execution = executor.run(problem, VARIANT.plan(problem), draw_inputs(problem, "normal", 1))
    (launch,) = execution.launches
    assert launch.instructions is not None
    assert sum(row.flops for row in launch.instructions.counts) == problem.flops


def assert_right(problem: Problem, regime: str = "rising", **tile: TileSizes) -> Execution:
    """The answer is right, and the bytes are those that are claimed."""
    inputs = draw_inputs(problem, regime, 1)
    reference = attention(problem, inputs)
    execution = EXECUTOR.run(problem, VARIANT.plan(problem, **tile), inputs)
    result = hold(execution.outputs, reference, error_budget(problem, inputs, reference, VARIANT.numerics))
    assert result.passed, result.reason
    assert not result.suspicious, (result.reason, result.error_over_expected)
    assert VARIANT.claim is not None
    claim = VARIANT.claim(problem, **tile)
    assert (execution.read_bytes, execution.write_bytes) == (claim.read_bytes, claim.write_bytes)
    return execution


# One row; edges of tiles of 128 rows and keys, and beside them; rows that see no key; more keys than rows; one key.
@pytest.mark.parametrize(
    ("q_len", "kv_len"),
    [
        (1, 1),
        (1, 300),
        (127, 129),
        (128, 128),
        (129, 127),
        (256, 256),
        (257, 255),
        (300, 40),
        (70, 3),
        (40, 520),
        (260, 1),
    ],
)
@pytest.mark.parametrize(
    ("head_dim", "dtype", "mask"), exhaustive_unless(lambda build: build[0] == 64 and build[2] == "causal", BUILDS)
)
def test_lengths_on_and_beside_the_edges_of_tiles(q_len: int, kv_len: int, head_dim: int, dtype: str, mask: str):
    assert_right(Problem(heads=1, q_len=q_len, kv_len=kv_len, head_dim=head_dim, dtype=dtype, mask=mask))


# Scores that rise and fall along keys: the maximum rises by less than the threshold, by more, and not at all.
@pytest.mark.parametrize("regime", ["normal", "rising", "falling", "hot", "constant", "needle", "subnormal"])
def test_the_maximum_may_stay_behind_and_may_rise(regime: str):
    assert_right(Problem(batch=2, heads=2, kv_heads=1, q_len=300, kv_len=430, dtype="float16", mask="causal"), regime)


@pytest.mark.thorough
@pytest.mark.parametrize(("head_dim", "dtype", "mask"), BUILDS)
def test_every_build_gives_the_answer(head_dim: int, dtype: str, mask: str):
    assert_right(Problem(heads=6, kv_heads=2, q_len=520, kv_len=400, head_dim=head_dim, dtype=dtype, mask=mask))


@pytest.mark.parametrize("scale", [-0.25, 0.0, 3.0])
def test_any_scale(scale: float):
    assert_right(Problem(heads=2, q_len=130, kv_len=200, dtype="float16", mask="causal", scale=scale), "normal")


def test_a_small_rise_of_the_maximum_rescales_nothing_and_a_large_one_does():
    # Keys are visited from the last to the first: scores of the first tile of keys are higher by 4 powers of two, then
    # by 16. V is 1, so that O is too, whatever l is relative to; lse shows m and l.
    for rise in (4.0, 16.0):
        problem = Problem(heads=1, q_len=130, kv_len=256, dtype="float16", scale=math.log(2))
        inputs = {name: np.zeros((1, 1, 256, 64), np.float16) for name in ("K", "V")}
        inputs["Q"] = np.zeros((1, 1, 130, 64), np.float16)
        inputs["Q"][..., 0], inputs["K"][:, :, :128, 0], inputs["V"][...] = 1.0, rise, 1.0
        outputs = EXECUTOR.run(problem, VARIANT.plan(problem), inputs).outputs
        assert np.all(outputs["O"] == 1.0)
        expected = np.float32(np.log(128 * (1 + 2.0**rise)))
        assert np.allclose(outputs["lse"], expected, rtol=2e-6)


@pytest.mark.parametrize(("q_len", "kv_len"), [(300, 300), (250, 400)])
def test_what_is_not_finite_behind_the_diagonal_reaches_no_row(q_len: int, kv_len: int):
    problem = Problem(heads=1, q_len=q_len, kv_len=kv_len, dtype="float16", mask="causal")
    inputs, keys = draw_inputs(problem, "normal", 2), np.arange(kv_len)
    clean = EXECUTOR.run(problem, VARIANT.plan(problem), inputs).outputs
    V = inputs["V"].copy()
    V[0, 0, keys[::4], keys[::4] % 64] = math.nan
    dirty = EXECUTOR.run(problem, VARIANT.plan(problem), {**inputs, "V": V}).outputs
    visible = problem.mask.visible(np.arange(q_len)[:, None], keys[None, :], q_len, kv_len)
    reached = np.stack([visible[:, keys[::4][keys[::4] % 64 == e]].any(axis=1) for e in range(64)], axis=1)
    assert reached.any() and not reached.all()
    assert np.array_equal(np.isnan(dirty["O"][0, 0].astype(np.float32)), reached)
    assert np.array_equal(dirty["O"][0, 0][~reached], clean["O"][0, 0][~reached])
    assert np.array_equal(dirty["lse"], clean["lse"])
    K = inputs["K"].copy()
    K[0, 0, kv_len // 2, 3] = math.nan
    lse = EXECUTOR.run(problem, VARIANT.plan(problem), {**inputs, "K": K}).outputs["lse"]
    assert np.array_equal(np.isnan(lse[0, 0]), visible[:, kv_len // 2])


def test_infinity_in_v_reaches_the_rows_that_see_it_with_its_sign():
    problem = Problem(heads=1, q_len=250, kv_len=250, dtype="float16", mask="causal")
    inputs = draw_inputs(problem, "normal", 2)
    clean = EXECUTOR.run(problem, VARIANT.plan(problem), inputs).outputs["O"][0, 0]
    inputs["V"][0, 0, 100, 5], inputs["V"][0, 0, 180, 5] = math.inf, -math.inf
    O = EXECUTOR.run(problem, VARIANT.plan(problem), inputs).outputs["O"][0, 0]
    others = np.arange(64) != 5
    assert np.array_equal(O[:, others], clean[:, others])
    assert np.array_equal(O[:100, 5], clean[:100, 5])
    assert np.all(O[100:180, 5] == math.inf) and np.all(np.isnan(O[180:, 5]))


@pytest.fixture
def two_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the emulated GPU hold two blocks, which then cancel the others."""
    monkeypatch.setattr(executor, "usual_gpu", lambda arch: replace(usual_gpu(arch), multiprocessors=2))


def test_two_blocks_take_the_tiles_of_all(two_multiprocessors: None):
    # Six tiles of rows.
    problem = Problem(heads=3, q_len=300, kv_len=200, dtype="float16", mask="causal")
    plan, inputs = VARIANT.plan(problem), draw_inputs(problem, "rising", 1)
    assert plan.launches[0].grid == (6,)
    timeline = TimelineRecorder(2, 10_000)
    few = emulator(SETTINGS).observe(problem, plan, inputs, timeline, usual_gpu("sm_100a"))
    assert [block.number for block in timeline.launches[0].blocks] == [0, 1]
    many = assert_right(problem)
    assert all(np.array_equal(few.outputs[name], many.outputs[name]) for name in ("O", "lse"))
    assert (few.read_bytes, few.write_bytes) == (many.read_bytes, many.write_bytes)


@pytest.mark.thorough
@pytest.mark.parametrize("mask", ["causal", pytest.param("none", marks=pytest.mark.exhaustive)])
def test_nothing_races_where_a_block_has_several_tiles(mask: str, two_multiprocessors: None):
    problem = Problem(heads=3, q_len=300, kv_len=200, dtype="float16", mask=mask)
    plan, inputs = VARIANT.plan(problem), draw_inputs(problem, "rising", 1)
    assert EmulatorSanitizer(SETTINGS, shuffled_runs=1).check(VARIANT, problem, plan, inputs) == ()


@pytest.mark.thorough
@pytest.mark.parametrize("stages", [2, 4])
def test_any_number_of_stages(stages: int):
    tile = {"Br": 256, "Bc": 128, "stages": stages}
    assert_right(Problem(heads=2, q_len=300, kv_len=430, dtype="float16", mask="causal"), tile=tile)


def test_taking_the_next_tile_shortens_the_busiest_block_as_the_page_says():
    problem = Problem(heads=16, q_len=8192, kv_len=8192, head_dim=128, dtype="bfloat16", mask="causal")
    last_rows = np.arange(8191, 0, -256)
    work = np.repeat(-(-problem.span(last_rows)[1] // 128), problem.heads).tolist()
    assert len(work) == VARIANT.plan(problem).launches[0].grid[0]
    multiprocessors = usual_gpu("sm_100a").multiprocessors
    loads = [0] * multiprocessors
    for amount in work:
        heapq.heapreplace(loads, loads[0] + amount)
    busiest = max(sum(work[block::multiprocessors]) for block in range(multiprocessors))
    page = " ".join((Path(__file__).parents[2] / "docs/fa4.md").read_text().split())
    assert f"the busiest of {multiprocessors} blocks would visit {busiest} tiles of keys" in page
    assert f"and {sum(work) // multiprocessors} are the mean" in page
    assert f"the busiest block visits {max(loads)}," in page


# --- What it takes of the hardware ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head_dim", "dtype", "mask"), exhaustive_unless(lambda build: build == (128, "bfloat16", "causal"), BUILDS)
)
def test_nothing_spills(head_dim: int, dtype: str, mask: str):
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    problem = Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype=dtype, mask=mask)
    launch = last_launch(VARIANT, problem)
    kernel = compile_kernel(launch.kernel, launch.args, SETTINGS.arch)
    found = resources(kernel.ptx, kernel.arch, kernel.entry, kernel.max_registers)
    if found is None:
        pytest.skip("ptxas is older than the compiler")
    assert_in_registers(found)
    assert found.shared_bytes <= STATIC_BYTES
    assert found.shared_bytes + launch.shared_bytes <= LARGEST_BLOCK_BYTES


def test_the_cubic_is_as_accurate_as_the_budget_says():
    text = (Path(__file__).parents[2] / "variants/_blackwell/exponentials.cuh").read_text()
    found = re.search(r"CUBIC\[4\] = \{(.*?)\}", text)
    assert found is not None
    constant, *rest = (np.float32(number.strip("f ")) for number in found[1].split(","))
    assert constant == 1.0
    f = np.linspace(0, 1, 2**20, endpoint=False, dtype=np.float32)
    p = np.full_like(f, rest[-1])
    for c in (*rest[-2::-1], constant):
        p = (p.astype(np.float64) * f + c).astype(np.float32)
    error = np.abs(p / np.exp2(f.astype(np.float64)) - 1).max()
    assert 8.5e-5 < error < CUBIC


@pytest.mark.parametrize("head_dim", [64, 128])
def test_tiles_to_choose_from_start_with_the_default_and_fit(head_dim: int):
    assert VARIANT.tiles is not None
    problem = Problem(head_dim=head_dim, dtype="bfloat16")
    tiles = [Fa4Tile(**tile) for tile in VARIANT.tiles(problem)]
    assert tiles[0] == fa4.default_tile(problem)
    assert len(set(tiles)) == len(tiles) >= 2 and all(tile.fits(head_dim) for tile in tiles)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"Br": 128, "Bc": 128, "stages": 3}, "Br has to be 256"),
        ({"Br": 256, "Bc": 64, "stages": 3}, "Bc 128"),
        ({"Br": 256, "Bc": 128, "stages": 1}, "at least 2"),
    ],
)
def test_a_tile_that_the_kernel_cannot_have_is_refused(sizes: dict[str, int], reason: str):
    with pytest.raises(PlanError, match=reason):
        Fa4Tile(**sizes)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "choose float16 or bfloat16"),
        ({"dtype": "float16", "head_dim": 96}, "choose 64 or 128"),
        ({"dtype": "float16", "scale": 1e-40}, "no normal float32"),
    ],
)
def test_what_is_out_of_reach_is_said(fields: dict[str, object], reason: str):
    assert VARIANT.supports(Problem(dtype="bfloat16", head_dim=64, scale=0.0)) is None
    said = VARIANT.supports(Problem(**fields))
    assert said is not None and reason in said and "\n" not in said


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a", "sm_120"])
def test_other_architectures_are_refused(arch: str):
    problem = Problem(dtype="bfloat16", head_dim=64)
    with pytest.raises(UnsupportedProblem, match=f"run on sm_100a alone, not on {arch}; .*--arch sm_100a"):
        make_plan(VARIANT, problem, arch)
    assert make_plan(VARIANT, problem, "sm_100a").launches
