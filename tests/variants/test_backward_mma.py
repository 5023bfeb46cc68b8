"""What gradients on tensor cores do besides what every variant of the backward pass is tested for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from emulators import emulator
from lanes import exhaustive, exhaustive_unless
from twins import of_one_language

from harness.compilers import DevicePointer, compile_kernel
from harness.compilers.ptxas import find_ptxas, resources
from harness.emulator.instruments import Instruments
from harness.emulator.memory.residency import residency
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.execution.planning.tiles import with_tile
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.plan import Buffer, Launch
from harness.model.variant import Variant
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.errors import PlanError
from harness.support.gpu_data_sheets import gpu
from variants._mma_backward.tile import (
    BackwardMmaTile,
    default_owning_keys,
    numba_tile_of,
    tile_of,
    tiles_owning_keys,
)
from variants.attention_backward.mma_ordered import tile_owning_rows

VARIANTS = [v for v in discover().registry.select(None, "attention-backward") if v.algorithm.startswith("bwd-mma")]
EXECUTOR = emulator()
H200 = gpu("h200")
BUILD = ("float16", 24)
"""What test_backward_variants.py compiles, too. Tiles of keys and rows are those of any head_dim up to 64."""
HANDED_ON = 72
"""A head_dim of which P and dS go from warp to warp: 32 keys and 32 rows, in halves, of 128 and 64."""
each_variant = pytest.mark.parametrize(
    "variant",
    of_one_language(lambda variant: variant.name == "bwd-mma-cupy", VARIANTS),
    ids=lambda variant: variant.name,
)


def problem(**fields: int | str) -> BackwardProblem:
    dtype, head_dim = BUILD
    return BackwardProblem(**{"dtype": dtype, "head_dim": head_dim, **fields})  # type: ignore[arg-type]


def holds(variant: Variant, asked: BackwardProblem, regime: str = "normal") -> None:
    done = attempt(variant, asked, EXECUTOR, question=Question.draw(asked, regime, 1))
    assert done.verdict == PASS and done.claim_holds, done.reason
    assert done.accuracy is not None and not done.accuracy.suspicious


# A block has 128 keys and 64 rows at a time, a warp 32 and 32; where dQ is apart, 128 rows and 64 keys, 32 and 32. The
# first row of 150 lies on key 53 of 203.
USUAL_EDGES = (
    (65, 257, "none"),
    (150, 203, "causal+documents:53+64+86"),  # rows of 64 for a document of 64 keys
    (150, 203, "window:5,42"),  # the first tile of rows up to before key 96, which is a warp's
    (150, 203, "causal+window:85"),
    (260, 260, "documents:127+1+132"),  # beside the edge of a tile of keys
    (260, 260, "causal+documents:96+33+131"),  # on that of a warp's keys, and behind it
)
FURTHER_EDGES = (
    (150, 204, "window:6,43"),
    (150, 204, "causal+window:53"),
    (150, 150, "window:31,32"),
    (40, 300, "window:30,3"),  # the first tiles of keys are nobody's
    (300, 40, "window:7"),  # so are tiles of rows
    (129, 129, "causal"),
    (64, 128, "causal"),
    (130, 330, "causal+prefix:129"),
)


def edges() -> list[Any]:
    """Every variant and every edge."""
    usual, further = ([(v, *edge) for v in VARIANTS for edge in each] for each in (USUAL_EDGES, FURTHER_EDGES))
    return [*of_one_language(lambda case: case[0].name == "bwd-mma-cupy", usual), *exhaustive(further)]


@pytest.mark.parametrize(
    ("variant", "q_len", "kv_len", "mask"), edges(), ids=lambda value: getattr(value, "name", str(value))
)
@pytest.mark.parametrize("head_dim", exhaustive_unless(lambda d: d == BUILD[1], (BUILD[1], HANDED_ON)))
def test_masks_end_on_and_beside_the_edges_of_tiles_and_of_warps(
    variant: Variant, head_dim: int, q_len: int, kv_len: int, mask: str
):
    holds(variant, problem(head_dim=head_dim, heads=2, kv_heads=1, q_len=q_len, kv_len=kv_len, mask=mask))


# Rows and keys in tiles of which everybody sees all, in tiles on an edge of the mask, and in the last ones.
@each_variant
@pytest.mark.parametrize(
    "mask",
    exhaustive_unless(lambda mask: mask != "causal", ("causal", "window:100,90", "causal+documents:100+30+130")),
)
@pytest.mark.parametrize("name", exhaustive_unless(lambda name: name in ("K", "dO"), ("Q", "K", "V", "dO")))
@pytest.mark.parametrize("head_dim", exhaustive_unless(lambda d: d == BUILD[1], (BUILD[1], HANDED_ON)))
def test_what_is_not_finite_reaches_those_who_see_it_and_no_bit_of_others(
    variant: Variant, head_dim: int, name: str, mask: str
):
    asked = problem(head_dim=head_dim, heads=1, q_len=200, kv_len=260, mask=mask)
    visible = asked.mask.visible(np.arange(200)[:, None], np.arange(260)[None], 200, 260)
    inputs = draw_inputs(asked, "normal", 4)
    clean = EXECUTOR.run(asked, variant.plan(asked), inputs).outputs
    for place in (3, 127, 199):
        dirty = {**inputs, name: inputs[name].copy()}
        dirty[name][0, 0, place, -1] = np.inf
        found = EXECUTOR.run(asked, variant.plan(asked), dirty).outputs
        rows = visible[:, place] if name in "KV" else np.arange(200) == place
        keys = visible[rows].any(axis=0)
        for output, reached in (("dQ", rows), ("dK", keys), ("dV", keys)):
            np.testing.assert_array_equal(found[output][0, 0, ~reached], clean[output][0, 0, ~reached])
        assert not np.isfinite(found["dQ"][0, 0, rows].astype(np.float32)).any(axis=-1).all()
        of_place = slice(place, place + 1) if name in "KV" else keys
        assert not np.isfinite(found["dK"][0, 0, of_place].astype(np.float32)).all(axis=-1).any()


@each_variant
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "tile",
    [
        {"Br": 32, "Bc": 64, "warps": 4},
        {"Br": 128, "Bc": 64, "warps": 8},  # a warp scores 32 keys and 32 rows
        {"Br": 64, "Bc": 64, "warps": 8},  # 32 keys and 16 rows
        {"Br": 32, "Bc": 128, "warps": 8},  # 32 keys and 16 rows, and each sum has 32 keys
    ],
    ids=str,
)
def test_tiles_of_any_size_give_the_answer(variant: Variant, tile: dict[str, int]):
    asked = problem(head_dim=33, heads=2, kv_heads=1, q_len=150, kv_len=203, mask="causal+window:90")
    assert tile in tiles_owning_keys(asked)
    holds(with_tile(variant, tile), asked)


@each_variant
@pytest.mark.exhaustive
@pytest.mark.parametrize("head_dim", [64, 128])
def test_no_bank_conflicts(variant: Variant, head_dim: int):
    asked = problem(head_dim=head_dim, heads=1, q_len=128, kv_len=128, mask="causal")
    executor = emulator(instruments=Instruments(bank_conflicts=True))
    launches = executor.run(asked, variant.plan(asked), draw_inputs(asked, "normal", 1)).launches
    assert len(launches) == 3
    for launch in launches:
        assert launch.shared
        for line in launch.shared:
            assert line.wavefronts == line.ideal_wavefronts, line


def assert_fits(launch: Launch, buffers: Mapping[str, Buffer], blocks_per_sm: int) -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")

    def resolved(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(resolved, arg))
        return DevicePointer(0, buffers[arg].shape, buffers[arg].dtype) if isinstance(arg, str) else arg

    kernel = compile_kernel(launch.kernel, resolved(launch.args), "sm_90")
    assert ".f64" not in kernel.ptx  # what Numba makes of uint64 + int64
    found = resources(kernel.ptx, "sm_90", kernel.entry, kernel.max_registers)
    if found is None:
        pytest.skip("ptxas is older than the compiler")
    assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes) == (0, 0, 0)
    shared_bytes = found.shared_bytes + launch.shared_bytes
    assert residency(H200.multiprocessor, launch.block[0], found.registers, shared_bytes).blocks >= blocks_per_sm


# Warps with 32 keys, with 16, and two that share them; rows of which a thread copies 16, 8, 4 and 2 bytes at once.
@pytest.mark.thorough
@pytest.mark.parametrize("variant", exhaustive_unless(lambda v: not v.deterministic, VARIANTS), ids=lambda v: v.name)
@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    exhaustive_unless(
        lambda build: build == (128, "bfloat16"),
        [
            *((d, "bfloat16") for d in (1, 33, 64, 100, 128, 130, 256)),
            *((d, "float16") for d in (64, 128)),
        ],
    ),
)
@pytest.mark.parametrize("mask", exhaustive_unless(lambda mask: mask == "none", ["none", "causal+documents:20+44"]))
def test_nothing_spills_at_any_head_dim(variant: Variant, head_dim: int, dtype: str, mask: str):
    asked = BackwardProblem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype=dtype, mask=mask)
    plan = variant.plan(asked)
    buffers, (of_keys, other) = plan.all_buffers(asked), plan.launches[1:]
    assert_fits(of_keys, buffers, default_owning_keys(head_dim).blocks_per_sm)
    if variant.deterministic:
        assert_fits(other, buffers, tile_owning_rows(head_dim).blocks_per_sm)


LISTED = [v for v in VARIANTS if "blocks" in v.takes]
SHORT_OF_REGISTERS = (
    (128, {"mask": "flashmask:4", "alibi": True}),
    (128, {"mask": "blocks:64x32", "dropout": 0.1}),
    (64, {"mask": "documents:20+44+flashmask:4", "alibi": True}),
)
"""What left the least room: with each of these, some other tile or form of the kernel spilled."""


@pytest.mark.thorough
@pytest.mark.parametrize("variant", exhaustive_unless(lambda v: v.backend == "cupy", LISTED), ids=lambda v: v.name)
@pytest.mark.parametrize(
    ("head_dim", "fields"),
    exhaustive_unless(
        lambda case: case in SHORT_OF_REGISTERS[:1],
        [
            *SHORT_OF_REGISTERS,
            *itertools.product(
                (33, 64, 100, 128, 130, 256),
                [
                    {"mask": mask, **terms}
                    for mask in ("blocks:64x32", "causal+flashmask:2", "documents:20+44+flashmask:4")
                    for terms in ({}, {"softcap": 2.0, "alibi": True, "dropout": 0.1})
                ],
            ),
        ],
    ),
)
def test_nothing_spills_where_tiles_are_listed(variant: Variant, head_dim: int, fields: dict[str, Any]):
    asked = BackwardProblem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype="bfloat16", **fields)
    plan = variant.plan(asked)
    (of_keys,) = (launch for launch in plan.launches if "dK" in launch.args)
    assert_fits(of_keys, plan.all_buffers(asked), default_owning_keys(head_dim).blocks_per_sm)


# Beyond 192 elements three stages of Q and dO leave room for one tile alone.
@pytest.mark.parametrize(("head_dim", "at_least"), [(1, 2), (33, 2), (64, 2), (128, 2), (129, 2), (192, 2), (256, 1)])
@pytest.mark.parametrize("mask", ["none", "documents:20+44", "blocks:64x32"])
def test_tiles_to_choose_from_start_with_the_default_fit_and_differ(head_dim: int, at_least: int, mask: str):
    asked = BackwardProblem(q_len=64, kv_len=64, head_dim=head_dim, mask=mask)
    tiles = [BackwardMmaTile(**tile) for tile in tiles_owning_keys(asked)]
    assert tiles[0] == default_owning_keys(head_dim)
    assert len(set(tiles)) == len(tiles) >= (1 if head_dim == 192 and mask == "blocks:64x32" else at_least)
    for tile in tiles:
        kept_bytes = {"none": 0, "documents:20+44": 8 * tile.Bc, "blocks:64x32": tile.Br * tile.Bc // 8}[mask]
        shared_bytes = tile.shared_bytes(head_dim) + kept_bytes
        assert residency(H200.multiprocessor, 32 * tile.warps, 255, shared_bytes).blocks >= tile.blocks_per_sm


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"Br": 48, "Bc": 128, "warps": 4}, "Br has to be a multiple of 32"),
        ({"Br": 64, "Bc": 40, "warps": 4}, "Bc has to be a multiple of 16"),
        ({"Br": 64, "Bc": 128, "warps": 6}, "cannot share that many rows and keys evenly"),
        ({"Br": 128, "Bc": 128, "warps": 2}, "cannot share that many rows and keys evenly"),
        ({"Br": 64, "Bc": 128, "warps": 0}, "cannot share that many rows and keys evenly"),
    ],
)
def test_a_tile_that_no_kernel_can_have_is_refused(sizes: dict[str, int], reason: str):
    with pytest.raises(PlanError, match=reason):
        BackwardMmaTile(**sizes)


def test_a_tile_has_fewer_rows_where_bits_and_runs_would_not_fit_or_numba_lacks_registers():
    blocks, both = "blocks:64x32", "documents:20+44+blocks:64x32"
    problems = {mask: BackwardProblem(q_len=64, kv_len=64, head_dim=128, mask=mask) for mask in ("none", blocks, both)}
    assert [tile_of(asked).Br for asked in problems.values()] == [64, 64, 32]
    assert [numba_tile_of(asked).Br for asked in problems.values()] == [64, 32, 32]


def test_what_is_out_of_reach_is_said():
    for variant in VARIANTS:
        assert variant.supports(BackwardProblem(dtype="bfloat16", scale=0.0)) is None
        for fields, reason in (({}, "choose float16 or bfloat16"), ({"dtype": "float16", "scale": 1e-40}, "no normal")):
            assert reason in (variant.supports(BackwardProblem(**fields)) or "")


# As the variants' modules have them, per query head, in bytes: X is a whole Q, K, dO ... in 16 bits, without a mask. In
# float32 dQ is 2 X.
@pytest.mark.parametrize(("N", "head_dim"), [(256, 64), (1024, 128)])
def test_claims_are_the_formulas_that_are_printed(N: int, head_dim: int):
    X, T = 2 * N * head_dim, N // default_owning_keys(head_dim).Bc
    T_rows = N // tile_owning_rows(head_dim).Br
    formulas = {
        "bwd-mma": (2 * X + 4 * N + T * (2 * X + 8 * N + 2 * X) + 2 * X + 2 * X, 8 * N + 2 * X + T * 2 * X + 3 * X),
        "bwd-mma-ordered": (2 * X + 4 * N + T * (2 * X + 8 * N) + 4 * X + 8 * N + T_rows * 2 * X, 8 * N + 3 * X),
    }
    asked = BackwardProblem(heads=3, q_len=N, kv_len=N, head_dim=head_dim, dtype="float16")
    for variant in VARIANTS:
        assert variant.claim is not None
        claim = variant.claim(asked)
        assert (claim.read_bytes, claim.write_bytes) == tuple(3 * n for n in formulas[variant.algorithm])
