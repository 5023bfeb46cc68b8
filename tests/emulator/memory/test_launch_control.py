"""Cluster launch control: which clusters start and which are cancelled, what a response has, what is undefined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.emulator.launch.launch_control import LaunchQueues
from harness.model.plan import BlockSample
from harness.support.errors import KernelFault
from tests.emulator.cuda_kernel import run
from tests.emulator.launch_control_kernels import PERSISTENT, SINGLE
from tests.emulator.sanitized_kernel import find
from tests.emulator.tcgen05.blackwell_kernel import run_blackwell
from tests.emulator.trace_recorder import Recorder

Launched = tuple[np.ndarray, np.ndarray, Any]


def persist(tiles: int, blocks: int = 1, resident: int = 5, **launch: Any) -> Launched:
    """How often each tile was worked on, by which block, and the counts. `resident` clusters have `blocks` each."""
    arrays = {"x": np.ones(tiles, np.int32), "times": np.zeros(tiles, np.int32), "worker": np.full(tiles, -1, np.int32)}
    cluster = None if blocks == 1 else (blocks, 1, 1)
    launch |= {"grid": (tiles, 1, 1), "cluster": cluster, "resident": lambda: resident}
    after, counts = run_blackwell(PERSISTENT, arrays, ("x", "times", "worker"), **launch)
    return after["times"], after["worker"], counts


def traffic(counts: Any) -> list[tuple[str, str, int, int]]:
    return sorted((site.buffer, site.kind, site.requests, site.sectors) for site in counts.sites)


@pytest.mark.parametrize("blocks", [1, 2])
def test_every_tile_is_worked_on_once(blocks: int) -> None:
    """For grids of up to 200 blocks, more and fewer places, and several cores; bytes depend on the tiles alone."""
    for tiles in range(blocks, 201, blocks):
        resident, cores, seed = 1 + tiles % 7, 1 + tiles % 3, tiles % 4
        times, worker, counts = persist(tiles, blocks, resident, threads=cores, seed=seed)
        assert np.array_equal(times, np.ones(tiles)), (tiles, resident, cores, seed)
        assert np.array_equal(worker % blocks, np.arange(tiles) % blocks)
        requests = {(buffer, kind): number for buffer, kind, number, _ in traffic(counts)}
        wanted = (("times", "load"), ("times", "store"), ("worker", "store"), ("x", "load"))
        assert requests == dict.fromkeys(wanted, tiles)


@pytest.mark.parametrize("seed", [0, 3])
def test_nothing_depends_on_the_number_of_cores(seed: int) -> None:
    (_, worker, counts), *others = (persist(90, 2, 6, threads=cores, seed=seed) for cores in (1, 2, 4))
    for _, other, more in others:
        assert np.array_equal(worker, other)
        assert (traffic(counts), counts.warp_instructions) == (traffic(more), more.warp_instructions)


def test_as_many_clusters_start_as_are_resident_and_the_others_are_dealt_out() -> None:
    _, worker, _ = persist(23, resident=5)
    assert np.array_equal(worker, np.arange(23) % 5)
    _, worker, _ = persist(4, resident=5)
    assert np.array_equal(worker, np.arange(4))


def test_a_seed_varies_what_starts_and_refuses_some_requests() -> None:
    """A cluster behind a refusal starts itself, in a place that another one has left."""
    found = [persist(120, resident=12, seed=seed)[1] for seed in range(1, 9)]
    first = [int(np.argmax(worker != np.arange(120))) for worker in found]
    assert len(set(first)) > 3 and max(first) <= 12
    late = [np.flatnonzero(worker == np.arange(120))[start:] for worker, start in zip(found, first)]
    assert sum(map(len, late)) > 8
    assert any(not np.array_equal(worker[start:], np.arange(start, 120) % start) for worker, start in zip(found, first))


@pytest.mark.parametrize(("clusters", "resident", "seed"), [(1, 1, 0), (1, 9, 2), (50, 7, 0), (50, 7, 1), (64, 1, 5)])
def test_each_cluster_is_in_one_queue_in_ascending_order(clusters: int, resident: int, seed: int) -> None:
    queues = LaunchQueues.of(clusters, resident, seed)
    assert 1 <= queues.started <= min(clusters, resident)
    seen = []
    for number in range(queues.started):
        while number >= 0:
            seen.append(number)
            following = int(queues.rows[number, 0])
            assert following < 0 or following > number
            number = following
    assert sorted(seen) == list(range(clusters))


OF_HEADERS = """
#include <cuda/ptx>
namespace ptx = cuda::ptx;
extern "C" __global__ void k(int* times) {
  __shared__ uint4 response; __shared__ unsigned long long bar;
  if (threadIdx.x == 0) ptx::mbarrier_init(&bar, 1);
  for (int tile = blockIdx.x, parity = 0;; parity ^= 1) {
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::fence_proxy_async_generic_sync_restrict(ptx::sem_acquire, ptx::space_cluster, ptx::scope_cluster);
      ptx::mbarrier_arrive_expect_tx(ptx::sem_relaxed, ptx::scope_cta, ptx::space_shared, &bar, sizeof response);
      ptx::clusterlaunchcontrol_try_cancel(&response, &bar);
      times[tile] += 1;
    }
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cta, &bar, parity)) {}
    if (!ptx::clusterlaunchcontrol_query_cancel_is_canceled(response)) break;
    tile = ptx::clusterlaunchcontrol_query_cancel_get_first_ctaid_x<int>(response);
    ptx::fence_proxy_async_generic_sync_restrict(ptx::sem_release, ptx::space_shared, ptx::scope_cluster);
  }
}
"""


@pytest.mark.thorough
def test_the_functions_of_cuda_s_headers() -> None:
    """They pack the response, loaded as uint4, into a register of 128 bits."""
    import cupy

    kernel = cupy.RawKernel(OF_HEADERS, "k", options=("-arch=sm_100a", "-std=c++17"))
    arrays: dict[str, np.ndarray] = {"times": np.zeros(50, np.int32)}
    launch: dict[str, Any] = {"grid": (50, 1, 1), "block": (64, 1, 1), "resident": lambda: 7, "arch": "sm_100"}
    assert np.array_equal(run(kernel, arrays, ("times",), **launch)[0]["times"], np.ones(50))
    assert find(kernel, arrays, ("times",), seed=1, shuffle=True, **launch) == ()


# What does not end in order ---------------------------------------------------

LEAVES = """
  if (t == 0) y[b] = 1;
  if (b % 3 == 0) {
    if (t == 0) { expect(bars, 16); try_cancel(responses, bars); }
    wait(bars, 0);
    Answer a = read(responses);
    if (a.is && t == 0) y[a.x] = 2 + b;
  }
"""


def single(body: str, grid: int | tuple[int, int, int] = 1, resident: int = 2, **launch: Any) -> np.ndarray:
    """What statements leave in `y`, which has 64 numbers. `resident` clusters start."""
    launch |= {"grid": (grid, 1, 1) if isinstance(grid, int) else grid, "resident": lambda: resident}
    source = SINGLE.replace("BODY", body.strip("\n"))
    return run_blackwell(source, {"y": np.zeros(64, np.int32)}, ("y",), **launch)[0]["y"]


@pytest.mark.parametrize("cores", [1, 2])
def test_what_is_not_cancelled_starts(cores: int) -> None:
    """Two places: in that of block 0, it cancels 2, so that 4 follows, then 6, which cancels 8, and so on."""
    found = single(LEAVES, grid=12, threads=cores)
    expected = np.ones(12)
    expected[2], expected[8] = 2 + 0, 2 + 6
    expected[5], expected[11] = 2 + 3, 2 + 9
    assert np.array_equal(found[:12], expected)


ORDERED = """
  if (t == 0) y[b] = atomicAdd(y + 63, 1);
  if (t == 0) { expect(bars, 16); try_cancel(responses, bars); }
  wait(bars, 0);
  Answer a = read(responses);
  if (a.is && t == 0) y[a.x] = atomicAdd(y + 63, 1);
"""


def test_blocks_that_communicate_have_queues_too() -> None:
    """They run in turns on one core. Each cancels one; of twelve, those behind these start."""
    found = single(ORDERED, grid=12, threads=2)
    assert found[63] == 12
    assert sorted(found[:12]) == list(range(12))


WAITS = """
  u32 tile = b;
  for (u32 parity = 0;; parity ^= 1) {
    if (t == 0) { expect(bars, 16); try_cancel(responses, bars); }
    if (t == 0) {
      while (tile && !*(volatile int*)(y + tile - 1));
      __threadfence();
      *(volatile int*)(y + tile) = 1 + b;
    }
    wait(bars, parity);
    Answer a = read(responses);
    if (!a.is) break;
    tile = a.x;
    __syncthreads();
  }
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tiles_may_wait_for_earlier_ones(seed: int) -> None:
    """Each queue ascends, so that the first tile that is not done is always under way."""
    found = single(WAITS, grid=40, resident=6, seed=seed)
    assert (found[:40] > 0).all()
    assert seed or np.array_equal(found[:40], 1 + np.arange(40) % 6)


def test_the_fault_of_the_first_block_is_reported_for_any_number_of_cores() -> None:
    """Block 1 cancels 5, and faults there; 0 and 3 end before."""
    body = LEAVES.replace("b % 3 == 0", "1").replace("y[a.x] = 2 + b;", "y[a.x == 5 || b > 5 ? 1 << 20 : a.x] = 2 + b;")
    messages = set()
    for cores in (1, 2, 4):
        with pytest.raises(KernelFault) as caught:
            single(body, grid=12, resident=4, threads=cores)
        messages.add(str(caught.value))
    (message,) = messages
    assert "planted.cu:10" in message and "block (1, 0, 0)" in message


@pytest.mark.parametrize("seed", [0, 2])
def test_of_a_sample_only_chosen_clusters_start_and_are_cancelled(seed: int) -> None:
    """The second and the last of five entries of six blocks each, in clusters of two."""
    times, worker, _ = persist(30, 2, 2, sample=BlockSample(0, 6, (1, 4)), seed=seed)
    chosen = [*range(6, 12), *range(24, 30)]
    assert np.flatnonzero(times).tolist() == chosen and times.max() == 1
    assert set(worker.tolist()) <= {-1, *chosen}
    assert seed or worker[chosen].tolist() == [6, 7, 8, 9] * 3


def test_the_cache_model_receives_each_block_once() -> None:
    recorder = Recorder()
    _, worker, _ = persist(11, resident=3, listener=recorder)
    assert sorted(recorder.blocks) == list(range(11))
    assert [block for block, accesses in sorted(recorder.blocks.items()) if accesses] == sorted(set(worker.tolist()))
    late = Recorder()
    single(LEAVES, grid=12, listener=late)
    assert sorted(late.blocks) == list(range(12))
    assert [block for block, accesses in sorted(late.blocks.items()) if not accesses] == [2, 5, 8, 11]


# Responses ---------------------------------------------------

PLACES = """
  u32 x, y_, z;
  if (t == 0) { expect(bars, 16); try_cancel(responses, bars); }
  wait(bars, 0);
  Answer a = read(responses);
  if (!a.is) return;
  asm volatile("{\\n.reg .b128 h;\\nmov.b128 h, {%3, %4};\\n"
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %0, h;\\n"
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %1, h;\\n"
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %2, h;\\n}"
    : "=r"(x), "=r"(y_), "=r"(z) : "l"(responses[0].words[0]), "l"(responses[0].words[1]));
  if (t == 0 && x == a.x && y_ == a.y && z == a.z) {
    u32 rank = rank_in_cluster();
    int mine = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    y[mine] = 1 + x + 4 * y_ + 16 * z + 100 * rank;
  }
"""


def test_a_response_has_the_place_of_the_first_block() -> None:
    """In three dimensions, with clusters of 2 x 1 x 2 blocks, each of whose blocks requests one."""
    found = single(PLACES, grid=(4, 3, 4), cluster=(2, 1, 2), resident=1)
    firsts = [(x, y, z) for z in (0, 2) for y in range(3) for x in (0, 2)]
    starts = {firsts[0]: 1, firsts[5]: 6, firsts[10]: 11}
    expected = np.zeros((4, 3, 4), np.int32)
    for (x, y, z), following in starts.items():
        for rank, (inner, deep) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
            if following + rank < len(firsts):
                a, b, c = firsts[following + rank]
                expected[z + deep, y, x + inner] = 1 + a + 4 * b + 16 * c + 100 * rank
    assert np.array_equal(found[:48].reshape(4, 3, 4), expected)


def test_a_response_arrives_with_the_wait_for_its_bytes() -> None:
    """Until then its place holds what fresh memory does. It counts as 16 bytes."""
    body = """
      if (t == 0) {
        responses[1].words[0] = responses[1].words[1] = 5;
        expect(bars, 24); try_cancel(responses + 1, bars);
        u64 a = responses[1].words[0], b = responses[1].words[1];
        y[0] = a == ~0ull && b == ~0ull;
        y[1] = look(bars, 0);
        y[2] = responses[1].words[0] == 1 && read(responses + 1).is == 1;
        asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 8;" ::"r"(place_of(bars)) : "memory");
        y[3] = look(bars, 0);
      }
    """
    assert single(body, grid=2, resident=1)[:4].tolist() == [1, 0, 1, 1]


TOGETHER = """
  u32 rank = rank_in_cluster();
  if (t == 0) expect(bars, 16);
  if (t == 0 && rank == 1) { MULTICAST }
  wait(bars, 0);
  Answer a = read(responses);
  if (t == 0) y[b] = a.is ? 1 + a.x : -1;
  MEET();
"""
TO_ALL = "try_cancel_for_all(responses, bars);"


def test_a_multicast_answers_all_blocks_of_the_cluster() -> None:
    """Of four clusters of four blocks, the first cancels the second; the third cancels the last."""
    found = single(TOGETHER.replace("MULTICAST", TO_ALL), grid=16, cluster=(4, 1, 1), resident=1)
    assert found[:16].tolist() == [5] * 4 + [0] * 4 + [13] * 4 + [0] * 4


# What is undefined ---------------------------------------------------


def fault(body: str, **launch: Any) -> KernelFault:
    with pytest.raises(KernelFault) as caught:
        single(body, **launch)
    return caught.value


ASK = "if (t == 0) { expect(bars + I, 16); try_cancel(responses + I, bars + I); }\n"
ASK_TWICE = ASK.replace("I", "0") + ASK.replace("I", "1")


def test_a_request_after_a_refusal_is_a_fault() -> None:
    """Once a warp has waited for the response. Requests before are refused, too."""
    both = "wait(bars, 0); wait(bars + 1, 0); if (t == 0) y[0] = 1 + read(responses).is + read(responses + 1).is;"
    assert single(ASK_TWICE + both)[0] == 1
    assert single(ASK_TWICE + both, grid=2, resident=1)[0] == 2
    found = fault(ASK.replace("I", "0") + "wait(bars, 0);\n" + ASK.replace("I", "1"))
    assert found.kind == "request after refusal"
    assert "planted.cu:7" in str(found) and "after this block has observed that one was refused" in str(found)


def test_another_block_of_the_cluster_may_still_request() -> None:
    """Only a block that has seen the refusal may not."""
    body = """
      u32 rank = rank_in_cluster();
      if (rank == 0) { if (t == 0) { expect(bars, 16); try_cancel(responses, bars); } wait(bars, 0); }
      MEET();
      if (rank == WHICH) { if (t == 0) { expect(bars + 1, 16); try_cancel(responses, bars + 1); } wait(bars + 1, 0); }
      if (t == 0) y[b] = 1;
    """
    assert single(body.replace("WHICH", "1"), grid=2, cluster=(2, 1, 1))[:2].tolist() == [1, 1]
    assert fault(body.replace("WHICH", "0"), grid=2, cluster=(2, 1, 1)).kind == "request after refusal"


def test_the_first_block_of_a_refusal_is_undefined() -> None:
    body = ASK.replace("I", "0") + "wait(bars, 0); y[t] = first_x(responses);"
    assert single(body, grid=2, resident=1)[:32].tolist() == [1] * 32
    assert single(body)[:32].tolist() == [-1] * 32


def test_what_is_no_response_is_a_fault() -> None:
    """Fresh memory, zeros, and a response that is under way."""
    for before in ("", "responses[0].words[0] = responses[0].words[1] = 0;", ASK.replace("I", "0")):
        found = fault(before + "\n__syncwarp(); y[t] = read(responses).is;", grid=4)
        assert found.kind == "no response" and "wait for the mbarrier" in str(found)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("try_cancel((Response*)((char*)responses + 8), bars);", "misaligned response of 16 bytes"),
        ("try_cancel(responses, (u64*)responses);", "there is no mbarrier"),
        ("try_cancel((Response*)0x30000, bars);", "out-of-bounds response of 16 bytes"),
    ],
)
def test_strays_are_faults(request_: str, message: str) -> None:
    assert message in str(fault(f"if (t == 0) {{ {request_} }}"))


def test_a_multicast_to_a_block_that_has_ended_is_a_fault() -> None:
    body = "if (rank_in_cluster() == 0) return; if (t == 0) for (int i = 0; i < 999; ++i) __nanosleep(9);" + TOGETHER
    found = fault(body.replace("MULTICAST", TO_ALL), grid=2, cluster=(2, 1, 1))
    assert found.kind == "ended block", str(found)


def test_bytes_that_nobody_requests_are_waited_for() -> None:
    message = str(fault("if (t == 0) expect(bars, 16); wait(bars, 0);"))
    assert "16 bytes" in message
