"""Wavefronts of shared memory, against hand-counted patterns."""

from __future__ import annotations

import numpy as np
import pytest
from counted_bodies import INPUTS, PROBLEM, counted, plan

from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import Instruments
from harness.execution.traffic.counts import SharedTraffic
from harness.model.plan import Launch, Plan


def only(found: tuple[SharedTraffic, ...] | None) -> tuple[int, int, int, int]:
    assert found is not None
    (row,) = found
    return row.requests, row.requested_bytes, row.wavefronts, row.ideal_wavefronts


# The compiler may not drop or merge what is volatile. Per warp: requests, bytes, wavefronts, the fewest possible.
LOADS = {
    "stride 1": ("o[i] = ((volatile float*)t)[i];", (1, 128, 1, 1)),
    "stride 2": ("o[i] = ((volatile float*)t)[2 * i];", (1, 128, 2, 1)),
    "stride 3": ("o[i] = ((volatile float*)t)[3 * i];", (1, 128, 1, 1)),
    "stride 4": ("o[i] = ((volatile float*)t)[4 * i];", (1, 128, 4, 1)),
    "stride 32": ("o[i] = ((volatile float*)t)[32 * i];", (1, 128, 32, 1)),
    "column of an unpadded tile, two rows": ("o[i] = ((volatile float*)t)[32 * (i / 2)];", (1, 128, 16, 1)),
    "column of a padded tile": ("o[i] = ((volatile float*)t)[33 * i];", (1, 128, 1, 1)),
    "tile of 64 floats per row": ("o[i] = ((volatile float*)t)[64 * i];", (1, 128, 32, 1)),
    "tile of 65 floats per row": ("o[i] = ((volatile float*)t)[65 * i];", (1, 128, 1, 1)),
    "broadcast": ("o[i] = ((volatile float*)t)[7];", (1, 128, 1, 1)),
    "two words, one bank": ("o[i] = ((volatile float*)t)[32 * (i % 2)];", (1, 128, 2, 1)),
    "two words, two banks": ("o[i] = ((volatile float*)t)[i % 2];", (1, 128, 1, 1)),
    "backwards": ("o[i] = ((volatile float*)t)[31 - i];", (1, 128, 1, 1)),
    "five lanes": ("if (i < 5) o[i] = ((volatile float*)t)[32 * i];", (1, 20, 5, 1)),
    "bytes": ("o[i] = ((volatile unsigned char*)t)[i];", (1, 32, 1, 1)),
    "halves, two to a word": ("o[i] = ((volatile unsigned short*)t)[i];", (1, 64, 1, 1)),
    "halves, stride 64": ("o[i] = ((volatile unsigned short*)t)[64 * i];", (1, 64, 32, 1)),
    "half2": ("((unsigned*)o)[i] = ((volatile unsigned*)t)[i];", (1, 128, 1, 1)),
    # 8 bytes: half warps, each of which reads 16 x 8 = 128 bytes at once.
    "double": ("((double*)o)[i] = ((volatile double*)t)[i];", (1, 256, 2, 2)),
    "double, stride 2": ("((double*)o)[i] = ((volatile double*)t)[2 * i];", (1, 256, 4, 2)),
    "double, one half warp": ("if (i < 16) ((double*)o)[i] = ((volatile double*)t)[i];", (1, 128, 1, 1)),
    # 16 bytes: quarter warps of eight lanes.
    "float4": ("((float4*)o)[i] = ((float4*)t)[(i + (int)q[0]) & 31];", (1, 512, 4, 4)),
    "float4, stride 2": ("((float4*)o)[i] = ((float4*)t)[2 * ((i + (int)q[0]) & 31)];", (1, 512, 8, 4)),
    "float4, padded rows of 17 x 4": ("((float4*)o)[i] = ((float4*)t)[17 * ((i + (int)q[0]) & 31)];", (1, 512, 4, 4)),
    "float4, unpadded rows": ("((float4*)o)[i] = ((float4*)t)[16 * ((i + (int)q[0]) & 31)];", (1, 512, 32, 4)),
    # Neighbours agree, n with n ^ 1 or n with n ^ 2: groups are twice as large.
    "double, broadcast": ("((double*)o)[i] = ((volatile double*)t)[5];", (1, 256, 1, 1)),
    "double, one per pair": ("((double*)o)[i] = ((volatile double*)t)[i / 2];", (1, 256, 1, 1)),
    "float4, broadcast": ("((float4*)o)[i] = ((float4*)t)[(int)q[0]];", (1, 512, 2, 2)),
    "float4, one per pair": ("((float4*)o)[i] = ((float4*)t)[(i + (int)q[0]) / 2];", (1, 512, 2, 2)),
    "float4, two per four": ("((float4*)o)[i] = ((float4*)t)[(i & 1) + (int)q[0]];", (1, 512, 2, 2)),
    "float4, eight rows of 16 x 4": ("((float4*)o)[i] = ((float4*)t)[16 * (i / 4 + (int)q[0])];", (1, 512, 8, 2)),
    "float4, eight lanes apart": ("((float4*)o)[i] = ((float4*)t)[(i & 7) + (int)q[0]];", (1, 512, 4, 4)),
    "float4, three lanes of one pair and one": (
        "if (i < 3) ((float4*)o)[i] = ((float4*)t)[i / 2 + (int)q[0]];", (1, 48, 1, 1)
    ),
}  # fmt: skip
STORES = {
    "stride 1": ("((volatile float*)t)[i] = q[i];", (1, 128, 1, 1)),
    "stride 2": ("((volatile float*)t)[2 * i] = q[i];", (1, 128, 2, 1)),
    "stride 32": ("((volatile float*)t)[32 * i] = q[i];", (1, 128, 32, 1)),
    "padded column": ("((volatile float*)t)[33 * i] = q[i];", (1, 128, 1, 1)),
    "double, stride 2": ("((volatile double*)t)[2 * i] = ((const double*)q)[i];", (1, 256, 4, 2)),
    # A store has no registers to fill: neighbours that agree change nothing.
    "double, broadcast": ("((volatile double*)t)[5] = ((const double*)q)[i];", (1, 256, 2, 2)),
}


@pytest.mark.parametrize("pattern", LOADS)
def test_loads(pattern: str) -> None:
    body, expected = LOADS[pattern]
    found = counted(body)
    assert only(found) == expected
    assert found is not None and (found[0].kind, found[0].line) == ("load", 3)


@pytest.mark.parametrize("pattern", STORES)
def test_stores(pattern: str) -> None:
    body, expected = STORES[pattern]
    found = counted(body)
    assert only(found) == expected
    assert found is not None and found[0].kind == "store"


def test_every_warp_and_iteration_counts_on_its_own_line() -> None:
    body = "volatile float* s = t;\nfor (int j = 0; j < 3; ++j) {\ns[i + j] = q[i];\no[i] = s[2 * i];\n}"
    found = counted(body, threads=64)
    assert found is not None
    rows = {row.kind: (row.line, row.requests, row.wavefronts, row.ideal_wavefronts) for row in found}
    assert rows == {"store": (5, 6, 6, 6), "load": (6, 6, 12, 6)}


def test_an_access_through_a_generic_address_counts_where_it_is_shared() -> None:
    body = "volatile float* p = i < 8 ? (volatile float*)o + 64 : (volatile float*)t; o[i] = p[32 * i];"
    found = counted(body)
    assert only(found) == (1, 24 * 4, 24, 1)


def test_numba_counts_as_cuda_does() -> None:
    from numba import cuda, float32

    @cuda.jit
    def column(q, o):  # type: ignore[no-untyped-def]
        t = cuda.shared.array((32, 32), float32)
        i = cuda.threadIdx.x
        t[i, 0] = q[0, 0, 0, i]
        cuda.syncthreads()
        o[0, 0, 0, i] = t[0, 31 - i]

    executor = EmulatorExecutor(instruments=Instruments(bank_conflicts=True))
    found = executor.run(PROBLEM, plan(column, 32), INPUTS).launches[0].shared
    assert found is not None
    rows = {row.kind: (row.file, row.requests, row.wavefronts) for row in found}
    assert rows == {"store": (__file__, 1, 32), "load": (__file__, 1, 1)}


def test_nothing_is_counted_unless_asked_for() -> None:
    body, _ = LOADS["stride 2"]
    assert counted(body, executor=EmulatorExecutor()) is None
    assert counted("o[i] = q[i];") == ()


def test_counting_changes_no_result() -> None:
    import cupy

    source = """extern "C" __global__ void k(const float* q, float* o) {
        __shared__ float t[32]; int i = threadIdx.x; t[31 - i] = q[i]; __syncwarp(); o[i] = t[i] + t[3]; }"""
    inputs = INPUTS | {"Q": np.arange(64 * 64, dtype=np.float32).reshape(1, 1, 64, 64)}
    for bank_conflicts in (False, True):
        executor = EmulatorExecutor(instruments=Instruments(bank_conflicts=bank_conflicts))
        execution = executor.run(PROBLEM, plan(cupy.RawKernel(source, "k"), 32), inputs)
        assert np.array_equal(execution.outputs["O"][0, 0, 0, :32], np.arange(31, -1, -1) + 28.0)


def test_another_blocks_shared_memory_is_shared_memory() -> None:
    """By its line, as if it were the block's own; nothing of it is global traffic."""
    import cupy

    source = """extern "C" __global__ void k(const float* q, float* o) {
      __shared__ volatile float t[64]; volatile float* other; int i = threadIdx.x;
      asm volatile("{ .reg .u32 r; mov.u32 r, %%cluster_ctarank; xor.b32 r, r, 1; mapa.u64 %0, %1, r; }"
        : "=l"(other) : "l"(t));
      asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
      other[2 * i] = i;
      asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
      o[32 * blockIdx.x + i] = t[2 * i];
    }"""
    launch = Launch(cupy.RawKernel(source, "k"), (2,), (32,), ("Q", "O"), cluster=(2,))
    executor = EmulatorExecutor(instruments=Instruments(bank_conflicts=True))
    found = executor.run(PROBLEM, Plan((launch,)), INPUTS)
    (report,) = found.launches
    assert report.shared is not None and report.traffic is not None
    assert sorted((row.kind, row.requests, row.wavefronts) for row in report.shared) == [
        ("load", 2, 4),
        ("store", 2, 4),
    ]
    assert [(row.buffer, row.kind) for row in report.traffic] == [("O", "store")]
    assert np.array_equal(found.outputs["O"].reshape(-1)[:64], np.tile(np.arange(32), 2))
