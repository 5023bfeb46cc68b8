"""Small kernels that show how the caches of a GPU behave: what is recorded on hardware, and replayed on the model."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20

SOURCE = r"""
// One block reads n floats again and again: what does L1 keep?
extern "C" __global__ void reread(const float* d, long long n, int rounds, float* sink) {
    float x = 0;
    for (int round = 0; round < rounds; ++round)
        for (long long i = threadIdx.x; i < n; i += blockDim.x) x += d[i];
    if (x == 12345.678f) *sink = x;
}
// One block stores n floats and loads them back, each from another warp.
extern "C" __global__ void readback(float* d, long long n, int rounds, float* sink) {
    float x = 0;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) d[i] = i;
    __syncthreads();
    for (int round = 0; round < rounds; ++round)
        for (long long i = threadIdx.x; i < n; i += blockDim.x) x += d[i ^ 32];
    if (x == 12345.678f) *sink = x;
}
// All blocks together read n floats again and again, each round from other multiprocessors: what does L2 keep?
extern "C" __global__ void sweep(const float* d, long long n, int rounds, float* sink) {
    float x = 0;
    for (int round = 0; round < rounds; ++round) {
        long long block = (blockIdx.x + 24 * round) % gridDim.x, step = (long long)gridDim.x * blockDim.x;
        for (long long i = block * blockDim.x + threadIdx.x; i < n; i += step) x += d[i];
    }
    if (x == 12345.678f) *sink = x;
}
// The same, stored: how much stays in L2 that DRAM does not have yet?
extern "C" __global__ void fill(float* d, long long n, int rounds, float* sink) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (int round = 0; round < rounds; ++round)
        for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) d[i] = round;
}
// One sector of every `rounds`: what does DRAM deliver?
extern "C" __global__ void strided(const float* d, long long n, int rounds, float* sink) {
    float x = 0;
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) x += d[8 * i * rounds];
    if (x == 12345.678f) *sink = x;
}
// One block stores n floats from the second one on, so that warps share sectors.
extern "C" __global__ void unaligned(float* d, long long n, int rounds, float* sink) {
    for (long long i = threadIdx.x; i < n; i += blockDim.x) d[i + 1] = i;
}
"""


@dataclass(frozen=True)
class Probe:
    """One launch of one of the kernels."""

    kernel: str
    elements: int
    rounds: int
    blocks: int = 1
    threads: int = 128
    shared_bytes: int = 0
    """Dynamic, only to leave less for L1."""


def probes() -> list[Probe]:
    """All that are recorded, in order."""
    found = [
        Probe("reread", kib * 256, 4, shared_bytes=shared)
        for shared, sizes in (
            (0, (64, 128, 192, 240, 256)),
            (49_000, (32, 48, 64, 96)),
            (200_000, (16, 20, 24, 28, 32, 48)),
        )
        for kib in sizes
    ]
    found += [Probe("readback", kib * 256, 1) for kib in (4, 64)]
    found += [Probe("sweep", mib * MIB // 4, 3, blocks=132, threads=1024) for mib in (16, 28, 32, 36, 40, 44, 48, 56)]
    found += [Probe("fill", mib * MIB // 4, 1, blocks=132, threads=1024) for mib in (16, 32, 64)]
    found += [Probe("strided", 1 << 16, every, blocks=132, threads=1024) for every in (1, 2, 3, 4)]
    found += [Probe("unaligned", 8192, 1, threads=threads) for threads in (32, 128)]
    return found
