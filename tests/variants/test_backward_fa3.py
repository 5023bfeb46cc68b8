"""What gradients by Hopper's own instructions do besides what every variant of the backward pass is tested for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulators import emulator
from kernel_resources import LARGEST_BLOCK_BYTES, assert_in_registers, used
from lanes import exhaustive_unless

from harness.compilers import DevicePointer
from harness.compilers.numba.function_identity import function_identity
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import PASS
from harness.execution.planning.tiles import with_tile
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.errors import PlanError
from variants._hopper import STATIC_BYTES
from variants.attention_backward.fa3 import BackwardWarpgroupTile, default_tile, tiles

VARIANT, NUMBA = (discover().registry.get(f"bwd-fa3-{backend}") for backend in ("cupy", "numba"))
BACKENDS = pytest.mark.parametrize(
    "variant", exhaustive_unless(lambda variant: variant is VARIANT, [VARIANT, NUMBA]), ids=lambda variant: variant.name
)
EXECUTOR = emulator()
SANITIZER = EmulatorSanitizer(shuffled_runs=1)
HALVES, TURNS = 64, 128
"""head_dim where each warpgroup has a half of dQ_i, and where the two take turns."""


def holds(asked: BackwardProblem, regime: str = "normal", variant: Variant = VARIANT) -> None:
    done = attempt(variant, asked, EXECUTOR, question=Question.draw(asked, regime, 1))
    assert done.verdict == PASS and done.claim_holds, (done.reason, done.counted)
    assert done.accuracy is not None and not done.accuracy.suspicious


def problem(head_dim: int, **fields: Any) -> BackwardProblem:
    return BackwardProblem(**{"dtype": "float16", "head_dim": head_dim, "heads": 2, "kv_heads": 1, **fields})


# Tiles of 128 keys, 64 for each warpgroup, and of 128 or 64 rows. The first row of 150 lies on key 53 of 203.
@pytest.mark.parametrize(
    ("q_len", "kv_len", "mask"),
    exhaustive_unless(
        lambda case: case in ((150, 203, "causal+window:85"), (200, 130, "none"), (130, 330, "causal+prefix:129")),
        [
            (150, 203, "window:5,42"),
            (150, 203, "causal+window:85"),
            (150, 204, "causal+window:53"),
            (40, 300, "window:30,3"),  # the first tiles of keys are nobody's
            (300, 40, "window:7"),  # so are tiles of rows
            (300, 90, "causal"),  # and rows that see nothing
            (129, 129, "causal"),
            (64, 128, "causal"),
            (200, 130, "none"),
            (1, 1, "none"),
            (260, 260, "documents:127+1+132"),
            (260, 260, "causal+documents:96+33+131"),
            (130, 330, "causal+prefix:129"),
        ],
    ),
)
@pytest.mark.parametrize("head_dim", [HALVES, TURNS])
@BACKENDS
def test_masks_end_on_and_beside_the_edges_of_tiles(
    variant: Variant, head_dim: int, q_len: int, kv_len: int, mask: str
):
    holds(problem(head_dim, q_len=q_len, kv_len=kv_len, mask=mask), variant=variant)


# Boxes of 32 and of 64 columns; rows that fill them and that do not.
@pytest.mark.parametrize("head_dim", exhaustive_unless(lambda d: d == 72, [8, 32, 40, 72, 96, 112]))
def test_rows_of_any_length_give_the_answer(head_dim: int):
    holds(problem(head_dim, q_len=150, kv_len=203, mask="causal", dtype="bfloat16"))


@pytest.mark.parametrize("head_dim", [HALVES, pytest.param(TURNS, marks=pytest.mark.thorough)])
def test_documents_of_each_sequence_are_its_own(head_dim: int):
    holds(problem(head_dim, batch=2, q_len=150, kv_len=150, mask="causal+documents:30+120/101+49"))


@pytest.mark.parametrize("head_dim", [HALVES, TURNS])
@BACKENDS
def test_no_races_and_nothing_read_that_was_not_written(variant: Variant, head_dim: int):
    asked = problem(head_dim, q_len=200, kv_len=140, mask="causal")
    findings = SANITIZER.check(variant, asked, variant.plan(asked), draw_inputs(asked, "non-finite-gradient", 1))
    assert findings == (), [finding.message for finding in findings]


@pytest.mark.parametrize("name", exhaustive_unless(lambda name: name in ("K", "dO"), ("Q", "K", "V", "dO")))
@pytest.mark.parametrize("head_dim", [HALVES, pytest.param(TURNS, marks=pytest.mark.thorough)])
@BACKENDS
def test_what_is_not_finite_reaches_those_who_see_it_and_nobody_else(variant: Variant, head_dim: int, name: str):
    asked = problem(head_dim, heads=1, q_len=200, kv_len=260, mask="causal")
    visible = asked.mask.visible(np.arange(200)[:, None], np.arange(260)[None], 200, 260)
    inputs = draw_inputs(asked, "normal", 4)
    clean = EXECUTOR.run(asked, variant.plan(asked), inputs).outputs
    for place in (3, 127, 199):
        dirty = {**inputs, name: inputs[name].copy()}
        dirty[name][0, 0, place, -1] = np.inf
        found = EXECUTOR.run(asked, variant.plan(asked), dirty).outputs
        rows = visible[:, place] if name in "KV" else np.arange(200) == place
        keys = visible[rows].any(axis=0)
        for output, reached in (("dK", keys), ("dV", keys)):
            np.testing.assert_array_equal(found[output][0, 0, ~reached], clean[output][0, 0, ~reached])
        assert np.isfinite(found["dQ"][0, 0, ~rows].astype(np.float32)).all()
        assert not np.isfinite(found["dQ"][0, 0, rows].astype(np.float32)).any(axis=-1).all()
        of_place = slice(place, place + 1) if name in "KV" else keys
        assert not np.isfinite(found["dK"][0, 0, of_place].astype(np.float32)).all(axis=-1).any()


@pytest.mark.parametrize(
    ("head_dim", "mask"),
    exhaustive_unless(
        lambda case: case[1] == "causal",
        [(d, mask) for d in (HALVES, TURNS) for mask in ("none", "causal", "documents:20+44")],
    ),
)
@pytest.mark.parametrize("variant", [VARIANT, NUMBA], ids=lambda variant: variant.name)
def test_nothing_spills(variant: Variant, head_dim: int, mask: str):
    asked = problem(head_dim, q_len=64, kv_len=64, mask=mask)
    plan = variant.plan(asked)
    buffers = plan.all_buffers(asked)

    def resolved(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(resolved, arg))
        return DevicePointer(0, buffers[arg].shape, buffers[arg].dtype) if isinstance(arg, str) else arg

    launch = plan.launches[1]
    found = used(type(launch)(launch.kernel, launch.grid, launch.block, resolved(tuple(launch.args))))
    assert_in_registers(found)
    assert found.shared_bytes + launch.shared_bytes <= LARGEST_BLOCK_BYTES


# Same tiles, same products, same order of everything; only subnormal numbers are flushed by CuPy's compiler and not by
# Numba's. A head has at most two tiles of keys: what these add to dQ has the same sum in either order.
@pytest.mark.parametrize(
    ("head_dim", "fields", "regime"),
    exhaustive_unless(
        lambda case: case[0] == TURNS,
        [
            (HALVES, {"mask": "causal", "kv_len": 128}, "normal"),
            (TURNS, {"mask": "causal", "kv_len": 128}, "normal"),
            (HALVES, {"mask": "documents:90+60", "kv_len": 150, "batch": 2}, "normal"),
            (TURNS, {"mask": "window:30,11", "kv_len": 200}, "non-finite-gradient"),
            (72, {"mask": "causal+prefix:20", "kv_len": 203, "scale": -0.25}, "rising"),
            (40, {"dtype": "bfloat16", "kv_len": 203}, "large-gradient"),
            (96, {"dtype": "bfloat16", "mask": "causal", "kv_len": 90}, "hot"),
        ],
    ),
    ids=str,
)
def test_both_backends_give_the_same_bits(head_dim: int, fields: dict[str, Any], regime: str):
    asked = problem(head_dim, q_len=150, **fields)
    inputs = draw_inputs(asked, regime, 1)
    cupy, numba = (EXECUTOR.run(asked, variant.plan(asked), inputs) for variant in (VARIANT, NUMBA))
    for name in ("dQ", "dK", "dV"):
        assert cupy.outputs[name].tobytes() == numba.outputs[name].tobytes(), name
    assert (cupy.read_bytes, cupy.write_bytes) == (numba.read_bytes, numba.write_bytes)


def test_the_kernel_in_numba_can_be_cached():
    identities = [function_identity(NUMBA.plan(problem(d)).launches[1].kernel) for d in (HALVES, TURNS)]
    assert None not in identities and len(set(identities)) == len(identities)


@pytest.mark.parametrize(("head_dim", "at_least"), [(32, 4), (HALVES, 3), (96, 2), (TURNS, 1)])
@pytest.mark.parametrize(("mask", "kept_bytes"), [("none", 0), ("documents:20+44", 8 * 128)])
def test_tiles_to_choose_from_start_with_the_default_fit_and_differ(
    head_dim: int, at_least: int, mask: str, kept_bytes: int
):
    asked = problem(head_dim, q_len=64, kv_len=64, mask=mask)
    chosen = [BackwardWarpgroupTile(**tile) for tile in tiles(asked)]
    assert chosen[0] == default_tile(asked)
    assert len(set(chosen)) == len(chosen) >= at_least
    assert all(tile.shared_bytes(head_dim) + kept_bytes + STATIC_BYTES <= LARGEST_BLOCK_BYTES for tile in chosen)


def test_a_tile_of_another_size_gives_the_answer():
    (tile,) = (tile for tile in tiles(problem(32)) if tile == {"Br": 64, "Bc": 128, "stages": 3})
    holds(problem(32, q_len=260, kv_len=203, mask="causal"), variant=with_tile(VARIANT, tile))


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"Br": 96, "Bc": 128, "stages": 2}, "Br has to be 64 or 128"),
        ({"Br": 64, "Bc": 64, "stages": 2}, "Bc has to be 128"),
        ({"Br": 64, "Bc": 128, "stages": 1}, "stages has to be at least 2"),
    ],
)
def test_a_tile_that_no_kernel_can_have_is_refused(sizes: dict[str, int], reason: str):
    with pytest.raises(PlanError, match=reason):
        BackwardWarpgroupTile(**sizes)


def test_what_is_out_of_reach_is_said():
    for fields, reason in (
        ({"head_dim": 136}, "up to 128"),
        ({"head_dim": 20}, "multiple of 8"),
        ({"dtype": "float32"}, "choose float16 or bfloat16"),
    ):
        assert reason in (VARIANT.supports(problem(**{"head_dim": 64, **fields})) or "")
