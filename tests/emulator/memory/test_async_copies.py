"""Asynchronous copies: a missing wait shows in the numbers, a stray copy on its line, and all of it is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trace_recorder import Recorder

from harness.emulator.abi import cache_layout
from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import Instruments
from harness.emulator.launch.worker import FIRST_CAPACITY, capacity_limit
from harness.execution.traffic.counts import SharedTraffic, SiteTraffic
from harness.model.plan import Launch, Plan
from harness.operations.attention.problem import Problem
from harness.support.errors import KernelFault
from tests.emulator.async_copies import COPIES
from tests.emulator.cuda_kernel import run

X = np.arange(1, 1025, dtype=np.float32)


def source(body: str) -> str:
    """A kernel `k` over `x` and `y`, with shared memory `s` and `t` the thread; its first line is planted.cu:1."""
    head = 'extern "C" __global__ void k(float* x, float* y) { extern __shared__ __align__(16) float s[];'
    return f'{COPIES}\n#line 1 "planted.cu"\n{head} int t = threadIdx.x;\n{body}\n}}'


def results(body: str, threads: int = 32, shared_bytes: int = 4096, **launch: Any) -> np.ndarray:
    arrays = {"X": X, "Y": np.zeros(1024, np.float32)}
    after, _ = run(source(body), arrays, ("X", "Y"), block=(threads, 1, 1), shared_bytes=shared_bytes, **launch)
    return after["Y"]


# When it lands --------------------------------------------------------------------------------------------------------


def test_nothing_lands_before_the_wait_and_what_was_there_is_gone() -> None:
    body = 's[t] = 7.f; COPY(4, "ca", s + t, x + t); COMMIT(); y[t] = s[t]; WAIT(0); y[t + 32] = s[t];'
    found = results(body)
    assert np.isnan(found[:32]).all() and np.array_equal(found[32:64], X[:32])


def test_a_barrier_is_no_wait() -> None:
    body = 'COPY(4, "ca", s + t, x + t); COMMIT(); __syncthreads(); y[t] = s[63 - t];'
    assert np.isnan(results(body, threads=64)[:64]).all()
    mended = body.replace("__syncthreads();", "WAIT(0); __syncthreads();")
    assert np.array_equal(results(mended, threads=64)[:64], X[63::-1])


def test_each_thread_waits_for_its_own() -> None:
    """Only the first warp waits; the barrier does not tell of the other's copies."""
    body = 'COPY(4, "ca", s + t, x + t); COMMIT(); if (t < 32) WAIT(0); __syncthreads(); y[t] = s[63 - t];'
    found = results(body, threads=64)
    assert np.isnan(found[:32]).all() and np.array_equal(found[32:64], X[31::-1])


def test_one_lane_that_waits_gets_its_own_copy() -> None:
    found = results('COPY(4, "ca", s + t, x + t); COMMIT(); if (t == 5) WAIT(0); __syncwarp(); y[t] = s[t];')
    assert found[5] == X[5] and np.isnan(np.delete(found[:32], 5)).all()


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_the_latest_groups_stay_in_flight(left: int) -> None:
    body = 'for (int g = 0; g < 3; ++g) { COPY(4, "ca", s + 32 * g + t, x + 32 * g + t); COMMIT(); }'
    found = results(f"{body} WAIT({left}); for (int g = 0; g < 3; ++g) y[32 * g + t] = s[32 * g + t];")[:96]
    landed = 32 * (3 - left)
    assert np.array_equal(found[:landed], X[:landed]) and np.isnan(found[landed:]).all()


def test_what_is_not_committed_is_not_waited_for() -> None:
    body = 'COPY(4, "ca", s + t, x + t); COMMIT(); COPY(4, "ca", s + t + 32, x + t + 32); WAIT(0); '
    read = "y[t] = s[t]; y[t + 32] = s[t + 32];"
    found = results(body + read)
    assert np.array_equal(found[:32], X[:32]) and np.isnan(found[32:64]).all()
    assert np.array_equal(results(body.replace("WAIT(0)", 'asm volatile("cp.async.wait_all;")') + read)[:64], X[:64])


def test_an_empty_group_counts() -> None:
    body = 'COPY(4, "ca", s + t, x + t); COMMIT(); COMMIT(); WAIT(1); y[t] = s[t];'
    assert np.array_equal(results(body)[:32], X[:32])
    assert np.isnan(results(body.replace("COMMIT(); COMMIT();", "COMMIT();"))[:32]).all()


def test_two_copies_to_one_place_land_in_the_order_of_their_issue() -> None:
    body = 'COPY(4, "ca", s + t, x + t); COPY(4, "ca", s + t, x + t + 32); COMMIT(); WAIT(0); y[t] = s[t];'
    assert np.array_equal(results(body)[:32], X[32:64])


def test_the_source_is_read_when_the_copy_lands() -> None:
    """So that a kernel sees if it writes there in between."""
    body = 'COPY(4, "ca", s + t, x + t); COMMIT(); x[t] = -1.f; WAIT(0); y[t] = s[t];'
    assert (results(body)[:32] == -1).all()


def test_zeros_are_not_read_and_land_with_the_rest() -> None:
    fill = "FILL(16, s + 4 * t, x + 1020 + 8 * (t > 1), 12 * (t < 2)); COMMIT();"
    read = "for (int i = 0; i < 4; ++i) y[4 * t + i] = s[4 * t + i];"
    found = results(f"{fill} WAIT(0); {read}")[:128].reshape(32, 4)
    assert np.array_equal(found[:2], [[1021, 1022, 1023, 0]] * 2) and (found[2:] == 0).all()
    assert np.isnan(results(f"{fill} {read}")[:128]).all()


def test_a_block_knows_nothing_of_the_copies_of_the_block_before() -> None:
    """The first block leaves a group and an open copy behind; the next one's only wait would let them pass."""
    body = """
    if (blockIdx.x == 0) { COPY(4, "ca", s + t, x + t); COMMIT(); COPY(4, "ca", s + t, x + t); return; }
    s[t] = 5.f; COPY(4, "ca", s + 32 + t, x + 64 + t); COMMIT(); WAIT(0); y[t] = s[t]; y[t + 32] = s[t + 32];
    """
    found = results(body, grid=(2, 1, 1))
    assert (found[:32] == 5).all() and np.array_equal(found[32:64], X[64:96])


def test_as_many_in_flight_as_there_is_room() -> None:
    """A lane at a time fills shared memory word by word: far more requests than a queue has room for at first."""
    body = """
    #pragma unroll 1
    for (int i = 0; i < 1024; ++i) {
        if (t == i % 32) COPY(4, "ca", s + i, x + i);
        if (i == 500) { COMMIT(); WAIT(0); }
    }
    COMMIT(); WAIT(0); __syncwarp();
    for (int i = t; i < 1024; i += 32) y[i] = s[i];
    """
    assert 524 > 4 * FIRST_CAPACITY
    assert np.array_equal(results(body), X)


def test_a_loop_that_never_waits_is_stopped() -> None:
    body = '#pragma unroll 1\nfor (int i = 0; i < 3000; ++i) {\nCOPY(4, "ca", s + t, x + t); COMMIT(); }'
    with pytest.raises(KernelFault, match=r"planted.cu:4 .*has 2048 asynchronous copies in flight") as caught:
        results(body, shared_bytes=4096)
    assert caught.value.kind == "copies in flight" and capacity_limit(4096) == 2048


def test_numba_reaches_it_through_inline_assembly() -> None:
    from llvmlite import ir
    from numba import cuda, float32, types
    from numba.core.extending import intrinsic

    @intrinsic
    def copy_and_wait(typingctx: Any, target: Any, origin: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64), ir.IntType(64)])
            text = (
                "{ .reg .u64 p; cvta.to.shared.u64 p, $0; cp.async.ca.shared.global [p], [$1], 4; cp.async.wait_all; }"
            )
            builder.asm(kind, text, "l,l,~{memory}", args, True)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64), codegen

    @intrinsic
    def pointer(typingctx: Any, array: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            return builder.ptrtoint(data, ir.IntType(64))

        return types.uint64(array), codegen

    @cuda.jit
    def k(x, y):  # type: ignore[no-untyped-def]
        s = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        copy_and_wait(pointer(s[t:]), pointer(x[t:]))
        y[t] = s[t]

    after, _ = run(k, {"X": X, "Y": np.zeros(32, np.float32)}, ("X", "Y"))
    assert np.array_equal(after["Y"], X[:32])


def test_the_pipeline_of_the_cuda_headers() -> None:
    kernel = """
    #include <cuda_pipeline.h>
    extern "C" __global__ void k(const float4* x, float4* y) {
        __shared__ float4 s[64]; int t = threadIdx.x;
        __pipeline_memcpy_async(&s[t], &x[t], 16);
        __pipeline_commit();
        __pipeline_memcpy_async(&s[t + 32], &x[t + 32], 16, 4);
        __pipeline_commit();
        __pipeline_wait_prior(1); y[t] = s[t];
        __pipeline_wait_prior(0); y[t + 32] = s[t + 32];
    }"""
    after, _ = run(kernel, {"X": X[:256], "Y": np.zeros(256, np.float32)}, ("X", "Y"))
    wanted = X[:256].copy()
    wanted[131::4] = 0  # the last 4 of the second half's 16 bytes
    assert np.array_equal(after["Y"], wanted)


# What is wrong --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copy", "kind", "words"),
    [
        ('COPY(16, "cg", s + 4 * t, x + 1000 + 4 * t);', "out of bounds", "byte offset 4,096 of buffer X, which has"),
        ('COPY(16, "cg", s + 4 * t, x + 4 * t - 4);', "out of bounds", "byte offset -16 of buffer X"),
        ('COPY(16, "cg", s + 4 * t + 1000, x);', "out of bounds", "byte offset 4,096 of shared memory, which has"),
        ('COPY(16, "cg", s + 4 * t, x + 4 * t + 1);', "misaligned", "byte offset 4 of buffer X; .* multiple of 16"),
        ('COPY(8, "ca", s + 2 * t + 1, x);', "misaligned", "byte offset 4 of shared memory; .* multiple of 8"),
        ("FILL(16, s + 4 * t, x + 4 * t, 16 + t);", "copy size", "16 bytes that reads 17 bytes"),
        ("FILL(16, s + 4 * t, x + 1000 + 4 * t, 12);", "out of bounds", "12 bytes at byte offset 4,096"),
    ],
)  # fmt: skip
def test_a_stray_copy_is_an_error_at_the_line_that_issues_it(copy: str, kind: str, words: str) -> None:
    with pytest.raises(KernelFault, match=f"kernel k, .*planted.cu:3 .*asynchronous copy of .*{words}") as caught:
        results(f"s[t] = 0.f;\n{copy}\nCOMMIT();\nWAIT(0); y[t] = s[t];")
    assert caught.value.kind == kind


# What is counted ------------------------------------------------------------------------------------------------------

PROBLEM = Problem(heads=1, q_len=64, kv_len=64, head_dim=64)


def counted(body: str) -> tuple[list[SiteTraffic], tuple[SharedTraffic, ...]]:
    """Global reads, and what was done to shared memory."""
    import cupy

    executor = EmulatorExecutor(instruments=Instruments(bank_conflicts=True))
    inputs = {name: np.zeros((1, 1, 64, 64), np.float32) for name in "QKV"}
    plan = Plan((Launch(cupy.RawKernel(source(body), "k"), (1,), (32,), ("Q", "O"), 16384),))
    report = executor.run(PROBLEM, plan, inputs).launches[0]
    assert report.traffic is not None and report.shared is not None
    return [site for site in report.traffic if site.buffer == "Q"], report.shared


@pytest.mark.parametrize(
    ("copy", "read", "written"),
    [
        # requests, bytes, sectors, fewest sectors; requests, bytes, wavefronts, fewest wavefronts
        ('COPY(4, "ca", s + t, x + t);', (1, 128, 4, 4), (1, 128, 1, 1)),
        ('COPY(8, "ca", s + 2 * t, x + 2 * t);', (1, 256, 8, 8), (1, 256, 2, 2)),
        ('COPY(16, "cg", s + 4 * t, x + 4 * t);', (1, 512, 16, 16), (1, 512, 4, 4)),
        # Two lanes' pieces go to one sector and are from one line.
        ('COPY(16, "cg", s + 4 * t, x + 8 * t);', (1, 512, 16, 16), (1, 512, 4, 4)),
        # The halves of a sector go to two, of one line but for one in four.
        ('COPY(16, "cg", s + 4 * t + 4, x + 4 * t);', (1, 512, 20, 16), (1, 512, 4, 4)),
        ('COPY(8, "ca", s + 2 * t + 4, x + 2 * t);', (1, 256, 8, 8), (1, 256, 2, 2)),
        ('COPY(4, "ca", s + 32 * t, x + t);', (1, 128, 4, 4), (1, 128, 32, 1)),
        ('COPY(16, "cg", s + 64 * t, x);', (1, 512, 32, 1), (1, 512, 32, 4)),
        ('if (t < 8) COPY(16, "cg", s + 4 * t, x + 4 * t);', (1, 128, 4, 4), (1, 128, 1, 1)),
        ("FILL(16, s + 4 * t, x + 4 * t, t < 2 ? 8 : t < 4 ? 16 : 0);", (1, 48, 2, 2), (1, 512, 4, 4)),
    ],
)
def test_a_copy_counts_as_a_load_and_a_store_where_it_is_issued(
    copy: str, read: tuple[int, ...], written: tuple[int, ...]
) -> None:
    loads, shared = counted(f"if (t > 99) s[t] = x[0];\n{copy}\nCOMMIT();\nWAIT(0);")
    (load,) = loads
    assert (load.kind, load.line) == ("load", 3)
    assert (load.requests, load.requested_bytes, load.sectors, load.ideal_sectors) == read
    (store,) = shared
    assert (store.kind, store.line) == ("store", 3)
    assert (store.requests, store.requested_bytes, store.wavefronts, store.ideal_wavefronts) == written


def test_what_reads_nothing_is_no_request() -> None:
    loads, shared = counted("FILL(16, s + 4 * t, x + 4 * t, 0); COMMIT(); WAIT(0); y[t] = s[t];")
    assert loads == [] and {row.kind for row in shared} == {"store", "load"}


@pytest.mark.parametrize(("how", "kind"), [("ca", cache_layout.LOAD), ("cg", cache_layout.LOAD_BEYOND_L1)])
def test_only_ca_passes_through_l1(how: str, kind: int) -> None:
    recorder = Recorder()
    body = f'COPY(16, "{how}", s + 4 * t, x + 4 * t); COMMIT(); WAIT(0);'
    arrays = {"X": X, "Y": np.zeros(1024, np.float32)}
    run(source(body), arrays, ("X", "Y"), shared_bytes=4096, listener=recorder)
    assert [access[:3] for access in recorder.blocks[0]] == [(line, 15, kind) for line in range(4)]
