"""What an H100 accepts and the emulator by default does not: notes of a lenient device."""

from __future__ import annotations

import cupy
import numpy as np
import pytest

from harness import Device, KernelFault

pytestmark = pytest.mark.compiles

READS = r"""
extern "C" __global__ void reads(int* y, int first) {
    extern __shared__ int values[];
    values[threadIdx.x] = threadIdx.x;
    __syncthreads();
    int value = values[threadIdx.x + first];
    y[threadIdx.x] = threadIdx.x + first < 32 ? value : -2;
}
"""
ARRIVES = r"""
#include <cooperative_groups.h>
extern "C" __global__ void __cluster_dims__(2) arrives(int* done) {
    __shared__ unsigned long long bar;
    unsigned own = (unsigned)__cvta_generic_to_shared(&bar), other, rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (rank == 0) return;
    while (*(volatile int*)done == 0) {
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(other) : "r"(own));
        for (int i = 0; i < 100; ++i) __nanosleep(10);
        *done = 1;
    }
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(other) : "memory");
}
"""


def test_a_load_beyond_shared_memory_is_noted() -> None:
    kernel = cupy.RawKernel(READS, "reads")
    device = Device(lenient=True)
    y = device.empty(32, np.int32)
    result = device.launch(kernel, 1, 32, (y, np.int32(8)), shared_bytes=128)
    assert y.numpy().tolist() == [*range(8, 32), *[-2] * 8]
    (note,) = result.report.notes
    assert "'ld.shared.u32' reads beyond shared memory" in note
    assert not device.launch(kernel, 1, 32, (y, np.int32(0)), shared_bytes=128).report.notes
    odd = READS.replace("values[threadIdx.x + first]", "*(int*)((char*)values + 130)")
    with pytest.raises(KernelFault, match="at offset 130"):
        device.launch(cupy.RawKernel(odd, "reads"), 1, 32, (y, np.int32(0)), shared_bytes=128)
    for strict in (Device(), Device(lenient=True, sanitize=True)):
        with pytest.raises(KernelFault, match="out of bounds load of 4 bytes at offset 128"):
            strict.launch(kernel, 1, 32, (strict.empty(32, np.int32), np.int32(8)), shared_bytes=128)


def test_an_arrival_at_an_mbarrier_of_an_ended_block_is_noted() -> None:
    kernel = cupy.RawKernel(ARRIVES, "arrives", options=("-arch=sm_90a",))
    device = Device(lenient=True)
    result = device.launch(kernel, 2, 1, (device.zeros(1, np.int32),))
    (note,) = result.report.notes
    assert "arrives at an mbarrier of a block that has ended" in note
    with pytest.raises(KernelFault) as caught:
        launch_strictly(kernel)
    assert caught.value.kind == "ended block"


def launch_strictly(kernel: cupy.RawKernel) -> None:
    device = Device()
    device.launch(kernel, 2, 1, (device.zeros(1, np.int32),))
