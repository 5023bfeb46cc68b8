"""The order of warps and blocks: seeded, and without influence on a correct kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.cuda_kernel import cuda_source, run

REVERSE = """
extern "C" __global__ void k(const float* a, float* b) {
    __shared__ float s[256];
    int t = threadIdx.x, i = blockIdx.x * 256 + t;
    for (int round = 0; round < 5; ++round) {
        s[t] = a[i] + round;
        __syncthreads();
        float x = s[255 - t];
        __syncthreads();
        b[i] = x;
    }
}
"""
A = {"A": np.random.default_rng(1).standard_normal(256 * 50).astype(np.float32), "B": np.zeros(256 * 50, np.float32)}


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("seed", [0, 1, 99])
def test_same_bits_and_counts_for_every_schedule(threads: int, seed: int) -> None:
    after, counts = run(REVERSE, A, ("A", "B"), grid=(50, 1, 1), block=(256, 1, 1), threads=threads, seed=seed)
    expected = (A["A"] + 4).reshape(50, 256)[:, ::-1].reshape(-1)
    assert np.array_equal(after["B"], expected.astype(np.float32))
    _, once = run(REVERSE, A, ("A", "B"), grid=(50, 1, 1), block=(256, 1, 1))
    assert counts.sites == once.sites
    assert counts.lane_instructions == once.lane_instructions


RACE = """
extern "C" __global__ void k(float* b) {
    __shared__ float s;
    s = (float)(threadIdx.x / 32);
    b[threadIdx.x] = s;
    __syncthreads();
    if (threadIdx.x == 0) b[0] = s;
}
"""


def test_a_seed_changes_the_order_in_which_warps_run_and_can_be_replayed() -> None:
    def last_writer(seed: int) -> float:
        after, _ = run(RACE, {"B": np.zeros(256, np.float32)}, ("B",), block=(256, 1, 1), seed=seed)
        return float(after["B"][0])

    assert last_writer(0) == 7
    found = [last_writer(seed) for seed in range(1, 12)]
    assert len(set(found)) > 1
    assert found == [last_writer(seed) for seed in range(1, 12)]


def test_float_atomics_across_blocks_do_not_depend_on_the_cores() -> None:
    source = cuda_source("const float* a, float* b", "atomicAdd(b, a[blockIdx.x * 32 + threadIdx.x]);")
    arrays = {"A": A["A"], "B": np.zeros(1, np.float32)}
    totals = {run(source, arrays, ("A", "B"), grid=(400, 1, 1), threads=n)[0]["B"].tobytes() for n in (1, 2, 4)}
    assert len(totals) == 1
    assert np.isclose(np.frombuffer(totals.pop(), np.float32)[0], A["A"][:12800].sum(dtype=np.float64), rtol=1e-4)


def test_a_block_starts_with_hostile_memory() -> None:
    source = """
extern "C" __global__ void k(float* b) {
    __shared__ volatile float s[32];
    b[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
    s[threadIdx.x] = 1.f;
}
"""
    after, _ = run(source, {"B": np.zeros(96, np.float32)}, ("B",), grid=(3, 1, 1))
    assert np.isnan(after["B"]).all()


def test_numba_shared_arrays_made_on_one_line_are_two() -> None:
    import numba
    from numba import cuda

    def make():  # type: ignore[no-untyped-def]
        @cuda.jit
        def k(b):  # type: ignore[no-untyped-def]
            s, t = cuda.shared.array(32, numba.float32), cuda.shared.array(32, numba.float32)
            i = cuda.threadIdx.x
            s[i] = numba.float32(1.0)
            t[i] = numba.float32(2.0)
            cuda.syncthreads()
            b[i] = s[31 - i] + numba.float32(10.0) * t[31 - i]

        return k

    after, _ = run(make(), {"B": np.zeros(32, np.float32)}, ("B",))
    assert (after["B"] == 21).all()


SPIN = """
extern "C" __global__ void k(volatile float* b) {
    __shared__ volatile int ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        while (!ready) {}
        b[threadIdx.x] = 5.f;
    } else {
        b[threadIdx.x] = 3.f;
        ready = 1;
    }
}
"""


def test_a_warp_that_waits_for_another_in_a_loop_gets_its_answer() -> None:
    after, _ = run(SPIN, {"B": np.zeros(64, np.float32)}, ("B",), block=(64, 1, 1))
    assert (after["B"][:32] == 5).all() and (after["B"][32:] == 3).all()
