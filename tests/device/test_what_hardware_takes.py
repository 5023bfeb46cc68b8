"""What hardware or ptxas takes although its documentation does not; some of it only a lenient device, with a note."""

from __future__ import annotations

import cupy
import numpy as np
import pytest

from harness import Device, KernelFault

pytestmark = pytest.mark.compiles

BEGIN = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 values)
{
    .reg .pred %p;
    .reg .b8 %c, %d;
    .reg .b16 %h<3>;
    .reg .b32 %r<4>;
    .reg .b64 %a;
    ld.param.u64 %a, [values];
    mov.u32 %r0, %tid.x;
    mad.wide.u32 %a, %r0, 4, %a;
"""


def run(body: str, **options: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    device = Device(**options)
    x = device.array(np.arange(32, dtype=np.uint32))
    result = device.launch(device.module(f"{BEGIN}{body}\n    ret;\n}}\n")["k"], 1, 32, (x,))
    return x.numpy(), result.report.notes


def findings(body: str) -> list[str]:
    """Kinds of the sanitizer's findings on a lenient device."""
    device = Device(lenient=True, sanitize=True)
    x = device.array(np.arange(32, dtype=np.uint32))
    result = device.launch(device.module(f"{BEGIN}{body}\n    ret;\n}}\n")["k"], 1, 32, (x,))
    return [finding.kind for finding in result.findings]


def test_a_register_of_8_bits_keeps_the_next_one_aligned() -> None:
    body = """
    setp.gt.u32 %p, %r0, 99;
    ld.global.u32 %r1, [%a];
    cvt.u8.u32 %c, %r1;
    @%p bra THERE;
    add.u32 %r2, %r1, 1;
    cvt.u32.u8 %r3, %c;
    add.u32 %r2, %r2, %r3;
THERE:
    cvt.u32.u8 %r3, %c;
    add.u32 %r2, %r2, %r3;
    st.global.u32 [%a], %r2;"""
    np.testing.assert_array_equal(run(body)[0], 3 * np.arange(32) + 1)


def test_fences_take_order_and_scope_either_way() -> None:
    for fence in ("fence.sc.gpu", "fence.gpu.sc", "fence.sys.acq_rel"):
        run(f"    {fence};")


DIVERGENT = """
    setp.ge.u32 %p, %r0, 2;
    @%p bra LATER;
    bar.warp.sync 0xffffffff;
    st.global.u32 [%a], 7;
LATER:
    @%p st.global.u32 [%a], 9;"""


def test_a_lenient_device_passes_a_barrier_that_names_lanes_on_another_path() -> None:
    with pytest.raises(KernelFault, match="lanes 2-31 of warp 0, which are on another path"):
        run(DIVERGENT)
    values, notes = run(DIVERGENT, lenient=True)
    assert values.tolist() == [7] * 2 + [9] * 30
    assert len(notes) == 1 and "'bar.warp.sync' names lanes that are on another path" in notes[0]


RETURNED = """
    setp.ge.u32 %p, %r0, 20;
    @%p ret;
    barrier.sync 0;
    st.global.u32 [%a], 7;"""


def test_a_lenient_device_passes_a_barrier_of_the_block_after_lanes_have_returned() -> None:
    with pytest.raises(KernelFault, match="barrier in divergent code: lanes 20-31 of warp 0"):
        run(RETURNED)
    values, notes = run(RETURNED, lenient=True)
    assert values.tolist() == [7] * 20 + list(range(20, 32))
    assert len(notes) == 1 and "'barrier.sync' names lanes that are on another path or have returned" in notes[0]
    assert findings(RETURNED) == ["divergent barrier"]


def test_a_lenient_device_faults_where_lanes_skip_a_barrier_of_the_block() -> None:
    skipped = RETURNED.replace("@%p ret", "@%p bra ON") + "\nON:\n    st.global.u32 [%a], 9;"
    with pytest.raises(KernelFault, match="barrier in divergent code: lanes 20-31 of warp 0"):
        run(skipped, lenient=True)


WARPS_RETURN = r"""
extern "C" __global__ void k(int* x, int first, int last) {
    int warp = threadIdx.x / 32;
    if (warp == first) return;
    int seen = __syncthreads_count(1);
    if (warp == last) return;
    __syncthreads();
    x[threadIdx.x] = seen;
}
"""


@pytest.mark.parametrize(("first", "last"), [(0, 3), (3, 0), (1, 2)])
def test_a_lenient_device_passes_a_barrier_of_the_block_after_whole_warps_have_returned(first: int, last: int) -> None:
    kernel, args = cupy.RawKernel(WARPS_RETURN, "k"), (np.int32(first), np.int32(last))
    device = Device()
    with pytest.raises(KernelFault, match=f"barrier deadlock: .*warp {first} has exited"):
        device.launch(kernel, 1, 128, (device.zeros(128, np.int32), *args))
    for sanitize in (False, True):
        device = Device(lenient=True, sanitize=sanitize)
        x = device.zeros(128, np.int32)
        result = device.launch(kernel, 1, 128, (x, *args))
        expected = [0 if warp in (first, last) else 96 for warp in range(4)]
        assert x.numpy().reshape(4, 32).max(axis=1).tolist() == expected
        assert len(result.report.notes) == 1 and "have returned" in result.report.notes[0]
        assert [finding.kind for finding in result.findings or ()] == ["divergent barrier"] * sanitize


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
    with pytest.raises(KernelFault, match="at byte offset 130"):
        device.launch(cupy.RawKernel(odd, "reads"), 1, 32, (y, np.int32(0)), shared_bytes=128)
    for strict in (Device(), Device(lenient=True, sanitize=True)):
        with pytest.raises(KernelFault, match="out-of-bounds load of 4 bytes at byte offset 128"):
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
