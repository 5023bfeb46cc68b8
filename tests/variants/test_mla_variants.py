"""What is particular to kernels of latent attention, beside what every registered variant is held to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulators import emulator
from lanes import thorough_unless

from harness.compilers.ptxas import find_ptxas
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.execution.planning.tiles import with_tile
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.operations.mla_decode.problem import MlaProblem
from harness.studies.show.kernel_listing import list_kernels
from harness.support.errors import KernelFault

VARIANTS = discover().registry.select(None, "mla-decode")
EXECUTOR = emulator()
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
# One build of all tests here, which the tensor cores of Hopper take, too.
USUAL: dict[str, Any] = {"latent_dim": 128, "rope_dim": 64, "page_size": 48, "dtype": "float16"}


def in_splits(variant: Variant) -> Variant:
    """Whatever the lengths: the shortest splits of `mla-mma`, and longer than the shortest of the others."""
    tile = {"split": 512, **({"Br": 64, "Bc": 64} if variant.algorithm == "mla-mma" else {"Br": 16, "Bc": 16})}
    return with_tile(variant, tile)


def held(variant: Variant, problem: MlaProblem, regime: str = "normal") -> None:
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, regime, 1))
    assert done.verdict == PASS and done.claim_holds, done.reason


def test_there_is_one_in_each_language_and_one_on_tensor_cores():
    assert {"mla-split-cupy", "mla-split-numba", "mla-mma-cupy"} <= {variant.name for variant in VARIANTS}


@each_variant
@pytest.mark.parametrize("regime", ["rising", "non-finite"])
def test_splits_of_a_long_sequence_among_short_ones(variant: Variant, regime: str):
    held(in_splits(variant), MlaProblem(lengths=(3, 700, 0, 513, 512), heads=7, q_len=3, **USUAL), regime)


@each_variant
def test_keys_that_no_split_divides_and_no_keys(variant: Variant):
    held(variant, MlaProblem(lengths=(0, 1, 63, 64, 65, 129), heads=65, **USUAL))


@each_variant
def test_a_row_is_loaded_once_for_scores_and_values(variant: Variant):
    # 16 heads share a tile of rows: what is read of the cache is its rows, once.
    problem = MlaProblem(lengths=(512,), heads=16, **USUAL)
    read_bytes = EXECUTOR.run(problem, variant.plan(problem), draw_inputs(problem)).read_bytes
    assert read_bytes is not None
    cache, q_bytes = 512 * 192 * 2, 64 * 192 * 2
    assert cache < read_bytes < cache + q_bytes + 0.2 * cache


@each_variant
def test_no_races_and_no_unwritten_memory(variant: Variant):
    problem = MlaProblem(lengths=(130, 7), heads=5, q_len=2, **USUAL)
    findings = EmulatorSanitizer(shuffled_runs=1).check(variant, problem, variant.plan(problem), draw_inputs(problem))
    assert findings == (), [finding.message for finding in findings]


@each_variant
def test_a_negative_scale_and_none(variant: Variant):
    for scale in (-0.25, 0.0):
        problem = MlaProblem(lengths=(70,), heads=2, scale=scale, **USUAL)
        done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, "normal", 1))
        assert done.verdict == PASS, done.reason


@each_variant
def test_entries_behind_the_last_page_are_not_followed(variant: Variant):
    problem = MlaProblem(lengths=(48, 49), heads=2, table_len=6, **USUAL)
    inputs = draw_inputs(problem)
    first = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["O"]
    inputs["table"][0, 1:], inputs["table"][1, 2:] = -7, 0
    assert EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["O"].tobytes() == first.tobytes()


@pytest.mark.parametrize("name", ["mla-split-cupy", "mla-split-numba"])
def test_a_page_outside_of_the_pool_is_a_fault(name: str):
    # Copies of boxes bring zeros from outside of a tensor; loads fault.
    problem = MlaProblem(lengths=(70, 40), heads=2, pages=9, **USUAL)
    inputs = draw_inputs(problem)
    inputs["table"][1, 0] = 9
    with pytest.raises(KernelFault, match=r"out-of-bounds .* buffer C"):
        EXECUTOR.run(problem, discover().registry.get(name).plan(problem), inputs)


@each_variant
def test_a_worked_example(variant: Variant):
    # Scores 0, ln 2 and ln 5, half of each from the latent part: weights 1 : 2 : 5, and values 8, 16, 24.
    problem = MlaProblem(lengths=(50,), heads=1, pages=3, scale=1.0, **USUAL)
    C = np.full((3, 48, 192), np.nan, np.float16)
    C[2] = 0
    C[2, :, 128] = -40
    C[2, 3, 128], C[2, 3, 1] = 0, 8
    C[0, :2] = 0
    for row, (score, value) in enumerate(((np.log(2), 16), (np.log(5), 24))):
        C[0, row, 0], C[0, row, 128], C[0, row, 1] = score / 2, score / 2, value
    Q = np.zeros((1, 1, 1, 192), np.float16)
    Q[..., [0, 128]] = 1
    inputs = {"Q": Q, "C": C, "table": np.array([[2, 0]], np.int32), "lengths": np.array([50], np.int32)}
    outputs = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs
    np.testing.assert_allclose(outputs["O"][0, 0, 0, 1], (8 + 32 + 120) / 8, rtol=2e-3)
    np.testing.assert_allclose(outputs["lse"].reshape(-1), [np.log(8)], rtol=2e-3)


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("mla-split-cupy", {"latent_dim": 24}, "latent_dim is 24"),
        ("mla-split-numba", {"latent_dim": 1024}, "do not fit shared memory"),
        ("mla-mma-cupy", {"dtype": "float32"}, "choose float16 or bfloat16"),
        ("mla-mma-cupy", {"latent_dim": 64}, "latent_dim is 64"),
        ("mla-mma-cupy", {"rope_dim": 32}, "rope_dim is 32"),
        ("mla-split-cupy", {"scale": 1e300}, "scale is 1e+300"),
    ],
)
def test_what_is_out_of_reach_is_said(name: str, fields: dict[str, Any], reason: str):
    variant = discover().registry.get(name)
    assert variant.supports(MlaProblem(dtype="bfloat16")) is None
    assert reason in (variant.supports(MlaProblem(**fields)) or "")


def test_a_block_has_all_keys_where_there_are_enough_of_them():
    variant = discover().registry.get("mla-mma-cupy")
    (alone,) = variant.plan(MlaProblem(batch=128, lengths=(4096,), heads=128)).launches
    assert alone.grid == (2, 1, 128)
    first, second = variant.plan(MlaProblem(lengths=(4096,), heads=128)).launches
    assert first.grid == (2, 8, 1) and second.kernel_name == "mla_combine"


@pytest.mark.parametrize(
    "variant",
    thorough_unless(lambda variant: variant.algorithm == "mla-mma", VARIANTS),
    ids=lambda variant: variant.name,
)
def test_nothing_spills(variant: Variant):
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    for listing in list_kernels(variant, MlaProblem(lengths=(4096,)), "sm_90"):
        used = listing.resources
        assert used is not None
        assert (used.spill_store_bytes, used.spill_load_bytes) == (0, 0)
        assert used.remarks == ()
