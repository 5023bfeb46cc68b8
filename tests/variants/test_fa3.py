"""What FlashAttention-3 does besides what every variant is tested for."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
from attention_answers import hold
from emulators import emulator
from hypothesis import given
from hypothesis import strategies as st
from kernel_resources import LARGEST_BLOCK_BYTES, assert_in_registers, used
from lanes import exhaustive_unless

from harness.compilers import DevicePointer, compile_kernel
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.protocol import Execution
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Launch
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.support.errors import PlanError
from variants._hopper import STATIC_BYTES, WarpgroupTile, boxes_bytes, packed_heads
from variants._tiles.visits import noted_bytes
from variants.attention import fa3
from variants.attention.fa3.tile import default_tile

VARIANT, NUMBA = (discover().registry.get(f"fa3-{backend}") for backend in ("cupy", "numba"))
# That fa3-numba gives the same bits is shown in test_hopper_numba.py.
BACKENDS = pytest.mark.parametrize(
    "variant", exhaustive_unless(lambda variant: variant is VARIANT, [VARIANT, NUMBA]), ids=lambda variant: variant.name
)
EXECUTOR = emulator()


def assert_right(problem: Problem, variant: Variant = VARIANT, regime: str = "rising", **tile: TileSizes) -> Execution:
    """The answer is right, and the bytes are those that are claimed."""
    inputs = draw_inputs(problem, regime, 1)
    reference = attention(problem, inputs)
    execution = EXECUTOR.run(problem, variant.plan(problem, **tile), inputs)
    result = hold(execution.outputs, reference, error_budget(problem, inputs, reference, variant.numerics))
    assert result.passed, result.reason
    assert not result.suspicious
    assert variant.claim is not None
    claim = variant.claim(problem, **tile)
    assert (execution.read_bytes, execution.write_bytes) == (claim.read_bytes, claim.write_bytes)
    return execution


# Row 0 of 250 lies on key 53 of 303.
@pytest.mark.thorough
@BACKENDS
@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask"),
    [
        (250, 303, "window:0"),
        (250, 303, "window:5,42"),  # from key 48 to before 96
        (250, 303, "window:54,42"),
        (250, 303, "causal+window:148"),  # the last block's from key 97, 96 and 95
        (250, 303, "causal+window:149"),
        (250, 303, "causal+window:150"),
        (250, 303, "window:1000"),
        (40, 400, "window:30,3"),  # the first tiles are nobody's
        (1, 300, "window:100"),
        (400, 40, "window:7"),  # blocks that see nothing, and one with rows that do not
        (200, 1, "window:3,2"),
    ],
)
def test_windows_end_on_and_beside_the_edges_of_tiles(q_len: int, kv_len: int, mask: str, variant: Variant):
    problem = Problem(heads=2, kv_heads=1, q_len=q_len, kv_len=kv_len, dtype="bfloat16", mask=mask)
    assert_right(problem, variant, tile={"Br": 192, "Bc": 96, "stages": 2, "turns": 0})


# Two warpgroups in turns and not, three; boxes of 64 and of 32 columns; three stages.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("head_dim", "tile"),
    exhaustive_unless(
        lambda case: case[0] in (16, 40),
        [
            (40, {"Br": 128, "Bc": 64, "stages": 3, "turns": 1}),
            (64, {"Br": 128, "Bc": 64, "stages": 2, "turns": 0}),
            (96, {"Br": 128, "Bc": 48, "stages": 2, "turns": 1}),
            (16, {"Br": 192, "Bc": 64, "stages": 3, "turns": 0}),
            (256, {"Br": 128, "Bc": 64, "stages": 2, "turns": 0}),
        ],
    ),
    ids=str,
)
@pytest.mark.parametrize(
    "mask", ["window:140,9", *(pytest.param(m, marks=pytest.mark.exhaustive) for m in ("none", "causal"))]
)
def test_tiles_of_any_size_give_the_answer(head_dim: int, tile: dict[str, int], mask: str):
    problem = Problem(heads=2, kv_heads=1, q_len=250, kv_len=403, head_dim=head_dim, dtype="float16", mask=mask)
    assert_right(problem, regime="normal", tile=tile)  # where scores rise, keys before a window have no weight


# NaN in V at element k of key k, or that many further: O shows which row saw which key, as far as windows are shorter
# than head_dim. Rows in full tiles of keys, in masked ones, in those that some rows see nothing of, and rows that see
# nothing at all.
@pytest.mark.thorough
@BACKENDS
@pytest.mark.parametrize("head_dim", [64, pytest.param(96, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask"),
    [(250, 250, "window:20,7"), (240, 210, "window:0"), (60, 290, "causal+window:40"), (230, 230, "causal+window:60")],
)
def test_what_is_not_finite_outside_of_a_window_reaches_no_row(
    q_len: int, kv_len: int, mask: str, head_dim: int, variant: Variant
):
    problem = Problem(heads=1, q_len=q_len, kv_len=kv_len, head_dim=head_dim, dtype="bfloat16", mask=mask)
    rows, keys = np.arange(q_len)[:, None], np.arange(kv_len)
    visible = problem.mask.visible(rows, keys[None, :], q_len, kv_len)
    inputs = draw_inputs(problem, "normal", 2)

    def run(**poisoned: np.ndarray) -> dict[str, np.ndarray]:
        return EXECUTOR.run(problem, variant.plan(problem), {**inputs, **poisoned}).outputs

    clean = run()
    V = inputs["V"].copy()
    V[0, 0, keys, keys % head_dim] = math.nan
    dirty = run(V=V)
    reached = np.stack([visible[:, keys % head_dim == element].any(axis=1) for element in range(head_dim)], axis=1)
    assert np.array_equal(np.isnan(dirty["O"][0, 0].astype(np.float32)), reached)
    assert np.array_equal(dirty["O"][0, 0][~reached], clean["O"][0, 0][~reached])
    assert np.array_equal(dirty["lse"], clean["lse"])

    for key in (0, kv_len // 2, kv_len - 1):
        K = inputs["K"].copy()
        K[0, 0, key, 3] = math.nan
        assert np.array_equal(np.isnan(run(K=K)["lse"][0, 0]), visible[:, key])


DOCUMENTS = "documents:0+70+130+50/125+125"
"""A first sequence with an empty document, one that ends within a warp's rows, and one within a warpgroup's."""


@pytest.mark.parametrize(
    ("mask", "heads", "kv_heads"),
    [
        (DOCUMENTS, 4, 1),
        pytest.param(f"causal+{DOCUMENTS}", 3, 3, marks=pytest.mark.thorough),
        pytest.param("prefix:131", 3, 3, marks=pytest.mark.thorough),
        pytest.param(f"window:20,7+{DOCUMENTS}", 6, 3, marks=pytest.mark.thorough),
    ],
)
def test_spans_of_each_sequence_are_its_own_and_nothing_else_reaches_a_row(mask: str, heads: int, kv_heads: int):
    # 250 rows are no whole number of tiles, and begin in the middle of a sector in the second sequence.
    problem = Problem(batch=2, heads=heads, kv_heads=kv_heads, q_len=250, kv_len=250, dtype="bfloat16", mask=mask)
    assert_right(problem)
    inputs = draw_inputs(problem, "normal", 2)
    clean = EXECUTOR.run(problem, VARIANT.plan(problem), inputs)
    assert (clean.read_bytes, clean.write_bytes) == dataclasses.astuple(VARIANT.claim(problem))[:2]
    V = inputs["V"].copy()
    V[:, :, 69:71] = math.nan
    dirty = EXECUTOR.run(problem, VARIANT.plan(problem), inputs | {"V": V}).outputs["O"].astype(np.float32)
    for sequence in range(2):
        first, end = problem.span(np.arange(250), sequence)
        reached = (first < 71) & (end > 69)
        assert np.array_equal(np.isnan(dirty[sequence]).all(axis=-1), np.broadcast_to(reached, (heads, 250)))
        unreached = clean.outputs["O"][sequence][:, ~reached].astype(np.float32)
        assert np.array_equal(dirty[sequence][:, ~reached], unreached)


@pytest.mark.parametrize(
    "mask",
    [
        "blocks:40x50,3,heads",
        pytest.param("blocks:128x128,2", marks=pytest.mark.thorough),
        pytest.param("flashmask:2,2", marks=pytest.mark.thorough),
        pytest.param("window:60+blocks:30x30,1", marks=pytest.mark.thorough),
        pytest.param(f"blocks:64x64,5+{DOCUMENTS}", marks=pytest.mark.thorough),
        # Tiles of the second sequence's first rows are not all in the first one's list.
        "blocks:64x64,5+documents:128+122/250",
    ],
)
@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=pytest.mark.thorough)])
def test_what_is_hidden_pair_by_pair_reaches_no_row(mask: str, head_dim: int):
    problem = Problem(
        batch=2, heads=4, kv_heads=2, q_len=250, kv_len=250, head_dim=head_dim, dtype="bfloat16", mask=mask
    )
    assert_right(problem)
    inputs = draw_inputs(problem, "normal", 2)
    clean = EXECUTOR.run(problem, VARIANT.plan(problem), inputs).outputs["O"].astype(np.float32)
    V = inputs["V"].copy()
    V[:, :, 69:71] = math.nan
    dirty = EXECUTOR.run(problem, VARIANT.plan(problem), inputs | {"V": V}).outputs["O"].astype(np.float32)
    seen = np.array([[problem.seen(sequence, head)[:, 69:71] for head in range(4)] for sequence in range(2)])
    reached = seen.any(axis=-1)
    assert reached.any() and not reached.all()
    assert np.array_equal(np.isnan(dirty).all(axis=-1), reached)
    assert np.array_equal(dirty[~reached], clean[~reached])


@pytest.mark.thorough
@BACKENDS
def test_infinity_in_v_reaches_only_rows_that_see_it_with_its_sign(variant: Variant):
    # Behind the diagonal of the first block's tiles and on it.
    problem = Problem(heads=1, q_len=250, kv_len=250, dtype="bfloat16", mask="causal")
    inputs = draw_inputs(problem, "normal", 2)
    clean = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["O"][0, 0].astype(np.float32)
    inputs["V"][0, 0, 100, 5], inputs["V"][0, 0, 180, 5] = math.inf, -math.inf
    O = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["O"][0, 0].astype(np.float32)
    others = np.arange(64) != 5
    assert np.array_equal(O[:, others], clean[:, others])
    assert np.array_equal(O[:100, 5], clean[:100, 5])
    assert np.all(O[100:180, 5] == math.inf) and np.all(np.isnan(O[180:, 5]))


@pytest.mark.thorough
@BACKENDS
def test_blocks_take_all_tiles_and_reset_the_counter(variant: Variant):
    # 140 heads of one tile each: more than there are blocks. The second run finds the counter as the first left it.
    problem = Problem(batch=2, heads=70, kv_heads=35, q_len=20, kv_len=110, dtype="bfloat16", mask="causal")
    plan, inputs = variant.plan(problem), draw_inputs(problem, "normal", 1)
    first, second = (EXECUTOR.run(problem, plan, inputs) for _ in range(2))
    assert np.array_equal(first.outputs["O"], second.outputs["O"])
    assert (first.read_bytes, first.write_bytes) == (second.read_bytes, second.write_bytes)
    assert_right(problem, variant)


@pytest.mark.thorough
@BACKENDS
@pytest.mark.parametrize("mask", ["causal", pytest.param("none", marks=pytest.mark.exhaustive)])
def test_nothing_races_where_a_block_has_several_tiles(mask: str, monkeypatch: pytest.MonkeyPatch, variant: Variant):
    # Ten tiles for two blocks, of which some see no key.
    monkeypatch.setattr(fa3, "MULTIPROCESSORS", 2)
    problem = Problem(heads=5, q_len=260, kv_len=61, dtype="bfloat16", mask=mask)
    plan, inputs = variant.plan(problem), draw_inputs(problem, "normal", 1)
    assert plan.launches[0].grid == (2,)
    assert EmulatorSanitizer(shuffled_runs=1).check(variant, problem, plan, inputs) == ()
    assert_right(problem, variant)


@BACKENDS
@pytest.mark.parametrize("l2_bytes", [1, 10**5])
def test_sections_of_heads_give_each_head_each_tile_once(
    l2_bytes: int, monkeypatch: pytest.MonkeyPatch, variant: Variant
):
    # A head's K and V are 76,800 bytes: sections of one group of 3, and of one again. The last one is not full.
    monkeypatch.setattr(fa3, "L2_BYTES", l2_bytes)
    problem = Problem(heads=15, kv_heads=5, q_len=300, kv_len=300, dtype="bfloat16", mask="causal")
    assert fa3.packs_at_once(problem) == 3
    assert_right(problem, variant)


# Groups of one pack, of two (6 is 2 x 3: three packs of two heads), and of heads of which a request of lse has several.
@BACKENDS
@pytest.mark.parametrize(
    ("heads", "kv_heads", "packed"), [(4, 2, 2), (12, 2, 2), (8, 1, 8), (16, 1, 16), (128, 2, 64), (5, 1, 1)]
)
@pytest.mark.parametrize(
    ("q_len", "mask"),
    [(1, "none"), (37, "causal"), (130, "window:40,3"), pytest.param(77, "none", marks=pytest.mark.exhaustive)],
)
def test_heads_that_share_k_and_v_are_packed_into_tiles(
    heads: int, kv_heads: int, packed: int, q_len: int, mask: str, variant: Variant
):
    problem = Problem(heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=150, dtype="bfloat16", mask=mask)
    assert packed_heads(problem) == packed
    assert_right(problem, variant)


def test_a_pack_reads_k_and_v_once():
    problem = Problem(heads=8, kv_heads=1, q_len=1, kv_len=4096, head_dim=128, dtype="bfloat16")
    assert VARIANT.claim is not None
    boxes_of_Q = 128 * 128 * 2  # rows beyond the eight heads are zeros
    assert VARIANT.claim(problem).read_bytes < 2 * 4096 * 128 * 2 + boxes_of_Q + 100


@pytest.mark.thorough
def test_tiles_of_rows_are_narrower_where_that_fills_the_last_round():
    def rows(q_len: int, batch: int = 2, **fields: object) -> int:
        problem = Problem(batch=batch, heads=16, q_len=q_len, kv_len=q_len, dtype="bfloat16", **fields)
        return default_tile(problem).Br

    assert [rows(n, batch=4) for n in (100, 512, 1024, 2048, 16384)] == [192, 128, 192, 192, 192]
    assert [rows(n, mask="causal") for n in (2048, 4096, 5000, 6144, 16384)] == [192, 192, 192, 192, 192]
    assert_right(Problem(batch=2, heads=67, q_len=200, kv_len=300, dtype="bfloat16"))


def test_sections_hold_as_many_heads_as_fit_and_whole_groups():
    problem = Problem(batch=2, heads=16, kv_heads=4, q_len=16384, kv_len=16384, head_dim=128, dtype="bfloat16")
    assert fa3.packs_at_once(problem) == 4
    assert fa3.packs_at_once(dataclasses.replace(problem, kv_heads=16)) == 4
    assert fa3.packs_at_once(Problem(heads=3, q_len=10, kv_len=10, dtype="bfloat16")) == 3


# --- What it takes of the hardware -----------------------------------------------------------------------------------


def small_problem(head_dim: int, mask: str, dtype: str = "bfloat16") -> Problem:
    return Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype=dtype, mask=mask)


def launch_of(
    head_dim: int, mask: str, dtype: str = "bfloat16", variant: Variant = VARIANT, **tile: TileSizes
) -> Launch:
    """Its arguments are such as a kernel can be compiled for."""
    problem = small_problem(head_dim, mask, dtype)
    plan = variant.plan(problem, **tile)
    launch, buffers = plan.launches[-1], plan.all_buffers(problem)
    args = (DevicePointer(0, buffers[a].shape, buffers[a].dtype) if isinstance(a, str) else a for a in launch.args)
    return dataclasses.replace(launch, args=tuple(args))


def assert_fits(launch: Launch, noted: int = 0) -> None:
    """In registers, and in shared memory, `noted` bytes of which are of a mask."""
    found = used(launch)
    assert_in_registers(found)
    assert found.shared_bytes <= STATIC_BYTES + noted
    assert found.shared_bytes + launch.shared_bytes <= LARGEST_BLOCK_BYTES


READ_MASKS = ("documents:30+34", "blocks:8x8,1", "window:9+flashmask:4,1", "documents:30+34+blocks:8x8,1")


@pytest.mark.parametrize(
    ("head_dim", "mask"),
    exhaustive_unless(
        lambda build: build == (128, "documents:30+34+blocks:8x8,1"),
        [(d, mask) for d in range(32, 257, 32) for mask in READ_MASKS],
    ),
)
def test_nothing_spills_where_what_rows_see_is_read(head_dim: int, mask: str):
    problem = small_problem(head_dim, mask)
    assert_fits(launch_of(head_dim, mask), noted_bytes(problem, default_tile(problem)))


@BACKENDS
@pytest.mark.parametrize(
    ("head_dim", "mask", "dtype"),
    exhaustive_unless(
        lambda build: build in ((128, "causal", "bfloat16"), (256, "causal", "bfloat16")),
        [
            *((d, mask, "bfloat16") for d in range(32, 257, 32) for mask in ("none", "causal", "window:40")),
            *((d, "causal", "float16") for d in (64, 128, 256)),
        ],
    ),
)
def test_nothing_spills_at_any_head_dim(head_dim: int, mask: str, dtype: str, variant: Variant):
    assert_fits(launch_of(head_dim, mask, dtype, variant))


# Builds that other tests need, too.
@pytest.mark.thorough
@pytest.mark.parametrize("mask", ["causal", "window:40"])
def test_numba_keeps_everything_in_registers(mask: str):
    launch = launch_of(64, mask, variant=NUMBA)
    assert_fits(launch)
    kernel = compile_kernel(launch.kernel, launch.args, "sm_90")
    assert ".local" not in kernel.ptx
    assert ".f64" not in kernel.ptx  # what Numba makes of uint64 + int64


def test_all_of_its_text_stands_in_a_file_whatever_folder_one_works_in():
    launch = launch_of(64, "none")
    files = re.findall(
        r'^\s*\.file\s+\d+ "(.*)"', compile_kernel(launch.kernel, launch.args, "sm_90").ptx, re.MULTILINE
    )
    assert len(files) > 3 and all(Path(file).is_file() for file in files)


# Numba takes three times as long to compile: where windows leave least room.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("variant", "head_dim", "mask", "tile"),
    [
        (variant, head_dim, mask, tile)
        for variant, head_dim, mask in (
            *((VARIANT, d, mask) for d in (64, 128) for mask in ("none", "window:40")),
            (NUMBA, 128, "window:40"),
        )
        for tile in variant.tiles(Problem(head_dim=head_dim, dtype="bfloat16", mask=mask))
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_nothing_spills_with_any_tile(variant: Variant, head_dim: int, mask: str, tile: TileSizes):
    assert_fits(launch_of(head_dim, mask, variant=variant, tile=tile))


def test_ptxas_sees_spills_where_a_tile_has_too_many_registers():
    launch = launch_of(256, "none", tile={"Br": 128, "Bc": 144, "stages": 2, "turns": 0})
    assert used(launch).spill_store_bytes > 0


@pytest.mark.parametrize("head_dim", [8, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("mask", ["none", "causal", "window:9"])
def test_tiles_to_choose_from_start_with_the_default_fit_and_differ(head_dim: int, mask: str):
    assert VARIANT.tiles is not None
    problem = Problem(head_dim=head_dim, dtype="bfloat16", mask=mask)
    tiles = [WarpgroupTile(**tile) for tile in VARIANT.tiles(problem)]
    assert tiles[0] == default_tile(problem)
    assert len(set(tiles)) == len(tiles) >= 3
    assert all(tile.fits(head_dim) for tile in tiles)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"Br": 64, "Bc": 64, "stages": 2, "turns": 0}, "128 or 192"),
        ({"Br": 128, "Bc": 40, "stages": 2, "turns": 0}, "multiple of 16"),
        ({"Br": 128, "Bc": 272, "stages": 2, "turns": 0}, "at most 256"),
        ({"Br": 128, "Bc": 64, "stages": 1, "turns": 0}, "at least 2"),
        ({"Br": 192, "Bc": 64, "stages": 2, "turns": 2}, "turns has to be 0 or 1"),
    ],
)
def test_a_tile_that_no_kernel_can_have_is_refused(sizes: dict[str, int], reason: str):
    with pytest.raises(PlanError, match=reason):
        WarpgroupTile(**sizes)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "choose float16 or bfloat16"),
        ({"dtype": "float16", "head_dim": 20}, "rows of 40 bytes"),
        ({"dtype": "float16", "head_dim": 264}, "head_dim is 264"),
        ({"dtype": "float16", "scale": 1e-40}, "no normal float32"),
    ],
)
def test_what_is_out_of_reach_is_said(fields: dict[str, object], reason: str):
    assert VARIANT.supports(Problem(dtype="bfloat16", head_dim=8, scale=0.0)) is None
    said = VARIANT.supports(Problem(**fields))
    assert said is not None and reason in said and "\n" not in said


@given(first=st.integers(0, 40), rows=st.integers(0, 40), head_dim=st.integers(1, 32).map(lambda n: 8 * n))
def test_bytes_of_boxes_are_their_rows_sectors_counted_one_by_one(first: int, rows: int, head_dim: int):
    columns = 64 if -(-head_dim // 32) % 2 == 0 else 32
    counted = 0
    for row in range(first, first + rows):
        for begin in range(0, head_dim, columns):
            end = min(begin + columns, head_dim)
            counted += len({2 * (row * head_dim + element) // 32 for element in range(begin, end)})
    assert boxes_bytes(np.int64(first), np.int64(rows), head_dim) == 32 * counted
