"""What blocks are recorded to have done, and when."""

from __future__ import annotations

import numpy as np
import pytest
from trace_recorder import Recorder

from harness.emulator.abi import cache_layout as at
from harness.emulator.codegen.kernel_facts import Site
from harness.emulator.launch import tracing
from harness.emulator.launch.tracing import access_kind
from harness.ptx.opcodes import row_name
from tests.emulator.cuda_kernel import cuda_source, run

N = 4096
ARRAYS = {"A": np.arange(N, dtype=np.float32), "B": np.zeros(N, dtype=np.float32)}


def recorded(
    body: str,
    threads: int,
    blocks: int = 1,
    cores: int = 1,
    seed: int = 0,
    cluster: tuple[int, int, int] | None = None,
) -> dict[int, list[tuple[int, int, int, int]]]:
    source = cuda_source("const float* a, float* b", body)
    recorder = Recorder()
    shape = {"grid": (blocks, 1, 1), "block": (threads, 1, 1), "cluster": cluster}
    run(source, ARRAYS, ("A", "B"), threads=cores, seed=seed, listener=recorder, **shape)
    return recorder.blocks


COPY = """
#pragma unroll 1
for (int i = threadIdx.x; i < 128; i += 64) b[i] = a[i];
"""


def test_warps_are_side_by_side_though_one_ran_before_the_other() -> None:
    (found,) = recorded(COPY, threads=64).values()
    assert [access[:3] for access in found] == [
        (0, 15, at.LOAD), (1, 15, at.LOAD), (1000, 15, at.STORE), (1001, 15, at.STORE),
        (2, 15, at.LOAD), (3, 15, at.LOAD), (1002, 15, at.STORE), (1003, 15, at.STORE),
    ]  # fmt: skip
    delays = [access[3] for access in found]
    assert delays[1::2] == [0, 0, 0, 0]
    assert delays[4] > 0  # the next round of the loop


def test_barriers_bring_the_clocks_of_warps_together() -> None:
    # The second warp has much to do before the barrier; the first waits for it.
    work = "float x = a[t]; if (t >= 32) for (int i = 0; i < 1000; ++i) x = x * x + 1; b[t] = x;"
    body = f"int t = threadIdx.x; {work} __syncthreads(); b[t + 64] = a[t + 64];"
    (found,) = recorded(body, threads=64).values()
    assert [access[:3] for access in found[-4:]] == [
        (2, 15, at.LOAD), (3, 15, at.LOAD), (1002, 15, at.STORE), (1003, 15, at.STORE),
    ]  # fmt: skip
    assert [access[3] for access in found[-4:]][1::2] == [0, 0]
    assert sum(access[3] for access in found) > 1000


def test_a_request_is_recorded_line_by_line() -> None:
    (found,) = recorded("if (threadIdx.x < 3) b[32 * threadIdx.x] = a[100 + 8 * threadIdx.x];", threads=32).values()
    # Elements 100, 108, 116: bytes 400, 432, 464, in sectors 12, 13 and 14, which are of line 3.
    assert [access[:3] for access in found] == [
        (3, 0b0111, at.LOAD), (1000, 1, at.STORE), (1001, 1, at.STORE), (1002, 1, at.STORE),
    ]  # fmt: skip


def test_neither_shared_nor_local_memory_is_recorded() -> None:
    body = "__shared__ float s[32]; int t = threadIdx.x; s[t] = t; float x[9]; for (int i = 0; i < 9; ++i) x[i] = s[i];"
    (found,) = recorded(f"{body} b[t] = x[t % 9];", threads=32).values()
    assert [access[:3] for access in found] == [(1000, 15, at.STORE)]


def test_more_than_the_buffer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = recorded(COPY, threads=32, blocks=3)
    monkeypatch.setattr(tracing, "RECORDS", 2)
    assert recorded(COPY, threads=32, blocks=3) == expected
    assert sorted(expected) == [0, 1, 2]


def test_the_same_on_any_number_of_cores_and_with_any_seed() -> None:
    expected = recorded(COPY, threads=64, blocks=20)
    assert recorded(COPY, threads=64, blocks=20, seed=5) == expected
    assert recorded(COPY, threads=64, blocks=20, cores=3) == expected


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("ld.global.nc.f32", at.LOAD),
        ("ld.global.ca.v4.f32", at.LOAD),
        ("ld.global.cg.f32", at.LOAD_BEYOND_L1),
        ("ld.volatile.global.u32", at.LOAD_BEYOND_L1),
        ("ld.acquire.gpu.global.u32", at.LOAD_BEYOND_L1),
        ("st.global.f32", at.STORE),
        ("cp.async.bulk.global.shared::cta.bulk_group", at.BULK_STORE),
        ("red.global.add.f32", at.REDUCTION),
        ("atom.global.cas.b32", at.ATOMIC),
        ("cp.async.cg.shared.global", at.LOAD_BEYOND_L1),
        ("cp.async.bulk.tensor.2d.shared::cluster.global", at.LOAD_BEYOND_L1),
    ],
)
def test_what_instructions_mean_to_the_caches(form: str, kind: int) -> None:
    opcode, *modifiers = form.split(".")
    site = Site(row_name(opcode, tuple(modifiers)), form, 1, None, kind == at.REDUCTION)
    assert access_kind(site) == kind


def test_blocks_of_a_cluster_are_told_apart() -> None:
    """They run together; each is delivered what it would be by itself."""
    body = "int i = 64 * blockIdx.x + threadIdx.x; float x = a[i]; __syncthreads(); b[i] = x;"
    alone, together = (recorded(body, threads=64, blocks=8, cluster=size) for size in (None, (4, 1, 1)))
    assert together == alone and len(alone) == 8
