"""Requests, requested bytes and 32-byte sectors, against hand-counted patterns."""

from __future__ import annotations

import numpy as np
import pytest

from harness.execution.traffic.counts import Count
from harness.support.errors import KernelFault
from tests.emulator.cuda_kernel import run

N = 4096
A = {"A": np.arange(N, dtype=np.float32), "B": np.zeros(N, dtype=np.float32)}


def counted(source: str, threads_per_block: int = 128, blocks: int = 1) -> dict[tuple[str, str], tuple[int, int, int]]:
    """(buffer, kind) -> requests, requested bytes, sectors."""
    import cupy

    _, counts = run(cupy.RawKernel(source, "k"), A, ("A", "B"), grid=(blocks, 1, 1), block=(threads_per_block, 1, 1))
    rows: dict[tuple[str, str], Count] = {}
    for site in counts.sites:
        rows[site.buffer, site.kind] = rows.get((site.buffer, site.kind), Count()) + site.count
    return {key: (row.requests, row.requested_bytes, row.sectors) for key, row in rows.items()}


def kernel(body: str) -> str:
    return 'extern "C" __global__ void k(const float* a, float* b) { int i = threadIdx.x; ' + body + " }"


@pytest.mark.parametrize(
    ("body", "load", "store"),
    [
        ("b[i] = a[i];", (4, 512, 16), (4, 512, 16)),
        ("b[i] = a[i + 1];", (4, 512, 20), (4, 512, 16)),  # each warp's 128 bytes straddle five sectors
        ("b[i] = a[2 * i];", (4, 512, 32), (4, 512, 16)),
        ("b[i] = a[8 * i];", (4, 512, 128), (4, 512, 16)),  # a sector for each lane
        ("b[i] = a[0];", (4, 512, 4), (4, 512, 16)),  # one sector for all lanes
        ("b[i] = a[127 - i];", (4, 512, 16), (4, 512, 16)),  # backwards is as good
        ("b[i] = a[(i * 37) % 128];", (4, 512, 58), (4, 512, 16)),
        ("if (i < 5) b[i] = a[i];", (1, 20, 1), (1, 20, 1)),
        ("if (i % 2) b[i] = a[i];", (4, 256, 16), (4, 256, 16)),
        ("((float4*)b)[i] = ((const float4*)a)[i];", (4, 2048, 64), (4, 2048, 64)),
        ("((float2*)b)[i] = ((const float2*)a)[i];", (4, 1024, 32), (4, 1024, 32)),
        ("((char*)b)[i] = ((const char*)a)[i];", (4, 128, 4), (4, 128, 4)),
    ],
)
def test_access_patterns(body: str, load: tuple[int, int, int], store: tuple[int, int, int]) -> None:
    found = counted(kernel(body))
    if "37" in body:
        words = (np.arange(128) * 37) % 128
        load = (4, 512, sum(len(set(words[w * 32 : w * 32 + 32] // 8)) for w in range(4)))
    assert found == {("A", "load"): load, ("B", "store"): store}


@pytest.mark.parametrize(
    ("body", "sectors", "ideal"),
    [
        ("b[i] = a[i];", 4, 4),
        ("b[i] = a[i + 1];", 5, 4),  # straddles a sector
        ("b[i] = a[8 * i];", 32, 4),
        ("b[i] = a[0];", 1, 1),  # 4 distinct bytes
        ("b[i] = a[8 * (i / 2)];", 16, 2),  # 16 distinct words
        ("b[i] = a[127 - i];", 4, 4),
        ("b[i] = a[8 * (i % 4)];", 4, 1),  # the same four words again and again, not in rising order
        ("if (i < 9) b[i] = a[8 * i];", 9, 2),
        ("((float4*)b)[i] = ((const float4*)a)[2 * i];", 32, 16),
        ("((char*)b)[i] = ((const char*)a)[32 * i];", 32, 1),
    ],
)
def test_the_fewest_possible_sectors(body: str, sectors: int, ideal: int) -> None:
    import cupy

    _, counts = run(cupy.RawKernel(kernel(body), "k"), A, ("A", "B"))
    (load,) = [site for site in counts.sites if site.buffer == "A"]
    assert (load.sectors, load.ideal_sectors) == (sectors, ideal)


@pytest.mark.parametrize("element", ["char", "short", "float", "float2", "float4"])
def test_lanes_that_follow_each_other_are_counted_as_in_any_order(element: str) -> None:
    """From every start within a sector and beyond; what is read in order is a request of the short way."""
    typed = f"{element}* to = ({element}*)b; const {element}* from = (const {element}*)a;"
    in_order, exchanged = (
        counted(kernel(f"{typed} for (int s = 0; s < 40; ++s) to[i + s] = from[(i ^ {flip}) + s];")) for flip in (0, 1)
    )
    assert in_order == exchanged


def test_the_first_lane_outside_of_a_buffer_is_reported() -> None:
    with pytest.raises(KernelFault, match=r"thread \(127, 0, 0\)"):
        counted(kernel(f"b[i] = a[i + {N - 127}];"))


@pytest.mark.parametrize("chosen", ["i < 12", "i % 2"])
def test_a_request_of_lanes_in_two_buffers_counts_in_both(chosen: str) -> None:
    # The second one's address is not known to be in A or B before it is there.
    body = f"const float* from = {chosen} ? a : b + 64; float x = from[i]; b[128 + i] = x;"
    found = counted(kernel(body), threads_per_block=32)
    of_a = 12 if chosen == "i < 12" else 16
    sectors = (2, 3) if chosen == "i < 12" else (4, 4)
    a, b = found["A", "load"], found["B", "load"]
    assert (a[0] + b[0], a[1], b[1], a[2], b[2]) == (1, 4 * of_a, 128 - 4 * of_a, *sectors)
    assert found["B", "store"] == (1, 128, 4)


def test_every_block_and_iteration_counts() -> None:
    found = counted(kernel("for (int j = 0; j < 10; ++j) b[i + 128 * blockIdx.x] += a[i + j * 128];"), blocks=3)
    assert found["A", "load"] == (3 * 4 * 10, 3 * 512 * 10, 3 * 16 * 10)


def test_atomics_count_once_for_each_request() -> None:
    found = counted(kernel("atomicAdd(&b[i % 8], a[i]);"))
    assert found["B", "atomic"] == (4, 512, 4)


def test_local_memory_is_counted_interleaved() -> None:
    body = "float t[16]; for (int j = 0; j < 16; ++j) t[j] = a[j]; int at = (int)a[i] & 15; b[i] = t[at] + t[at ^ 5];"
    found = counted(kernel(body), threads_per_block=32)
    # 64 bytes in each of 32 lanes are written, whatever the width of the stores: 64 sectors.
    assert found["local", "store"][1:] == (2048, 64)
    _, counts = run(kernel(body), A, ("A", "B"))
    assert sum(site.ideal_sectors for site in counts.sites if site.buffer == "local") == sum(
        site.requested_bytes // 32 for site in counts.sites if site.buffer == "local"
    )


def test_instructions_are_counted_per_warp_and_per_lane() -> None:
    _, full = run(kernel("b[i] = a[i];"), A, ("A", "B"), block=(64, 1, 1))
    _, half = run(kernel("b[i] = a[i];"), A, ("A", "B"), block=(48, 1, 1))
    assert full.warp_instructions == half.warp_instructions > 0
    assert full.lane_instructions == 32 * full.warp_instructions
    assert half.lane_instructions * 4 == full.lane_instructions * 3
