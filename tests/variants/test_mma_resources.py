"""What kernels on tensor cores take of the hardware, as ptxas says: nothing spills, and as many blocks share a
multiprocessor as their tiles are meant to."""

from __future__ import annotations

import itertools

import pytest
from kernel_resources import assert_fits, last_launch, used
from lanes import exhaustive_unless

from harness.model.discovery import discover
from harness.model.operation import operation_named
from harness.model.plan import Launch
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.support.errors import PlanError
from variants._mma import MmaTile, mma_tile_space
from variants.attention.fa2_mma import default_tile

VARIANTS = [v for v in discover().registry if v.algorithm == "fa2-mma" and v.backend == "cupy"]
# Every number of steps that Q K^T has, and rows of which a thread copies 16, 8, 4 and 2 bytes at once.
STEPS = range(16, 257, 16)
READ = ("documents:20+44", "blocks:64x32", "flashmask:4")
"""Masks of which kernels read what rows see."""
ODD = (1, 2, 20, 33, 130, 200)


def launch_of(variant: Variant, head_dim: int, dtype: str, **tile: TileSizes) -> Launch:
    (launch,) = variant.plan(Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype=dtype), **tile).launches
    return launch


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    exhaustive_unless(
        lambda build: build in ((33, "float16"), (128, "bfloat16"), (256, "bfloat16")),
        [*((d, "bfloat16") for d in (*STEPS, *ODD)), *((d, "float16") for d in (33, 64, 128, 256))],
    ),
)
def test_nothing_spills_at_any_head_dim(variant: Variant, head_dim: int, dtype: str):
    assert_fits(launch_of(variant, head_dim, dtype), default_tile(head_dim).blocks_per_sm)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.exhaustive
@pytest.mark.parametrize("head_dim", [64, 128])
def test_nothing_spills_with_any_tile(variant: Variant, head_dim: int):
    assert variant.tiles is not None
    for tile in variant.tiles(Problem(head_dim=head_dim)):
        assert_fits(launch_of(variant, head_dim, "bfloat16", tile=tile), MmaTile(**tile).blocks_per_sm)


def test_ptxas_sees_spills_where_a_tile_has_too_many_registers():
    # What the two tests above would find: S and O alone are 256 elements per thread.
    launch = launch_of(VARIANTS[0], 128, "bfloat16", tile={"Br": 128, "Bc": 128, "warps": 4, "stages": 2})
    assert used(launch).spill_store_bytes > 0


@pytest.mark.parametrize("head_dim", [8, 64, 128, 256])
def test_tiles_to_choose_from_start_with_the_default_and_differ(head_dim: int):
    sizes = mma_tile_space(head_dim, default_tile(head_dim))
    chosen = [MmaTile(**tile) for tile in sizes]
    assert chosen[0] == default_tile(head_dim)
    assert len(set(chosen)) == len(chosen) > 3


@pytest.mark.parametrize(
    ("fields", "cupy", "numba"),
    [
        ({"head_dim": 128}, 64, 48),
        ({"head_dim": 128, "mask": "causal"}, 64, 48),
        ({"head_dim": 112}, 48, 48),
        ({"head_dim": 128, "mask": "documents:20+44"}, 48, 48),
        ({"head_dim": 128, "softcap": 20.0}, 48, 48),
        ({"head_dim": 128, "dropout": 0.1}, 64, 64),
        ({"head_dim": 64, "mask": "documents:20+44"}, 96, 96),
        ({"head_dim": 256}, 64, 64),
    ],
)
def test_the_usual_tile_leaves_room_for_what_a_thread_keeps_besides(fields: dict[str, object], cupy: int, numba: int):
    problem = Problem(**{"q_len": 64, "kv_len": 64, "dtype": "bfloat16", **fields})  # type: ignore[arg-type]
    keys = {}
    for variant in discover().registry:
        if variant.algorithm == "fa2-mma":
            assert variant.tiles is not None
            keys[variant.backend] = variant.tiles(problem)[0]["Bc"]
    assert keys == {"cupy": cupy, "numba": numba}


def test_a_threads_part_of_s_and_o():
    # 128 rows of 96 keys and 64 elements, shared by 128 threads; head_dim 33 is padded to 48.
    assert MmaTile(Br=128, Bc=96, warps=4, stages=2).part(64) == 96 + 64
    assert MmaTile(Br=128, Bc=96, warps=8, stages=2).part(33) == (96 + 48) // 2


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"Br": 96, "Bc": 64, "warps": 4, "stages": 2}, "16 or 32 times the number of warps"),
        ({"Br": 64, "Bc": 40, "warps": 4, "stages": 2}, "multiple of 16"),
        ({"Br": 64, "Bc": 64, "warps": 4, "stages": 1}, "at least 2"),
    ],
)
def test_a_tile_that_no_kernel_can_have_is_refused(sizes: dict[str, int], reason: str):
    with pytest.raises(PlanError, match=reason):
        MmaTile(**sizes)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dtype": "float32"}, "choose float16 or bfloat16"),
        ({"dtype": "float16", "scale": 1e-40}, "no normal float32"),
        ({"dtype": "float16", "scale": 3e38}, "no normal float32"),
        ({"dtype": "float16", "head_dim": 257}, "head_dim is 257"),
    ],
)
def test_what_is_out_of_reach_is_said(fields: dict[str, object], reason: str):
    for variant in VARIANTS:
        assert variant.supports(Problem(dtype="bfloat16", scale=0.0)) is None
        said = variant.supports(Problem(**fields))
        assert said is not None and reason in said and "\n" not in said


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize(
    ("head_dim", "mask"),
    exhaustive_unless(
        lambda build: build in itertools.product((64,), READ),
        itertools.product((64, 128, 256), (*READ, f"{READ[0]}+{READ[1]}", f"{READ[0]}+{READ[2]}")),
    ),
)
def test_nothing_spills_where_what_rows_see_is_read(variant: Variant, head_dim: int, mask: str):
    problem = Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype="bfloat16", mask=mask)  # type: ignore[arg-type]
    assert_fits(variant.plan(problem).launches[-1], default_tile(head_dim).blocks_per_sm)


DOCUMENTS, WINDOW = "documents:128+128", "window:8"


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize(
    ("head_dim", "fields"),
    exhaustive_unless(
        lambda build: build[0] == 96,
        [
            (64, {"mask": WINDOW}),
            (64, {"mask": WINDOW, "sinks": True}),
            (96, {"mask": WINDOW, "sinks": True}),
            (96, {"mask": DOCUMENTS}),
            (96, {"mask": DOCUMENTS, "softcap": 20.0}),
            (96, {"mask": DOCUMENTS, "sinks": True, "dropout": 0.1}),
            (96, {"sinks": True, "dropout": 0.1}),
            (128, {"mask": WINDOW, "sinks": True}),
            (128, {"sinks": True, "dropout": 0.1}),
            (128, {"mask": DOCUMENTS, "softcap": 20.0, "dropout": 0.1}),
            (128, {"mask": DOCUMENTS, "alibi": True, "dropout": 0.1}),
        ],
    ),
)
def test_nothing_spills_with_several_features(variant: Variant, head_dim: int, fields: dict[str, object]):
    problem = Problem(heads=2, q_len=256, kv_len=256, head_dim=head_dim, dtype="bfloat16", **fields)  # type: ignore[arg-type]
    assert_fits(variant.plan(problem).launches[-1], default_tile(head_dim).blocks_per_sm)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize(
    ("head_dim", "fields"),
    [
        (128, {"dropout": 0.1}),
        (128, {"mask": "causal", "dropout": 0.1}),
        (128, {"mask": "documents:20+44+blocks:64x32", "alibi": True, "dropout": 0.1}),
        (64, {"mask": "documents:20+44", "dropout": 0.1}),
    ],
)
def test_nothing_spills_with_dropout(variant: Variant, head_dim: int, fields: dict[str, object]):
    problem = Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype="bfloat16", **fields)  # type: ignore[arg-type]
    assert_fits(variant.plan(problem).launches[-1], default_tile(head_dim).blocks_per_sm)


CAP, ALIBI, SINKS, DROPOUT = {"softcap": 20.0}, {"alibi": True}, {"sinks": True}, {"dropout": 0.1}
SEEN = ({"mask": "documents:20+44"}, {"mask": "blocks:64x32"}, {"mask": "flashmask:4"})
BSHD = {"layout": "bshd"}
SHORT_OF_REGISTERS = (
    *(("cupy", 128, fields) for fields in (SINKS, SEEN[0] | DROPOUT, ALIBI | DROPOUT, SEEN[0] | CAP, ALIBI | SINKS)),
    *(("cupy", 112, fields) for fields in (DROPOUT, SEEN[0] | CAP)),
    ("cupy", 96, SEEN[0] | DROPOUT),
    *(("cupy", 80, fields) for fields in (DROPOUT, SEEN[0] | CAP, ALIBI | SINKS, ALIBI | DROPOUT)),
    *(("cupy", head_dim, BSHD | fields) for head_dim, fields in ((48, {}), (64, {}), (64, ALIBI))),
    *(("cupy", 128, BSHD | fields) for fields in ({}, DROPOUT)),
    *(("cupy", 120, fields) for fields in (BSHD, {"mask": WINDOW})),
    *(("cupy", head_dim, {"v_head_dim": wide}) for head_dim, wide in ((64, 96), (64, 128), (96, 128), (112, 128))),
    ("numba", 64, {"v_head_dim": 128}),
    *(("numba", 128, fields) for fields in (DROPOUT, BSHD, SEEN[0])),
)
"""Features that left the least room: with each of these, some other tile or choice of what is kept spills."""
PAIRS = [
    ("cupy", head_dim, {**one, **other})
    for head_dim in (64, 80, 96, 112, 128, 256)
    for one, other in itertools.combinations(({}, *SEEN, CAP, ALIBI, SINKS, DROPOUT), 2)
    if not ("mask" in one and "mask" in other)
]
PAIRS += [("cupy", 128, BSHD | fields) for fields in (CAP, ALIBI | CAP, ALIBI | SINKS, ALIBI | DROPOUT)]
PAIRS += [("cupy", head_dim, {"mask": WINDOW}) for head_dim in (113, 124)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("backend", "head_dim", "fields"),
    exhaustive_unless(
        lambda case: case in SHORT_OF_REGISTERS,
        [*SHORT_OF_REGISTERS, *(pair for pair in PAIRS if pair not in SHORT_OF_REGISTERS)],
    ),
)
def test_nothing_spills_with_a_feature_or_two(backend: str, head_dim: int, fields: dict[str, object]):
    variant = discover().registry.get(f"fa2-mma-{backend}")
    problem = Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype="bfloat16", **fields)  # type: ignore[arg-type]
    assert_fits(last_launch(variant, problem), default_tile(head_dim).blocks_per_sm)


@pytest.mark.parametrize("name", ["two-pass-cupy", "three-pass-recompute-cupy"])
def test_nothing_spills_under_documents_on_cuda_cores(name: str):
    problem = Problem(heads=2, q_len=256, kv_len=256, mask=DOCUMENTS)  # type: ignore[arg-type]
    (launch,) = discover().registry.get(name).plan(problem).launches
    assert_fits(launch, 4)


def test_nothing_spills_with_dropout_in_the_backward_pass():
    backward = operation_named("attention-backward").problem(heads=2, q_len=256, kv_len=256, dropout=0.1)
    _, launch = discover().registry.get("bwd-fa2-cupy").plan(backward).launches
    assert_fits(launch, 3)
