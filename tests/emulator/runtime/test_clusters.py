"""Clusters of blocks: how they are launched and scheduled, what they share, what is counted, and what cannot go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.emulator.codegen.kernel_facts import ClusterFacts
from harness.emulator.launch.configuration import Geometry, with_cluster
from harness.model.plan import Launch
from harness.model.tensor_map import TensorMap
from harness.support.errors import KernelFault, PlanError
from tests.emulator.bulk_copies import swizzled
from tests.emulator.cluster_kernels import HELPERS, MATRIX, MEETING, PRODUCT, REDUCTION, TILE, product_arguments
from tests.emulator.hopper_kernel import run_hopper


def meeting(body: str, blocks: int = 2, threads: int = 64, grid: int = 0, cores: int = 1, **launch: Any) -> np.ndarray:
    """What a kernel in clusters of so many blocks leaves in `y`, an int for each thread."""
    grid = grid or 2 * blocks
    after, _ = run_hopper(
        MEETING.replace("BODY", body),
        {"Y": np.full(grid * threads, -1, np.int32)},
        ("Y",),
        grid=(grid, 1, 1),
        block=(threads, 1, 1),
        cluster=(blocks, 1, 1),
        threads=cores,
        **launch,
    )
    return after["Y"].reshape(grid, threads)


EXCHANGE = "s[t] = 100 * b + t; met(); y[i] = s_of((r + 1) % n)[t]; met();"


@pytest.mark.parametrize(("blocks", "seed", "threads"), [(2, 0, 64), (8, 0, 40), (4, 1, 64), (4, 2, 1), (1, 0, 64)])
def test_blocks_exchange_what_they_have(blocks: int, seed: int, threads: int) -> None:
    """In any order of warps; also where a block's warps are not whole, and where every block is a cluster."""
    found = meeting(EXCHANGE, blocks, threads, seed=seed)
    grid = np.arange(2 * blocks)
    following = grid - grid % blocks + (grid % blocks + 1) % blocks
    assert np.array_equal(found, 100 * following[:, None] + np.arange(threads))


def test_clusters_run_on_any_number_of_cores() -> None:
    one, two = (meeting(EXCHANGE, 4, grid=64, cores=cores) for cores in (1, 2))
    assert np.array_equal(one, two)


def test_a_kernel_that_knows_of_no_clusters_runs_in_them() -> None:
    """Its addresses are those of its own block."""
    source = 'extern "C" __global__ void k(int* y) { __shared__ int s[32]; int t = threadIdx.x; s[t] = t + blockIdx.x;'
    source += "__syncthreads(); y[32 * blockIdx.x + t] = s[31 - t]; }"
    after, _ = run_hopper(source, {"Y": np.zeros(128, np.int32)}, ("Y",), grid=(4, 1, 1), cluster=(2, 1, 1))
    assert np.array_equal(after["Y"].reshape(4, 32), np.arange(4)[:, None] + np.arange(32)[::-1])


def test_arriving_is_not_waiting() -> None:
    """Between the two a warp does what it likes; the other's second arrival waits for its own."""
    body = "s[t] = b; arrive(); y[i] = 7; wait(); y[i] += s_of(1 - r)[t]; arrive(); wait(); arrive(); wait();"
    assert np.array_equal(meeting(body)[:, 0], [8, 7, 10, 9])


def test_blocks_wait_for_each_other_by_flags() -> None:
    """Who spins lets the blocks of its cluster run, whichever of them comes first."""
    body = """s[t] = -1; met();
    if (t == 0) { for (int j = 0; j < 3; ++j) {
      if (r == 0) { s_of(1)[0] = j; while (s[0] != j) ; } else { while (s[0] != j) ; s_of(0)[0] = j; } } }
    met(); y[i] = s[0];"""
    assert (meeting(body) == 2).all()


def test_who_has_returned_is_not_waited_for() -> None:
    """Neither whole warps nor lanes of a warp that others of it stay behind."""
    body = "if (t >= 32 && r == 1 || t % 3 == 1) return; y[i] = 1; arrive(); wait(); y[i] = 2;"
    found = meeting(body)
    for block, row in enumerate(found):
        stays = np.array([t % 3 != 1 and not (t >= 32 and block % 2 == 1) for t in range(64)])
        assert np.array_equal(row, np.where(stays, 2, -1))


def test_who_waits_at_the_clusters_barrier_is_named() -> None:
    """Warp 1 of the second block waits for its own block, which waits for the cluster."""
    body = "if (r == 1 && t >= 32) __syncthreads(); arrive(); wait();"
    told = (
        r"kernel k, block \(0, 0, 0\): barrier deadlock: "
        r"warps 0-1 of block \(0, 0, 0\) wait at the barrier of the cluster, .*planted.cu:2 \(PTX line \d+\); "
        r"warp 0 of block \(1, 0, 0\) waits at the barrier of the cluster, .*planted.cu:2 \(PTX line \d+\); "
        r"warp 1 of block \(1, 0, 0\) waits at a barrier, .*planted.cu:7 \(PTX line \d+\); "
        r"all warps of the cluster that have not returned must arrive there"
    )
    with pytest.raises(KernelFault, match=told) as caught:
        meeting(body)
    assert caught.value.kind == "barrier deadlock"


def test_a_block_that_has_ended_is_not_asked() -> None:
    """Both lines are told: who asks, and where the block returned."""
    told = r"planted.cu:8 .*, block \(1, 0, 0\), thread \(0, 0, 0\): load at byte offset 0 of shared memory of block "
    told += r"\(0, 0, 0\), which has ended at .*planted.cu:10 \(PTX line \d+\); its threads must not return"
    with pytest.raises(KernelFault, match=told) as caught:
        meeting("s[t] = t; met();\ny[i] = s_of(1 - r)[t];\n", threads=32)
    assert caught.value.kind == "ended block"


@pytest.mark.parametrize(
    ("act", "verb"),
    [
        ("arrive_at(&bar, 0);", "atomic"),
        (
            'asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" :: '
            '"r"(place_in((int*)s, 0)), "r"(t), "r"(place_in(&bar, 0)) : "memory");',
            "asynchronous store",
        ),
    ],
)
def test_an_mbarrier_of_a_block_that_has_ended_is_not_there(act: str, verb: str) -> None:
    body = f"__shared__ u64 bar; if (t == 0) init(&bar, 4); met();\nif (rank_of_block() == 1 && t == 0) {{ {act} }}\n"
    with pytest.raises(
        KernelFault, match=rf"{verb} at byte offset \d+ of .*which has ended at .*planted.cu:"
    ) as caught:
        meeting(body, threads=32)
    assert caught.value.kind == "ended block"


# Launches -------------------------------------------------------------------------------------------------------------


class Kernel:
    """Something with a name."""

    name = "k"


@pytest.mark.parametrize(
    ("grid", "cluster", "told"),
    [
        ((4,), (3,), r"grid is \(4,\), and its cluster \(3,\); the grid has to be a multiple of it"),
        ((4,), (2, 2), "has to be a multiple"),
        ((16,), (16,), r"cluster is \(16,\): 16 blocks; at most 8 are supported"),
        ((8, 8), (4, 4), "16 blocks; at most 8 are supported"),
        ((4,), (0,), "it needs one to three whole numbers of at least 1"),
        ((4,), (1, 1, 1, 1), "it needs one to three whole numbers"),
        ((4,), (2.0,), "whole numbers, and 2.0 is a float"),
        ((4,), 2, "it has to be a tuple of whole numbers"),
    ],
)
def test_a_plan_has_no_cluster_that_no_gpu_launches(grid: tuple[int, ...], cluster: Any, told: str) -> None:
    with pytest.raises(PlanError, match=told):
        Launch(Kernel(), grid, (32,), (), cluster=cluster)
    assert Launch(Kernel(), (8, 2), (32,), (), cluster=(np.int64(4), 2)).cluster == (4, 2)


DIRECTED = 'extern "C" __global__ void DIRECTIVE k(int* y) { y[blockIdx.x] = 1; }'


@pytest.mark.parametrize(
    ("directive", "grid", "cluster", "told"),
    [
        ("__cluster_dims__(2, 1, 1)", 4, (4, 1, 1), r"with cluster \(4, 1, 1\), and is compiled for \(2, 1, 1\)"),
        ("__cluster_dims__(2, 1, 1)", 5, None, "the grid has to be a multiple"),
        ("__cluster_dims__(16, 1, 1)", 16, None, "16 blocks; at most 8 are supported"),
    ],
)
def test_a_launch_fits_what_the_kernel_was_compiled_for(directive: str, grid: int, cluster: Any, told: str) -> None:
    source = DIRECTED.replace("DIRECTIVE", directive)
    with pytest.raises(PlanError, match=told):
        run_hopper(source, {"Y": np.zeros(16, np.int32)}, ("Y",), grid=(grid, 1, 1), cluster=cluster)


@pytest.mark.parametrize(
    ("facts", "cluster", "told"),
    [
        (ClusterFacts(None, None, True, True), None, r"\(.explicitcluster\); give its Launch a cluster"),
        (ClusterFacts(None, 2, False, True), (4, 1, 1), "has more than the 2 blocks of .maxclusterrank"),
    ],
)
def test_directives_are_kept(facts: ClusterFacts, cluster: Any, told: str) -> None:
    geometry = Geometry((8, 1, 1), (32, 1, 1), 0, cluster)
    with pytest.raises(PlanError, match=told):
        with_cluster(geometry, facts, "k")
    asked = replace(geometry, cluster=(2, 1, 1))
    assert with_cluster(asked, facts, "k") == asked


def test_blocks_know_their_cluster_and_clusters_their_blocks() -> None:
    geometry = Geometry((4, 6, 2), (32, 1, 1), 0, (2, 3, 1))
    blocks = [geometry.block_of(cluster, rank) for cluster in range(geometry.clusters) for rank in range(6)]
    assert sorted(blocks) == list(range(48))
    assert [geometry.cluster_of(block) for block in blocks] == [cluster for cluster in range(8) for _ in range(6)]


# Whole kernels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [2, 8])
def test_a_reduction_over_a_cluster(blocks: int) -> None:
    """Each block sums its part; the first has the sum of all, which they send there."""
    x = np.random.default_rng(0).integers(-1000, 1000, (3, blocks, 512)).astype(np.int32)
    after, _ = run_hopper(
        REDUCTION,
        {"X": x.reshape(-1), "Y": np.zeros(3, np.int32)},
        ("X", "Y"),
        grid=(blocks, 3, 1),
        block=(128, 1, 1),
        cluster=(blocks, 1, 1),
    )
    assert np.array_equal(after["Y"], x.sum(axis=(1, 2)))


@pytest.mark.parametrize(("columns", "rows"), [(2, 1), (1, 2), (2, 2), (4, 2)])
def test_tiles_are_sent_to_all_that_need_them(columns: int, rows: int) -> None:
    """A product of matrices: blocks of one row of tiles share those of A, blocks of one column those of B.

    What a multicast reads is counted once, by the line that issued it.
    """
    arrays, maps, expected = product_arguments()
    after, counts = run_hopper(
        PRODUCT,
        arrays,
        (*maps, "C"),
        grid=(MATRIX // TILE, MATRIX // TILE, 1),
        block=(TILE * TILE, 1, 1),
        cluster=(columns, rows, 1),
    )
    assert np.array_equal(after["C"], expected)
    read = {site.buffer: site for site in counts.sites if site.kind == "load"}
    tiles = (MATRIX // TILE) ** 2
    for buffer, shared_by in (("A", columns), ("B", rows)):
        assert read[buffer].requested_bytes == tiles * MATRIX * TILE * 4 // shared_by
        assert read[buffer].requests == tiles * (MATRIX // TILE) // shared_by


SENT = f"""{HELPERS}
extern "C" __global__ void k(const __grid_constant__ Map map, float* y) {{
  extern __shared__ __align__(1024) float s[]; __shared__ u64 bar; int t = threadIdx.x;
  if (t == 0) {{ init(&bar, 1); expect(&bar, 2048); }}
  ARRIVE(); WAIT();
  if (t == 0 && rank_of_block() == 2) multicast2(s + 256, &map, 32, 8, &bar, 15);
  wait_cluster(&bar, 0);
  for (int i = t; i < 512; i += 32) y[512 * blockIdx.x + i] = s[256 + i];
  ARRIVE(); WAIT();
}}"""


@pytest.mark.parametrize("swizzle", [0, 128])
def test_a_box_for_all_lies_in_each_block_as_if_it_were_its_own(swizzle: int) -> None:
    """Also where it is swizzled by its place in shared memory."""
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    box = TensorMap("X", (64, 64), (256,), (32, 16), "float32", swizzle)
    shape = {"grid": (4, 1, 1), "cluster": (4, 1, 1), "shared_bytes": 4096}
    after, counts = run_hopper(SENT, {"X": x, "Y": np.zeros((4, 512), np.float32)}, (box, "Y"), **shape)
    expected = swizzled(np.ascontiguousarray(x[8:24, 32:64]), swizzle)
    assert all(np.array_equal(block, expected) for block in after["Y"])
    (read,) = [site for site in counts.sites if site.kind == "load"]
    assert (read.requests, read.requested_bytes, read.sectors) == (1, 2048, 64)
