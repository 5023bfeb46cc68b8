"""What variants claim to move is what they are counted to move, byte for byte."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attention_runs import (
    EXECUTOR,
    FEW,
    KERNELS,
    USUAL_KERNELS,
    VARIANTS,
    by_algorithm,
    is_compiled_here,
    problems,
    problems_taken_by,
)
from claimed_traffic import bytes_by_buffer, claimed, counted, traffic
from emulators import emulator
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from lanes import exhaustive, exhaustive_unless, is_exhaustive, thorough_unless
from twins import of_one_language

from harness.compilers import DevicePointer, compile_kernel
from harness.execution.planning.variant_calls import refusal_of
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.model.tile_sizes import TileSizes
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.problem import Problem
from scripts import check_claims
from variants._tiles import MORE_SHARED_BYTES, SHARED_BYTES, Tile, default_tile
from variants._tiles.schedule import Schedule
from variants._tiles.sectors import run_bytes, tiled_run_bytes
from variants.attention.fa1 import claim as fa1_claim
from variants.attention.fa1 import fa1_tile
from variants.attention.fa2 import default_tile as fa2_tile

PLUGINS = Path(__file__).parents[1] / "plugins"
NAME_WITHOUT_CLAIM = "one-thread-per-row"
CLAIMING = [variant for variant in VARIANTS if variant.claim is not None]
USUAL = [variant for variant in CLAIMING if variant.name in FEW]
parametrize_variants = pytest.mark.parametrize(
    "variant", of_one_language(USUAL.__contains__, CLAIMING), ids=lambda variant: variant.name
)

ALIGNED = {
    "plain": Problem(heads=2, q_len=128, kv_len=192, head_dim=64),
    "causal": Problem(heads=2, q_len=192, kv_len=192, head_dim=64, mask="causal"),
    "causal, more keys than rows": Problem(heads=1, q_len=64, kv_len=192, head_dim=64, mask="causal"),
    "causal, more rows than keys": Problem(heads=1, q_len=192, kv_len=64, head_dim=64, mask="causal"),
    "window": Problem(heads=2, q_len=192, kv_len=192, head_dim=64, mask="window:32,31"),
    "window, more keys than rows": Problem(heads=1, q_len=64, kv_len=320, head_dim=64, mask="window:64,0"),
    "window, more rows than keys": Problem(heads=1, q_len=192, kv_len=64, head_dim=64, mask="window:31,33"),
    "causal window": Problem(heads=2, q_len=192, kv_len=192, head_dim=64, mask="causal+window:64"),
    **{
        name: Problem(batch=2, heads=2, q_len=q_len, kv_len=kv_len, head_dim=48, dtype="float16", mask=mask)
        for name, q_len, kv_len, mask in (
            ("documents", 192, 192, "documents:32+96+64"),
            ("documents of each sequence", 64, 320, "documents:256+64/288+1+31"),
            ("documents, more rows than keys", 192, 64, "documents:31+1+32"),
            ("prefix", 192, 192, "prefix:64"),
        )
    },
    "grouped": Problem(batch=2, heads=6, kv_heads=2, q_len=64, kv_len=128, head_dim=64),
    "float16": Problem(heads=2, q_len=128, kv_len=128, head_dim=48, dtype="float16"),
    "float16, causal, grouped": Problem(
        batch=2, heads=4, kv_heads=2, q_len=128, kv_len=192, head_dim=48, dtype="float16", mask="causal"
    ),
}


def assert_claimed(variant: Variant, problem: Problem) -> None:
    """Bytes are those claimed, but for what a variant reads for some inputs alone."""
    moved, claim = traffic(counted(variant, problem)), claimed(variant, problem)
    assert claim.holds(moved.read_bytes, moved.write_bytes), (moved, claim)
    assert claim.further_read_bytes or moved == claim


# Both languages share a claim, and each kernel in Numba takes seconds. Shapes are drawn for both below.
@pytest.mark.parametrize(
    "variant",
    [
        *thorough_unless(USUAL.__contains__, [v for v in CLAIMING if v.backend == "cupy" or v in USUAL]),
        *exhaustive(v for v in CLAIMING if v.backend != "cupy" and v not in USUAL),
    ],
    ids=lambda variant: variant.name,
)
@pytest.mark.parametrize("problem", ALIGNED.values(), ids=ALIGNED)
def test_counted_is_claimed_where_tiles_divide_the_problem(variant: Variant, problem: Problem):
    if (reason := refusal_of(variant, problem)) is not None:
        pytest.skip(reason)
    if not is_compiled_here(variant, problem):
        pytest.skip("masks that are no band, of other variants: in the exhaustive lane")
    assert_claimed(variant, problem)


@parametrize_variants
@given(data=st.data())
@settings(
    max_examples=40 if is_exhaustive() else 15,
    deadline=None,  # the first example of a kernel compiles it
    derandomize=True,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.differing_executors),
)
def test_counted_is_claimed_whatever_the_shape(variant: Variant, data: st.DataObject):
    # Further kernels are compilations.
    problem = data.draw(problems_taken_by(variant, KERNELS if is_exhaustive() else USUAL_KERNELS), "problem")
    assert_claimed(variant, problem)


@pytest.fixture
def usual_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script draws problems of kernels that other tests compile as well; in the exhaustive lane, of its own."""
    if not is_exhaustive():
        monkeypatch.setattr(check_claims, "problems_for", lambda variant: check_claims.problems(USUAL_KERNELS))
        monkeypatch.setattr(check_claims, "EmulatorExecutor", emulator)


@pytest.mark.usefixtures("usual_kernels")
def test_a_wrong_claim_is_found_and_shrunk():
    """It forgets that a mask lets tiles be skipped: the least is a block of rows that sees nothing, and one row."""
    variant = discover([PLUGINS / "wrong_claim.py"]).registry.get("wrong-claim")
    found = check_claims.check(variant, EXECUTOR, examples=30, start=1)
    assert found.exact < found.problems == 30
    Br = default_tile(64).Br
    assert found.smallest == Problem(heads=1, q_len=Br + 1, kv_len=1, mask="causal")
    assert re.fullmatch(r"claims [\d,]+ bytes read .*; counted: [\d,]+ and [\d,]+", found.difference or "")


@pytest.mark.usefixtures("usual_kernels")
def test_a_right_claim_is_exact_on_as_many_problems_as_asked_for():
    assert check_claims.check(by_algorithm("fa2")[0], EXECUTOR, examples=15) == check_claims.ClaimCheck(
        "fa2-cupy", problems=15, exact=15
    )


@pytest.mark.usefixtures("usual_kernels")
def test_a_claim_that_raises_is_not_exact():
    broken = dataclasses.replace(by_algorithm("fa2")[0], claim=lambda problem: 1 // 0)
    found = check_claims.check(broken, EXECUTOR, examples=2)
    assert (found.problems, found.exact) == (2, 0)
    assert "ZeroDivisionError" in (found.difference or "")


@pytest.mark.usefixtures("usual_kernels")
def test_the_script_says_what_differs_and_how_to_see_it(capsys: pytest.CaptureFixture[str]):
    plugin = ("--plugin", str(PLUGINS / "wrong_claim.py"))
    assert check_claims.main(["wrong-claim", *plugin, "--examples", "40", "--seed", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"wrong-claim +40 +\d+ +batch 1, 1 head, \d+ x 1, head_dim 64, float32, causal", lines[2])
    assert lines[4].startswith("wrong-claim: claims ")
    assert lines[5].split()[:4] == ["python", "-m", "harness", "traffic"]
    assert lines[5].endswith("--kv-len 1 --head-dim 64 --dtype float32 --mask causal")
    assert check_claims.main(["fa2-cupy", "--examples", "3"]) == 0
    assert check_claims.main(["fa3"]) == 2
    assert check_claims.main([NAME_WITHOUT_CLAIM, "--plugin", str(PLUGINS / "one_thread_per_row.py")]) == 2
    assert "claims nothing" in capsys.readouterr().err


def test_problems_of_the_script_have_what_the_variant_takes():
    registry = discover().registry
    for name in ("fa2-cupy", "bwd-mma-cupy"):
        assert find(check_claims.problems_for(registry.get(name)), lambda problem: problem.dropout > 0)
    assert find(check_claims.problems_for(registry.get("fa2-cupy")), lambda problem: not problem.mask.is_run)
    assert find(check_claims.problems_for(registry.get("paged-cupy")), lambda problem: len(problem.lengths) > 1)
    assert check_claims.main(["softmax-safe-cupy", "--examples", "3"]) == 0


@pytest.mark.thorough
def test_a_row_longer_than_the_chip_is_read_again():
    problem = Problem(heads=1, q_len=5, kv_len=3200, head_dim=64)
    for variant in by_algorithm("three-pass"):
        assert traffic(counted(variant, problem)) == claimed(variant, problem)


# The formulas as the literature has them, per query head, in bytes. X is a whole Q, O, K or V.
LITERATURE: dict[str, Callable[[int, int, int, int, Tile], tuple[int, int]]] = {
    "three-pass": lambda X, N, w, T_r, _: (X + 2 * T_r * X + 2 * N * N * w, 2 * N * N * w + X),
    "three-pass-recompute": lambda X, N, w, T_r, _: (X + 4 * T_r * X, X),
    "two-pass": lambda X, N, w, T_r, _: (X + 3 * T_r * X, X),
    # On chip every other row begins in the middle of a sector, which costs copies an eighth more (tile_copies.py).
    "fa2": lambda X, N, w, T_r, _: ((X + 2 * T_r * X) * 9 // 8, X + 4 * N),
    "fa1": lambda X, N, w, _, tile: (
        2 * X + N // tile.Bc * (2 * X + 8 * N),
        N // tile.Bc * (X + 8 * N) + X + 8 * N,
    ),
}

OWN_TILES = {"fa1": fa1_tile, "fa2": fa2_tile}
"""Of `LITERATURE`, those which have no `default_tile` of all."""


@pytest.mark.compiles(False)
@pytest.mark.parametrize("algorithm", LITERATURE)
@pytest.mark.parametrize(("length", "head_dim"), [(512, 64), (1024, 128)])
def test_claims_are_the_formulas_of_the_literature(algorithm: str, length: int, head_dim: int):
    problem = Problem(heads=3, q_len=length, kv_len=length, head_dim=head_dim)
    tile = OWN_TILES.get(algorithm, default_tile)(head_dim)
    X = length * head_dim * 4
    read_bytes, write_bytes = LITERATURE[algorithm](X, length, 4, length // tile.Br, tile)
    for variant in by_algorithm(algorithm):
        assert claimed(variant, problem) == Traffic(3 * read_bytes, 3 * write_bytes)


# The same without tiles: bytes read and written, of rows of N keys. A log-sum-exp is stored in a sector of its own.
UNTILED: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "row-wise": lambda X, N: (X + 2 * N * X, X + 32 * N),
    "native": lambda X, N: (X + 2 * N * X, X),
}


@pytest.mark.compiles(False)
@pytest.mark.parametrize("algorithm", UNTILED)
def test_without_tiles_every_row_reads_all_keys_and_values(algorithm: str):
    problem = Problem(heads=3, q_len=512, kv_len=512, head_dim=64)
    read_bytes, write_bytes = UNTILED[algorithm](512 * 64 * 4, 512)
    for variant in by_algorithm(algorithm):
        assert claimed(variant, problem) == Traffic(3 * read_bytes, 3 * write_bytes)


@pytest.mark.compiles(False)
@pytest.mark.parametrize(("head_dim", "pays"), [(32, True), (64, True), (72, False), (256, False)])
def test_recomputing_scores_moves_less_for_short_rows(head_dim: int, pays: bool):
    problem = Problem(heads=1, q_len=1024, kv_len=1024, head_dim=head_dim)
    anew, stored = (by_algorithm(name)[0] for name in ("three-pass-recompute", "three-pass"))
    assert (claimed(anew, problem).total_bytes < claimed(stored, problem).total_bytes) is pays
    assert pays is (head_dim < 2 * default_tile(head_dim).Br)


@parametrize_variants
def test_a_claim_for_another_problem_does_not_fit(variant: Variant):
    # Three blocks of rows for the largest tiles; the first of them sees half of the keys.
    problem = Problem(heads=2, q_len=400, kv_len=400, head_dim=48, dtype="float16", mask="causal")
    if (reason := refusal_of(variant, problem)) is not None:
        pytest.skip(reason)
    without_mask = dataclasses.replace(problem, mask="none")
    assert_claimed(variant, problem)
    assert traffic(counted(variant, problem)) != claimed(variant, without_mask)


# Row blocks x key tiles of equal size. A causal row block i meets the key tiles up to its own: 1 + 2 = 3 of the 4 pairs
# that two by two tiles have, 1 + 2 + 3 = 6 of 9. A window of 4 keys ahead reaches one tile back, one of a key either
# way the tiles to both sides, and one of no key none of them.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("tiles", "mask", "pairs"),
    [
        (2, "none", 4),
        (2, "causal", 3),
        (3, "none", 9),
        (3, "causal", 6),
        (4, "causal+window:4", 7),
        (4, "causal+window:5", 9),
        (4, "window:1", 10),
        (4, "window:0", 4),
    ],
)
@pytest.mark.parametrize("algorithm", exhaustive_unless(lambda algorithm: algorithm in ("fa1", "fa2"), LITERATURE))
def test_tiles_of_which_no_row_sees_a_key_are_not_visited(algorithm: str, tiles: int, mask: str, pairs: int):
    tile = Tile(4, 4)
    problem = Problem(heads=1, q_len=4 * tiles, kv_len=4 * tiles, head_dim=4, mask=mask)
    tile_bytes = 4 * 4 * 4
    for variant in by_algorithm(algorithm):
        plan = variant.plan(problem, dataclasses.asdict(tile))
        execution = EXECUTOR.run(problem, plan, draw_inputs(problem, "normal", 0))
        read = bytes_by_buffer(execution, "load")
        if algorithm == "fa1":  # its loops are the other way round: rows pass by a tile of keys
            assert (read["K"], read["V"]) == (tiles * tile_bytes, tiles * tile_bytes)
            assert (read["Q"], read["O"]) == (pairs * tile_bytes, pairs * tile_bytes)
        else:
            sweeps_over_k = {"two-pass": 2, "three-pass-recompute": 3}.get(algorithm, 1)
            assert (read["K"], read["V"]) == (sweeps_over_k * pairs * tile_bytes, pairs * tile_bytes)
            assert read["Q"] == tiles * tile_bytes
        claim = variant.claim
        assert claim is not None
        assert traffic(execution) == claim(problem, dataclasses.asdict(tile))


@pytest.mark.compiles(False)
def test_the_loop_order_decides_who_reads_less():
    """The point of the sandbox: the same answer, one order after the other, each with less traffic than the last."""
    problem = Problem(heads=1, q_len=2048, kv_len=2048, head_dim=64)
    total = {name: claimed(by_algorithm(name)[0], problem).total_bytes for name in LITERATURE}
    assert total["fa2"] < total["two-pass"] < total["three-pass-recompute"] < total["three-pass"]
    assert total["fa2"] < total["fa1"]
    assert total["fa2"] > problem.compulsory_bytes


@pytest.mark.compiles(False)
@pytest.mark.parametrize(
    ("head_dim", "tile"),
    [(64, Tile(32, 32)), (128, Tile(16, 16)), (32, Tile(32, 64)), (16, Tile(16, 128)), (1, Tile(1, 128))],
)
def test_tiles_of_flashattention_1_follow_its_first_line(head_dim: int, tile: Tile):
    assert fa1_tile(head_dim) == tile


@pytest.mark.compiles(False)
def test_twice_the_chip_is_half_the_traffic_of_flashattention_1():
    """Theorem 2 of the paper: Theta(N^2 d^2 / M)."""
    problem = Problem(heads=1, q_len=8192, kv_len=8192, head_dim=64)
    small, large = (fa1_claim(problem, fa1_tile(64, on_chip_floats)).total_bytes for on_chip_floats in (4096, 8192))
    assert small / large == pytest.approx(2, rel=0.02)


def shared_memory(variant: Variant, problem: Problem, tile: TileSizes | None = None) -> dict[str, int]:
    """Bytes of shared memory that a block of each kernel has, dynamic ones included."""
    plan = variant.plan(problem) if tile is None else variant.plan(problem, tile)
    buffers = plan.all_buffers(problem)
    found = {}
    for launch in plan.launches:
        args = tuple(
            DevicePointer(256, buffers[a].shape, buffers[a].dtype) if isinstance(a, str) else a for a in launch.args
        )
        ptx = compile_kernel(launch.kernel, args, "sm_90").ptx
        entry = re.search(rf"\.entry {launch.kernel_name}\(.*?\n\}}", ptx, re.DOTALL)
        assert entry is not None
        declared = dict(re.findall(r"\.shared \.align \d+ \.b8 (\S+)\[(\d+)\]", ptx))
        used = [int(size) for name, size in declared.items() if re.search(rf"\b{re.escape(name)}\b", entry.group())]
        found[launch.kernel_name] = sum(used) + launch.shared_bytes
    return found


# Widest tiles, odd rows, and where a rule changes from one tile to the next.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "head_dim", exhaustive_unless(lambda head_dim: head_dim == 256, [1, 16, 45, 62, 64, 65, 127, 128, 129, 256])
)
def test_every_kernel_fits_the_shared_memory_of_any_gpu(head_dim: int):
    problem = Problem(heads=1, q_len=64, kv_len=64, head_dim=head_dim)
    for variant in VARIANTS:
        if variant.backend == "cupy" and refusal_of(variant, problem) is None:  # Numba's have the same arrays
            for kernel, used_bytes in shared_memory(variant, problem).items():
                asks_for_more = any(launch.shared_bytes for launch in variant.plan(problem).launches)
                assert used_bytes <= (MORE_SHARED_BYTES if asks_for_more else SHARED_BYTES), kernel


@pytest.mark.parametrize("head_dim", exhaustive_unless(lambda head_dim: head_dim == 64, [20, 64, 128]))
@pytest.mark.parametrize("algorithm", exhaustive_unless(lambda name: name != "three-pass-recompute", LITERATURE))
def test_the_largest_tile_fits_with_the_declared_memory(algorithm: str, head_dim: int):
    shared_floats = importlib.import_module(f"variants.attention.{algorithm.replace('-', '_')}").shared_floats
    problem = Problem(heads=1, q_len=128, kv_len=128, head_dim=head_dim)
    (variant,) = (v for v in by_algorithm(algorithm) if v.backend == "cupy")
    assert variant.tiles is not None
    largest = max(variant.tiles(problem), key=lambda tile: shared_floats(head_dim, Tile(**tile)))
    used_bytes = {k: v for k, v in shared_memory(variant, problem, largest).items() if k != "three_pass_softmax"}
    limit = MORE_SHARED_BYTES if algorithm == "fa2" else SHARED_BYTES
    assert max(used_bytes.values()) == 4 * shared_floats(head_dim, Tile(**largest)) <= limit


@pytest.mark.thorough
@pytest.mark.parametrize(
    "variant",
    exhaustive_unless(lambda variant: variant.name == "fa2-cupy", (v for v in CLAIMING if v.tiles is not None)),
    ids=lambda variant: variant.name,
)
def test_claims_hold_at_the_ends_of_what_may_be_chosen(variant: Variant):
    assert variant.tiles is not None
    problem = Problem(heads=2, q_len=150, kv_len=70, head_dim=64, mask="causal")
    if refusal_of(variant, problem) is not None:
        problem = dataclasses.replace(problem, dtype="float16")
    assert refusal_of(variant, problem) is None
    tiles = variant.tiles(problem)
    # A compilation each: of the whole space the most rows and the most keys.
    for tile in (max(tiles, key=lambda tile: tile[name]) for name in tiles[0]):
        execution = EXECUTOR.run(problem, variant.plan(problem, tile), draw_inputs(problem, "normal", 0))
        assert variant.claim is not None
        assert traffic(execution) == variant.claim(problem, tile), tile


def sectors_one_by_one(first: int, elements: int, itemsize_bytes: int, elements_per_lane: int = 1) -> int:
    """What `run_bytes` has in closed form: every address of every request, as a set of sectors."""
    addresses = (first + np.arange(elements)) * itemsize_bytes
    requests = np.arange(elements) // (32 * elements_per_lane)
    return len({(request, address // 32) for request, address in zip(requests.tolist(), addresses.tolist())})


@pytest.mark.compiles(False)
@given(
    first=st.integers(0, 200),
    elements=st.integers(0, 600),
    itemsize_bytes=st.sampled_from((2, 4)),
    per_lane=st.sampled_from((1, 2, 4, 8)),
)
def test_bytes_of_a_run_are_its_sectors_counted_one_by_one(
    first: int, elements: int, itemsize_bytes: int, per_lane: int
):
    counted = 32 * sectors_one_by_one(first, elements, itemsize_bytes, per_lane)
    assert run_bytes(first, elements, itemsize_bytes, per_lane) == counted


@pytest.mark.compiles(False)
@given(
    start=st.integers(0, 200),
    first=st.integers(0, 200),
    elements=st.integers(-2, 300),
    step=st.integers(1, 70),
    itemsize_bytes=st.sampled_from((2, 4)),
)
def test_bytes_of_a_run_in_tiles_are_those_of_each_request(
    start: int, first: int, elements: int, step: int, itemsize_bytes: int
):
    places = np.arange(first, first + max(elements, 0))
    requests = places // step, places % step // 32
    touched = set(zip(*(each.tolist() for each in (*requests, (start + places) * itemsize_bytes // 32)), strict=True))
    run = (np.array([n]) for n in (start, first, first + elements))
    assert tiled_run_bytes(*run, step, itemsize_bytes).tolist() == [32 * len(touched)]


@given(problem=problems(), tile=st.builds(Tile, st.integers(1, 40), st.integers(1, 40)))
@settings(deadline=None)  # tiles of one row and one key are asked one by one
def test_a_tile_is_visited_exactly_where_one_of_its_keys_is_seen(problem: Problem, tile: Tile):
    schedule = Schedule(problem, tile)
    rows, keys = np.arange(problem.q_len)[:, None], np.arange(problem.kv_len)[None, :]
    numbers = np.arange(len(schedule.first_keys))[None, :]
    for sequence in range(problem.mask.sequences):
        seen = problem.mask.of_sequence(sequence).visible(rows, keys, problem.q_len, problem.kv_len)
        pairs = np.array(
            [[seen[r : r + tile.Br, k : k + tile.Bc].any() for k in schedule.first_keys] for r in schedule.first_rows]
        )
        first, end = schedule.first_tiles[sequence], schedule.end_tiles[sequence]
        assert ((first[:, None] <= numbers) & (numbers < end[:, None])).tolist() == pairs.tolist()
        assert schedule.visits[sequence].tolist() == pairs.sum(axis=1).tolist()
        assert schedule.key_visits[sequence].tolist() == pairs.sum(axis=0).tolist()


def test_packed_documents_are_visited_alone():
    """16 documents of unequal lengths in 16,384 keys: of all pairs of tiles as many as have a pair that is seen."""
    lengths = [64 * n for n in (1, 40, 3, 25, 7, 31, 16, 9, 22, 5, 36, 2, 14, 28, 11, 6)]
    mask = "documents:" + "+".join(map(str, lengths))
    problem = Problem(heads=1, q_len=16384, kv_len=16384, mask=mask)  # type: ignore[arg-type]
    assert sum(lengths) == 16384 and int(Schedule(problem, Tile(64, 64)).visits.sum()) == sum(
        (n // 64) ** 2 for n in lengths
    )
    windowed = dataclasses.replace(problem, mask=problem.mask & parse_mask("causal+window:127"))
    # Of each document the tile on the diagonal and the two before, as far as they are its own.
    visits = sum(min(1 + i, 3) for n in lengths for i in range(n // 64))
    assert int(Schedule(windowed, Tile(64, 64)).visits.sum()) == visits
