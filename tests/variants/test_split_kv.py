"""split-kv where a split ends, where the rows of two heads meet in a tile, and where both masks cut through them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from attention_runs import accuracy, executed, run
from claimed_traffic import traffic
from emulators import emulator
from lanes import thorough_unless

from harness.emulator.instruments import Instruments
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.traffic import Traffic
from harness.operations.attention.cases.build import BUILDS
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.drawing.builds import builds_for

VARIANT = discover().registry.get("split-kv-cupy")
SMALL = {"Br": 16, "split": 64}
"""One tile of keys per warp and split."""
PROBLEM = Problem(batch=2, heads=6, kv_heads=2, q_len=1, kv_len=130, head_dim=24, dtype="float16")


@pytest.mark.parametrize("kv_len", [1, 16, 17, 63, 64, 65, 127, 128, 129, 640, 641, 2500])
@pytest.mark.parametrize(("q_len", "causal"), [(1, False), (3, True)])
def test_splits_end_anywhere(kv_len: int, q_len: int, causal: bool):
    """A last split of one key, and more splits than warps put together at once."""
    problem = dataclasses.replace(PROBLEM, kv_len=kv_len, q_len=q_len, mask="causal" if causal else "none")
    assert_right(problem, SMALL, seed=kv_len)


def assert_right(problem: Problem, tile: dict[str, int], seed: int = 1) -> None:
    """The answer is right, and the bytes are those that are claimed."""
    execution = executed(VARIANT, problem, "rising", seed, tile=tile)
    result = accuracy(VARIANT, problem, "rising", seed, execution)
    assert result.passed, result.reason
    assert not result.suspicious, result
    assert VARIANT.claim is not None
    assert traffic(execution) == VARIANT.claim(problem, tile)


@pytest.mark.parametrize(
    ("varlen", "fields"),
    [
        ("1+3+0+2+17/200+0+70+64+65", {}),
        ("1+1+40/1+129+250", {"mask": "causal+window:64", "sinks": True}),
        ("33+2/100+300", {"mask": "causal", "layout": "bhsd+3", "v_head_dim": 40, "head_dim": 32}),
    ],
)
def test_sequences_have_their_own_number_of_splits(varlen: str, fields: dict[str, object]):
    """One without keys has none, and one without rows no results, between those of others."""
    given = {"heads": 6, "kv_heads": 2, "head_dim": 24, "dtype": "float16", "mask": "none", **fields}
    assert_right(Problem(varlen=varlen, **given), SMALL)  # type: ignore[arg-type]


def test_a_sink_counts_once_where_several_warps_put_splits_together():
    problem = dataclasses.replace(PROBLEM, kv_len=1100, q_len=1, mask="none", sinks=True)
    (_, combine) = VARIANT.plan(problem, SMALL).launches
    assert combine.block == (64, 1)
    inputs = draw_inputs(problem, "normal", 3)
    inputs["Q"][...] = 0  # every key has weight 1
    inputs["V"][...] = 1
    inputs["sinks"][...] = np.log(problem.kv_len)
    O = emulator().run(problem, VARIANT.plan(problem, SMALL), inputs).outputs["O"]
    assert np.asarray(O, np.float32) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("mask", ["causal", "window:3,1"])
@pytest.mark.parametrize(("heads", "kv_heads", "q_len"), [(7, 1, 5), (16, 1, 1), (17, 1, 1), (6, 2, 16), (3, 1, 33)])
def test_rows_of_several_heads_share_a_tile(heads: int, kv_heads: int, q_len: int, mask: str):
    assert_right(dataclasses.replace(PROBLEM, heads=heads, kv_heads=kv_heads, q_len=q_len, mask=mask), SMALL)


# The last query lies on key 249: windows that begin and end at the edge of a tile of 16 keys or of a split, one key
# before and one behind; then rows that see nothing, and one key.
@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask"),
    [
        (1, 250, "window:0"),
        *((1, 250, f"window:{left}") for left in (56, 57, 58, 73, 121, 122, 500)),
        (4, 250, "window:60,1"),
        (40, 250, "causal+window:64"),
        (40, 250, "window:9,30"),
        (90, 20, "window:5,11"),
        (40, 1, "window:7"),
        (40, 250, "documents:64+100+66+20"),
        (90, 20, "documents:5+0+1+14"),
        (40, 250, "prefix:130"),
        (3, 250, "causal+documents:64+185"),
    ],
)
def test_windows_end_anywhere(q_len: int, kv_len: int, mask: str):
    assert_right(dataclasses.replace(PROBLEM, q_len=q_len, kv_len=kv_len, mask=mask), SMALL)


@pytest.mark.parametrize(
    ("head_dim", "split"), thorough_unless(lambda build: build == (24, 64), [(24, 64), (24, 512), (33, 64)])
)
@pytest.mark.parametrize("mask", ["window:2", "window:40,3", "causal+window:17", "documents:40+1+39+70"])
def test_keys_between_those_of_two_heads_are_left_out(mask: str, head_dim: int, split: int):
    """The last queries of a head and the first of the next share a tile of rows, and lie 150 keys apart."""
    problem = dataclasses.replace(PROBLEM, heads=6, kv_heads=2, q_len=150, kv_len=170, head_dim=head_dim, mask=mask)
    assert_right(problem, {"Br": 16, "split": split})


def test_a_window_is_all_that_is_read():
    """128 of 2048 keys, in the last split of four: none of the others works, or is asked for."""
    problem = Problem(heads=8, kv_heads=1, q_len=1, kv_len=2048, head_dim=64, dtype="bfloat16", mask="window:127")
    inputs = draw_inputs(problem, "normal", 1)
    inputs["K"][:, :, : 2048 - 128] = inputs["V"][:, :, : 2048 - 128] = math.nan
    execution = run(VARIANT, problem, inputs)
    X_q, X_k, d = 8 * 64 * 2, 128 * 64 * 2, 64
    assert traffic(execution) == Traffic(X_q + 2 * X_k + 8 * (4 * d + 2 * 32), 4 * 8 * (d + 2) + X_q + 32 * 8)
    assert np.all(np.isfinite(execution.outputs["O"].astype(np.float32)))


@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask"),
    [
        (1, 100, "window:15"),
        (9, 129, "window:12,3"),
        (40, 129, "causal+window:16"),
        (50, 30, "window:8"),
        (9, 129, "documents:110+12+7"),
        (40, 60, "documents:20+16+1+23"),
    ],
)
def test_what_is_not_finite_outside_of_a_window_reaches_no_row(q_len: int, kv_len: int, mask: str):
    """NaN in V at element k of key k, or that many further: O shows which row saw which key, as windows are shorter."""
    problem = dataclasses.replace(PROBLEM, q_len=q_len, kv_len=kv_len, mask=mask)
    d, rows, keys = problem.head_dim, np.arange(q_len)[:, None], np.arange(kv_len)
    visible = problem.mask.visible(rows, keys[None, :], q_len, kv_len)
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(VARIANT, problem, inputs, tile=SMALL).outputs

    poisoned = {**inputs, "V": inputs["V"].copy()}
    poisoned["V"][:, :, keys, keys % d] = math.nan
    dirty = run(VARIANT, problem, poisoned, tile=SMALL).outputs
    reached = np.stack([visible[:, keys % d == element].any(axis=1) for element in range(d)], axis=1)
    reached = np.broadcast_to(reached, problem.q_shape)
    assert np.array_equal(np.isnan(dirty["O"].astype(np.float32)), reached)
    assert np.array_equal(dirty["O"][~reached], clean["O"][~reached])
    assert np.array_equal(dirty["lse"], clean["lse"])

    for key in (0, kv_len // 2, kv_len - 1):
        poisoned = {**inputs, "K": inputs["K"].copy()}
        poisoned["K"][:, :, key, 3] = math.nan
        lse = run(VARIANT, problem, poisoned, tile=SMALL).outputs["lse"]
        assert np.array_equal(np.isnan(lse), np.broadcast_to(visible[:, key], lse.shape))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kv_len", [100, 129])
def test_what_some_rows_of_a_tile_do_not_see_does_not_reach_them(kv_len: int, poison: float):
    """The diagonal lies within a split, and across two: the last key is seen by the last query of each head alone."""
    problem = dataclasses.replace(PROBLEM, kv_len=kv_len, q_len=5, mask="causal")
    inputs = draw_inputs(problem, "normal", 2)
    clean = run(VARIANT, problem, inputs, tile=SMALL).outputs
    for name in "KV":
        poisoned = {**inputs, name: inputs[name].copy()}
        poisoned[name][:, :, -1] = poison
        dirty = run(VARIANT, problem, poisoned, tile=SMALL).outputs
        for output in ("O", "lse"):
            assert np.array_equal(dirty[output][:, :, :-1], clean[output][:, :, :-1])
        if name == "V" or not math.isinf(poison):
            assert not np.any(np.isfinite(dirty["O"][:, :, -1].astype(np.float32)))


def test_the_first_query_of_a_head_sees_less_than_rows_of_the_head_before():
    """The second tile has queries 1 to 4 of a head and 0 of the next, and a tile of keys ends where 1 sees and 0 does
    not: nothing else but NaN there tells them apart."""
    problem = dataclasses.replace(PROBLEM, heads=7, kv_heads=1, q_len=5, kv_len=64 + 3, mask="causal")
    inputs = draw_inputs(problem, "normal", 6)
    clean = run(VARIANT, problem, inputs, tile=SMALL).outputs["O"]
    inputs["V"][:, :, 63] = math.nan
    dirty = run(VARIANT, problem, inputs, tile=SMALL).outputs["O"]
    assert np.array_equal(dirty[:, :, 0], clean[:, :, 0])
    assert np.all(np.isnan(dirty[:, :, 1:]))


def test_rows_that_see_nothing_though_others_in_their_tile_do():
    problem = dataclasses.replace(PROBLEM, kv_len=3, q_len=7, mask="causal")
    outputs = run(VARIANT, problem, draw_inputs(problem, "normal", 3)).outputs
    assert np.array_equal(outputs["O"][:, :, :4], np.zeros((2, 6, 4, 24)))
    assert np.all(np.isneginf(outputs["lse"][:, :, :4]))
    assert np.all(outputs["O"][:, :, 4:].astype(np.float32) != 0)
    assert np.all(np.isfinite(outputs["lse"][:, :, 4:]))


@pytest.mark.parametrize("mask", ["none", "window:300"])
def test_a_rows_bits_do_not_depend_on_the_batch_or_the_group(mask: str):
    """One head's row alone, and as one of 16 that share a tile."""
    problem = dataclasses.replace(PROBLEM, batch=1, heads=16, kv_heads=1, kv_len=900, mask=mask)
    inputs = draw_inputs(problem, "normal", 4)
    together = run(VARIANT, problem, inputs).outputs
    alone = run(VARIANT, dataclasses.replace(problem, heads=1), {**inputs, "Q": inputs["Q"][:, 11:12].copy()}).outputs
    for output in ("O", "lse"):
        assert together[output][:, 11:12].tobytes() == alone[output].tobytes()


@pytest.mark.parametrize(("group", "q_len", "split"), [(4, 4, 512), (16, 1, 256), (8, 4, 64)])
def test_bytes_are_those_of_the_formula(group: int, q_len: int, split: int):
    """Where 16 divides the rows and a split the keys, the docstring's figures to the byte."""
    problem = Problem(heads=2 * group, kv_heads=2, q_len=q_len, kv_len=2048, head_dim=128, dtype="bfloat16")
    R, S, d = group * q_len, 2048 // split, 128
    X_q, X_k = q_len * d * 2, 2048 * d * 2
    read = S * group * X_q + R // 16 * 2 * X_k + S * R * (4 * d + 2 * 32)
    written = 4 * S * R * (d + 2) + group * X_q + 32 * R
    assert VARIANT.claim is not None
    assert VARIANT.claim(problem, {"Br": 16, "split": split}) == Traffic(2 * read, 2 * written)
    plan = VARIANT.plan(problem, {"Br": 16, "split": split})
    assert plan.allocated_bytes(problem) == 2 * (S * R * (d + 2) * 4 + group * X_q + 4 * R)


def test_campaigns_draw_lengths_around_the_edges_of_splits():
    builds = builds_for(VARIANT, BUILDS)
    assert {build.dtype for build in builds} == {"float16", "bfloat16"}
    assert {(build.tile_rows, build.tile_keys) for build in builds} == {(16, 512), (16, 64), (16, 2048)}


@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("split", [512, 64])
def test_requests_are_whole_and_banks_do_not_conflict(head_dim: int, split: int):
    problem = Problem(heads=8, kv_heads=2, q_len=4, kv_len=1100, head_dim=head_dim, dtype="bfloat16")
    executor = emulator(instruments=Instruments(bank_conflicts=True))
    plan = VARIANT.plan(problem, {"Br": 16, "split": split})
    execution = executor.run(problem, plan, draw_inputs(problem, "normal", 5))
    # A warp puts a row's splits together in its registers, unless they are more than a share.
    assert [bool(launch.shared) for launch in execution.launches] == [True, split == 64]
    for launch in execution.launches:
        assert launch.traffic is not None and launch.shared is not None
        for place in launch.traffic:
            # Of a row's splits a warp asks for l and m at once, which lie far apart.
            far_apart = place.kind == "load" and place.buffer in ("l_split", "m_split")
            of_splits = -(-problem.kv_len // split) * problem.heads * problem.q_len
            assert place.sectors == (of_splits if far_apart else place.ideal_sectors), place
        for place in launch.shared:
            assert place.wavefronts == place.ideal_wavefronts, place


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dtype": "float32"}, "choose float16 or bfloat16"),
        ({"head_dim": 257}, "head_dim is 257"),
        ({"scale": 1e300}, "scale is 1e"),
    ],
)
def test_what_is_out_of_reach_is_said(fields: dict[str, object], reason: str):
    assert VARIANT.supports(PROBLEM) is None
    said = VARIANT.supports(dataclasses.replace(PROBLEM, **fields))
    assert said is not None and reason in said
