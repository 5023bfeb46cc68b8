"""One battery for every paged attention that is registered: answers, claims, races, bits, tables that lead astray."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from emulators import emulator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lanes import exhaustive_unless, is_exhaustive
from right_answers import require_right
from twins import of_one_language

from harness.compilers.ptxas import find_ptxas
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import refusal_of
from harness.execution.run_settings import RunSettings
from harness.model.cases.case import Case
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.operations.paged_attention.build import PagedBuild
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.paged_attention.strategies import cases, problems
from harness.studies.show.kernel_listing import list_kernels
from harness.support.errors import KernelFault

VARIANTS = discover().registry.select(None, "paged-attention")
EXECUTOR = emulator()
SANITIZER = EmulatorSanitizer(shuffled_runs=1)
USUAL = PagedBuild("float16", 24, 32)
# Further builds are compilations.
BUILDS = (USUAL, PagedBuild("bfloat16", 33, 48, 512), PagedBuild("float16", 64, 16)) if is_exhaustive() else (USUAL,)


def each(variants: list[Variant]) -> pytest.MarkDecorator:
    chosen = of_one_language(lambda variant: variant.backend == "cupy", variants)
    return pytest.mark.parametrize("variant", chosen, ids=lambda variant: variant.name)


each_variant = each(VARIANTS)


def battery(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,  # the first example of a kernel compiles it
        derandomize="CI" in os.environ,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.differing_executors),
    )


def held(variant: Variant, problem: PagedProblem, regime: str = "normal") -> None:
    done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, regime, 1))
    assert done.verdict == PASS and done.claim_holds, done.reason


def test_there_is_one_that_walks_in_each_language_and_two_that_divide_keys():
    in_both = {f"{name}-{language}" for name in ("paged", "paged-lean", "cascade") for language in ("cupy", "numba")}
    assert {*in_both, "paged-split-kv-cupy"} <= {variant.name for variant in VARIANTS}


@each_variant
@given(data=st.data())
@battery(40)
def test_answers_are_within_what_is_expected_and_claims_are_exact(variant: Variant, data: st.DataObject):
    case: Case = data.draw(cases(BUILDS, most_tiles=4))
    require_right(attempt(variant, case.problem, EXECUTOR, question=Question.pose(case.problem, case.inputs())))


@each_variant
def test_more_sequences_than_a_warp_looks_at_together(variant: Variant):
    # 0 to 39 keys, in an order that mixes them; the empty one lies among the others.
    lengths = tuple(i * 7 % 40 for i in range(40))
    held(variant, PagedProblem(lengths=lengths, heads=2, kv_heads=1, head_dim=24, page_size=32))


@each_variant
def test_splits_of_a_long_sequence_among_short_ones(variant: Variant):
    lengths = (3, 1300, 0, 513, 512)
    held(variant, PagedProblem(lengths=lengths, heads=2, kv_heads=1, q_len=3, head_dim=24, page_size=32), "rising")


@each_variant
def test_sequences_share_more_than_a_split(variant: Variant):
    # The second is in the prefix as far as it goes; the rows of the third see less than its 544 shared keys.
    problem = PagedProblem(
        lengths=(1100, 70, 545, 0, 700), heads=6, kv_heads=2, q_len=3, head_dim=24, page_size=32, prefix=600
    )
    held(variant, problem, "rising")


@each_variant
def test_shared_keys_that_are_not_finite_reach_only_rows_that_see_them(variant: Variant):
    problem = PagedProblem(lengths=(100, 96, 40), heads=2, kv_heads=1, head_dim=24, page_size=32, prefix=96)
    inputs = draw_inputs(problem, "normal", 2)
    inputs["V"][inputs["table"][0, 2], :, 5] = np.nan  # key 69
    O = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["O"]
    assert np.isnan(O[:2]).all() and np.isfinite(O[2]).all()


@each_variant
def test_no_sequence_has_a_key(variant: Variant):
    held(variant, PagedProblem(lengths=(0,), batch=3, heads=2, head_dim=24, page_size=32))


@each([variant for variant in VARIANTS if "window" in variant.takes])
def test_windows_caps_slopes_and_sinks_over_evicted_pages(variant: Variant):
    # Windows that begin in the first split and in later ones, rows of two heads in a tile, and a sequence without keys.
    problem = PagedProblem(
        lengths=(1300, 0, 40, 513, 9), heads=6, kv_heads=2, q_len=7, head_dim=24, page_size=32, prefix=600,
        window=100, softcap=2.0, alibi=True, sinks=True,
    )  # fmt: skip
    assert problem.pages_in_use < sum(problem.sequence_pages) - 40
    for fields, regime in (({}, "normal"), ({"window": 1}, "rising"), ({"window": 4096}, "offset")):
        held(variant, problem.with_fields(pages=None, **fields), regime)


each_in_8_bits = each([variant for variant in VARIANTS if "kv_dtype" in variant.takes])


@each_in_8_bits
def test_keys_and_values_in_8_bits(variant: Variant):
    # Rows that see different keys, heads of a tile with scales of their own, and NaN where nothing is seen.
    fields = {"heads": 6, "kv_heads": 3, "q_len": 3, "page_size": 32, "kv_dtype": "e4m3"}
    narrow = PagedProblem(lengths=(5, 0, 1300, 33), head_dim=24, **fields)
    for regime in ("normal", "offset", "non-finite"):
        held(variant, narrow, regime)
    rules = {"window": 100, "softcap": 2.0, "alibi": True, "sinks": True}
    held(variant, PagedProblem(lengths=(40, 300), head_dim=80, dtype="bfloat16", prefix=40, **rules, **fields))
    short = narrow.with_fields(lengths=(5, 0, 70), batch=3)
    findings = SANITIZER.check(variant, short, variant.plan(short), draw_inputs(short, "normal", 3))
    assert findings == (), [finding.message for finding in findings]
    # Rows of Q that follow NaN in a block: 24 elements lie in another order in 32, and leave some behind the 24th.
    several = narrow.with_fields(lengths=(5,) * 6, batch=6)
    inputs = draw_inputs(several, "normal", 3)
    expected = EXECUTOR.run(several, variant.plan(several), inputs).outputs["O"]
    inputs["Q"][0] = np.nan
    O = EXECUTOR.run(several, variant.plan(several), inputs).outputs["O"]
    assert np.isnan(O[0]).all()
    np.testing.assert_array_equal(O[1:], expected[1:])


@each_in_8_bits
def test_all_256_bytes_are_widened_exactly(variant: Variant):
    # One key, of which each query head looks at one element: lse is that element of K, and O the row of V.
    problem = PagedProblem(lengths=(1,), heads=256, kv_heads=2, head_dim=128, page_size=16, scale=0.5, kv_dtype="e4m3")
    inputs = draw_inputs(problem)
    scales = np.array([0.75, 3.0], np.float32)
    every = np.arange(256, dtype=np.uint8).reshape(2, 128).view(inputs["K"].dtype)
    inputs |= {"K_scale": scales, "V_scale": scales[::-1].copy()}
    inputs["Q"][0, :, 0] = np.tile(np.eye(128), (2, 1))
    page = inputs["table"][0, 0]
    inputs["K"][page, :, 0], inputs["V"][page, :, 0] = every, every
    elements = every.astype(np.float32)
    assert np.isnan(elements).sum() == 2
    inputs["K"][page, :, 0, 127] = 0  # its NaN would be in all products
    outputs = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs
    expected = np.where(np.isnan(elements), 0, elements) * np.float32(0.5) * scales[:, None]
    np.testing.assert_array_equal(outputs["lse"].reshape(2, 128), expected)
    of_heads = (elements * scales[::-1, None]).astype(np.float16)
    np.testing.assert_array_equal(outputs["O"].reshape(2, 128, 128), of_heads[:, None].repeat(128, axis=1))
    inputs["K"][page, 0, 0] = every[0]
    lse = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["lse"].reshape(2, 128)
    assert np.isnan(lse[0]).all() and np.isfinite(lse[1]).all()


@pytest.mark.thorough
@each_variant
def test_float32_is_taken_or_refused_with_a_reason(variant: Variant):
    problem = PagedProblem(lengths=(5, 40), heads=2, kv_heads=1, head_dim=7, dtype="float32")
    reason = refusal_of(variant, problem)
    if reason is None:
        held(variant, problem)
    else:
        assert "choose float16 or bfloat16" in reason


@pytest.mark.thorough
@each_variant
@given(problem=problems((USUAL,), most_tiles=3), seed=st.integers(0, 2**16))
@battery(6)
def test_no_races_no_unwritten_memory_no_order_that_matters(variant: Variant, problem: PagedProblem, seed: int):
    findings = SANITIZER.check(variant, problem, variant.plan(problem), draw_inputs(problem, "normal", seed))
    assert findings == (), [finding.message for finding in findings]


@each_variant
def test_bits_do_not_depend_on_threads_or_the_order_of_warps(variant: Variant):
    problem = PagedProblem(lengths=(70, 9, 600), q_len=2, head_dim=24, page_size=32)
    inputs, plan = draw_inputs(problem, "normal", 3), variant.plan(problem)
    runs = [emulator(RunSettings(threads=t, seed=s)).run(problem, plan, inputs) for t, s in ((1, 0), (2, 77))]
    assert all(runs[0].outputs[name].tobytes() == runs[1].outputs[name].tobytes() for name in ("O", "lse"))


@each_variant
@pytest.mark.parametrize("page", [-1, 9])
def test_a_table_that_names_no_page_is_a_fault_that_names_the_access(variant: Variant, page: int):
    problem = PagedProblem(lengths=(70, 40), heads=2, kv_heads=1, head_dim=24, page_size=32, pages=9)
    inputs = draw_inputs(problem)
    inputs["table"][1, 1] = page
    where = "byte offset 13,824 of buffer K" if page == 9 else "byte offset -1,536 of buffer K|no buffer at this"
    with pytest.raises(KernelFault, match=f"kernel (paged|cascade).*kernel.*out-of-bounds .* at .*({where})"):
        EXECUTOR.run(problem, variant.plan(problem), inputs)


@each_variant
def test_entries_behind_the_last_page_are_not_followed(variant: Variant):
    problem = PagedProblem(lengths=(32, 33), heads=2, kv_heads=1, head_dim=24, page_size=32, table_len=6)
    inputs = draw_inputs(problem)
    first = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["O"]
    inputs["table"][0, 1:], inputs["table"][1, 2:] = -7, 0
    assert EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["O"].tobytes() == first.tobytes()


@each_variant
def test_a_worked_example(variant: Variant):
    # Scores 0, ln 2 and ln 5 in two pages, of which the pool has the second one first: weights 1 : 2 : 5.
    problem = PagedProblem(lengths=(34,), heads=1, kv_heads=1, head_dim=24, page_size=32, pages=3, scale=1.0)
    K, V = (np.full((3, 1, 32, 24), np.nan, np.float16) for _ in range(2))
    K[2], V[2] = 0, 0
    K[2, ..., 0], V[2, 0, 3, 0] = -40, 8
    K[2, 0, 3, 0] = 0
    K[0, 0, :2], V[0, 0, :2] = 0, 0
    K[0, 0, :2, 0], V[0, 0, :2, 0] = np.log([2, 5]), [16, 24]
    inputs = {
        "Q": np.ones((1, 1, 1, 24), np.float16), "K": K, "V": V,
        "table": np.array([[2, 0]], np.int32), "lengths": np.array([34], np.int32),
    }  # fmt: skip
    outputs = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs
    np.testing.assert_allclose(outputs["O"][0, 0, 0], [(8 + 32 + 120) / 8, *[0] * 23], rtol=2e-3)
    np.testing.assert_allclose(outputs["lse"].reshape(-1), [np.log(8)], rtol=2e-3)


@pytest.mark.thorough
@each_variant
@pytest.mark.parametrize("place", exhaustive_unless(lambda place: place == 1, range(1, 6)))
def test_other_tiles_give_the_answer(variant: Variant, place: int):
    problem = PagedProblem(lengths=(5, 150, 0), heads=4, kv_heads=2, q_len=2, head_dim=24, page_size=32)
    assert variant.tiles is not None
    held(with_tile(variant, variant.tiles(problem)[place]), problem)


@each_variant
def test_what_is_out_of_reach_is_said(variant: Variant):
    assert variant.supports(PagedProblem(dtype="bfloat16")) is None
    for fields, said in (
        ({"head_dim": 257}, "head_dim is 257"),
        ({"scale": 1e300}, "scale is 1e+300"),
    ):
        assert said in (variant.supports(PagedProblem(**fields)) or "")


@pytest.mark.parametrize("name", ["paged-split-kv-cupy", "paged-lean-cupy", "cascade-cupy"])
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_nothing_spills(head_dim: int, name: str):
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    problem = PagedProblem(lengths=(64, 64, 300), prefix=64, head_dim=head_dim, dtype="bfloat16", page_size=32)
    for listing in list_kernels(discover().registry.get(name), problem, "sm_90"):
        used = listing.resources
        assert used is not None
        assert (used.spill_store_bytes, used.spill_load_bytes, used.stack_bytes) == (0, 0, 0)


def test_no_sequence_has_more_splits_than_its_keys_need():
    variant = discover().registry.get("paged-split-kv-cupy")
    lengths = (0, 1, 512, 513, 5000, 0)
    first, second = variant.plan(PagedProblem(lengths=lengths, heads=8, kv_heads=2)).launches
    assert first.grid == (2 * (1 + 1 + 2 + 10), 1, 1) and second.grid == (6 * 8 // 4,)
    (alone,) = variant.plan(PagedProblem(lengths=(0, 0))).launches
    assert alone.kernel_name == "paged_split_kv_combine"


CASCADE = discover().registry.get("cascade-cupy")


@pytest.mark.parametrize(
    ("fields", "kernels"),
    [
        ({"lengths": (130, 140), "prefix": 128}, ["prefix", "suffix", "combine"]),
        ({"lengths": (128, 128), "prefix": 128}, ["prefix", "combine"]),
        ({"lengths": (130, 140), "prefix": 31}, ["suffix", "combine"]),  # not one page
        ({"lengths": (130, 20), "prefix": 128}, ["suffix", "combine"]),  # one sequence has it
        ({"lengths": (0, 0), "prefix": 128}, ["combine"]),
    ],
)
def test_a_prefix_that_nobody_shares_has_no_launch(fields: dict[str, Any], kernels: list[str]):
    plan = CASCADE.plan(PagedProblem(page_size=32, **fields))
    assert [launch.kernel_name for launch in plan.launches] == [f"cascade_{kernel}" for kernel in kernels]


def test_a_shared_prefix_is_read_once():
    problem = PagedProblem(lengths=(1040,) * 16, prefix=1024)
    alone = discover().registry.get("paged-split-kv-cupy")
    assert CASCADE.claim is not None and alone.claim is not None
    assert CASCADE.claim(problem).read_bytes * 10 < alone.claim(problem).read_bytes


@pytest.mark.parametrize(
    ("fields", "blocks"),
    [
        ({"lengths": (4000, 70), "head_dim": 24}, 17),  # runs that end within a head and at its end
        (
            {"lengths": (33, *(0,) * 40, 700), "head_dim": 24, "kv_heads": 1},
            7,
        ),  # a block in several groups of 32 lengths
        ({"lengths": (900, 20), "heads": 6, "q_len": 7, "head_dim": 24}, 8),  # tiles of rows that see different keys
    ],
)
def test_equal_runs_end_anywhere(fields: dict[str, Any], blocks: int):
    variant = discover().registry.get("paged-lean-cupy")
    problem = PagedProblem(**{"heads": 4, "kv_heads": 2, "page_size": 32, **fields})
    assert variant.plan(problem).launches[0].grid == (blocks,)
    held(variant, problem, "rising")


def test_runs_of_more_tiles_than_a_warp_reads_pages_of_at_once():
    variant = with_tile(discover().registry.get("paged-lean-cupy"), {"Br": 16, "split": 4096})
    problem = PagedProblem(lengths=(2500,), heads=2, kv_heads=1, head_dim=24, page_size=32)
    assert variant.plan(problem).launches[0].grid == (1,)
    held(variant, problem, "rising")


@pytest.mark.parametrize(("keys", "block"), [(1000, (32, 2)), (1100, (32 * 2, 1))])
def test_how_many_warps_put_splits_together_changes_no_bit(keys: int, block: tuple[int, int]):
    variant = discover().registry.get("paged-split-kv-cupy")
    fields = {"heads": 2, "kv_heads": 1, "head_dim": 64, "dtype": "float16"}
    both = PagedProblem(lengths=(keys, 17000), **fields)
    inputs = draw_inputs(both, "normal", seed=4)
    first = PagedProblem(lengths=(keys,), pages=both.pool_pages, table_len=both.table_shape[1], **fields)
    own = {name: x[: first.sequences] if name in ("Q", "table", "lengths") else x for name, x in inputs.items()}
    runs = []
    for problem, arrays in ((both, inputs), (first, own)):
        plan = variant.plan(problem, {"Br": 16, "split": 64})
        runs.append((plan.launches[1].block, emulator().run(problem, plan, arrays).outputs))
    (many, of_both), (few, alone) = runs
    assert (many, few) == ((32 * 16, 1), block)
    for name in ("O", "lse"):
        assert (of_both[name][:1] == alone[name]).all()
