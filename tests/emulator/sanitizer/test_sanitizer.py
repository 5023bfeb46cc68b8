"""Planted races and reads of unwritten memory, in CUDA C and in Numba: each is found, with its lines."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.emulator import planted_numba
from tests.emulator.sanitized_kernel import find, lines

X = np.arange(256, dtype=np.float32)
LOCAL = "a_local_array_filled_in_part"


@dataclass(frozen=True)
class Planted:
    """One mistake. In the source, `first` and `second` mark the two accesses, in the order in which they ran."""

    kind: str
    source: str
    """The body of a CUDA kernel over `x`, `y`, with `t` the thread."""
    launch: dict[str, Any] = field(default_factory=dict)

    @property
    def cuda(self) -> str:
        return f'extern "C" __global__ void k(const float* x, float* y) {{\nint t = threadIdx.x;{self.source}}}'


# By the name of the twin in planted_numba.py.
PLANTED = {
    "no_barrier_after_load": Planted(
        "RAW race",
        """
    __shared__ float s[128];
    s[t] = x[t];  // first
    y[t] = s[127 - t];  // second
""",
        {"block": (128, 1, 1)},
    ),
    "no_barrier_before_the_next_load": Planted(
        "WAR race",
        """
    __shared__ float s[64];
    float total = 0;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
        s[t] = x[t + 64 * i];  // second
        __syncthreads();
        total += s[63 - t];  // first
    }
    y[t] = total;
""",
        {"block": (64, 1, 1)},
    ),
    "two_lanes_write_one_word": Planted(
        "WAW race",
        """
    __shared__ float s[4];
    s[t & 3] = x[t];  // first second
    __syncthreads();
    y[t] = s[t & 3];
""",
    ),
    "lanes_without_syncwarp": Planted(
        "RAW race",
        """
    __shared__ float s[32];
    s[t] = x[t];  // first
    y[t] = s[t ^ 1];  // second
""",
    ),
    "blocks_overlap": Planted(
        "WAW race",
        """
    y[t + 16 * blockIdx.x] = x[t];  // first second
""",
        {"grid": (3, 1, 1)},
    ),
    "block_reads_what_another_writes": Planted(
        "RAW race",
        """
    if (blockIdx.x == 0)
        y[t] = x[t];  // first
    else
        y[t + 32] = y[t];  // second
""",
        {"grid": (2, 1, 1)},
    ),
    "an_atomic_and_a_plain_store": Planted(
        "WAW race",
        """
    __shared__ float s;
    if (t == 0) s = x[0];  // first
    atomicAdd(&s, x[t]);  // second
    __syncthreads();
    y[t] = s;
""",
        {"block": (64, 1, 1)},
    ),
    "half_of_a_warp_synchronised": Planted(
        "RAW race",
        """
    __shared__ float s[32];
    s[t] = x[t];  // first
    if (t < 16) {
        __syncwarp(0xffff);
        y[t] = s[t ^ 16];  // second
    }
""",
    ),
    "a_stale_tail_in_shared_memory": Planted(
        "uninitialised read",
        """
    __shared__ float s[128];
    if (t < 40) s[t] = x[t];
    __syncthreads();
    y[t] = s[t];  // second
""",
        {"block": (64, 1, 1)},
    ),
    "scratch_that_nobody_wrote": Planted(
        "uninitialised read",
        """
    if (t > 0) y[t] = x[t];
    __syncthreads();
    if (t < 32) y[t + 32] = y[t];  // second
""",
        {"unwritten": "Y"},
    ),
    "a_local_array_filled_in_part": Planted(
        "uninitialised read",
        """
    float a[8];
    for (int i = 0; i < (int)x[5]; ++i) a[i] = x[i];
    y[t] = a[(int)x[t] & 7];  // second
""",
    ),
}


def marked(source: str, word: str, first_line: int = 1) -> int | None:
    found = [number for number, line in enumerate(source.splitlines(), first_line) if f"{word}" in _comment(line)]
    return found[0] if found else None


def _comment(line: str) -> list[str]:
    return (line.partition("//")[2] or line.partition("# ")[2]).split()


# Numba fills local arrays with zeros, so that mistake is CUDA's alone.
BOTH = [(name, backend) for name in PLANTED for backend in ("cuda", "numba") if (name, backend) != (LOCAL, "numba")]


def test_every_planted_mistake_has_its_twin() -> None:
    twins = {name for name in vars(planted_numba) if hasattr(getattr(planted_numba, name), "py_func")}
    assert twins == set(PLANTED) - {LOCAL}


@pytest.mark.parametrize(("name", "backend"), BOTH)
def test_a_planted_mistake_is_found_at_its_lines_and_nothing_else(name: str, backend: str) -> None:
    planted = PLANTED[name]
    kernel: Any = planted.cuda
    source, first_line = kernel, 1
    if backend == "numba":
        kernel = getattr(planted_numba, name)
        text, first_line = inspect.getsourcelines(kernel.py_func)
        source = "".join(text)
    expected = planted.kind, marked(source, "second", first_line), marked(source, "first", first_line)
    found = find(kernel, {"X": X, "Y": np.zeros_like(X)}, ("X", "Y"), **planted.launch)
    assert expected in [lines(finding) for finding in found], [finding.message for finding in found]
    # Other findings can only be the other sides of the same race.
    places = {expected[1], expected[2], None}
    assert {line for finding in found for line in lines(finding)[1:]} <= places


def one(kernel: str, arrays: dict[str, np.ndarray], **launch: Any) -> Any:
    (finding,) = find(kernel, arrays, tuple(arrays), **launch)
    return finding


def test_a_race_in_words() -> None:
    planted = PLANTED["block_reads_what_another_writes"]
    finding = one(planted.cuda, {"X": X, "Y": np.zeros_like(X)}, grid=(2, 1, 1))
    assert (finding.kind, finding.target, finding.offset, finding.count) == ("RAW race", "buffer Y", 0, 32)
    assert (finding.place.block, finding.place.thread) == ((1, 0, 0), (0, 0, 0))
    assert (finding.other.block, finding.other.thread) == ((0, 0, 0), (0, 0, 0))
    for words in (
        "kernel k: load of 4 bytes at byte offset 0 of buffer Y at line 6 races with the store at line 4; ",
        "planted.cu:6 (PTX line",
        ", block (1, 0, 0), thread (0, 0, 0)",
        "planted.cu:4 (PTX line",
        "blocks of one launch are ordered only by atomics with fences",
    ):
        assert words in finding.message


def told(source: str, **launch: Any) -> list[str]:
    """The races of a kernel: kind and first line of each."""
    found = find(source, {"X": X, "Y": np.zeros_like(X)}, ("X", "Y"), **{"block": (64, 1, 1), **launch})
    return [f"{f.kind}: {f.message.splitlines()[0]}" for f in found if f.kind.endswith("race")]


LOOP = """extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[64]; int t = threadIdx.x;
    float total = 0;
#pragma unroll 1
    for (int i = 0; i < 3; ++i) {
        s[t] = x[t + 64 * i];
        AFTER_STORE;
        total += s[63 - t];
        AFTER_LOAD;
    }
    y[t] = total;
}"""


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("after_store", "after_load", "kind", "words"),
    [
        (
            "",
            "__syncthreads()",
            "RAW race",
            "line 8 may read BYTES before line 6 has written it (THREADS). A barrier is missing between line 6 and "
            "line 8",
        ),
        (
            "__syncthreads()",
            "",
            "WAR race",
            "line 6 may overwrite BYTES before line 8 has read it (THREADS). A barrier is missing between line 8 and "
            "line 6 of the loop's next iteration",
        ),
        (
            "",
            "",
            "RAW race",
            "line 8 reads and line 6 writes BYTES in different threads (THREADS), without a barrier. This is in a "
            "loop: a barrier is missing between its iterations or between the two lines",
        ),
    ],
)
def test_between_which_lines_a_barrier_is_missing(
    after_store: str, after_load: str, kind: str, words: str, seed: int
) -> None:
    """In a loop. It does not matter which access came first in the run."""
    source = LOOP.replace("AFTER_STORE", after_store).replace("AFTER_LOAD", after_load)
    (text,) = told(source, seed=seed, shuffle=bool(seed))
    text = re.sub(r"4 bytes at byte offset \d+ of shared memory s", "BYTES", text)
    assert re.sub(r"threads \d+ and \d+", "THREADS", text) == f"{kind}: kernel k: {words}"


def test_no_loop_is_named_where_there_is_none() -> None:
    """The warp that reads comes first, so the store races with an earlier load, as in a loop's next iteration."""
    source = """extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[64]; int t = threadIdx.x;
    s[t] = x[t];
    if (t < 32) y[t] = s[t + 32];
}"""
    expected = (
        "kernel k: line 4 may read 4 bytes at byte offset 128 of shared memory s before line 3 has written it (threads "
        "0 and 32). A barrier is missing between line 3 and line 4"
    )
    assert told(source) == [f"RAW race: {expected}"]


def test_an_unrolled_loop_may_be_the_reason_that_a_store_comes_after_a_load_below_it() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[64]; int t = threadIdx.x; float total = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        s[t] = x[t + 64 * i];
        __syncthreads();
        total += s[63 - t];
    }
    y[t] = total;
}"""
    (text,) = told(source)
    assert text.endswith(
        "A barrier is missing between line 7 and line 5. Line 5 is above: if both are in an unrolled loop, the barrier "
        "belongs between two iterations; if line 5 is in a function, it belongs before the call"
    )


def test_an_unwritten_read_in_words() -> None:
    planted = PLANTED["a_stale_tail_in_shared_memory"]
    finding = one(planted.cuda, {"X": X, "Y": np.zeros_like(X)}, block=(64, 1, 1))
    assert (finding.target, finding.offset, finding.count, finding.other) == ("shared memory s", 160, 24, None)
    assert (
        "thread (40, 0, 0): load of 4 bytes at byte offset 160 of shared memory s, to which nothing" in finding.message
    )


def test_which_of_two_shared_arrays_it_is() -> None:
    source = """
extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float first[40], second[40];
    int t = threadIdx.x;
    first[t] = x[t];
    second[t] = x[t] + 1;
    __syncthreads();
    y[t] = first[t + (int)x[0]] + second[t + (int)x[1]];
}
"""
    finding = one(source, {"X": X, "Y": np.zeros_like(X)})
    assert (finding.target, finding.offset) == ("shared memory second", 128)


def test_two_byte_stores_are_told_apart_byte_by_byte() -> None:
    source = """
extern "C" __global__ void k(const unsigned short* x, unsigned short* y) {
    __shared__ unsigned short s[32];
    int t = threadIdx.x;
    if (t != 5) s[t] = x[t];
    __syncthreads();
    y[t] = s[t];
}
"""
    arrays = {"X": np.arange(32, dtype=np.uint16), "Y": np.zeros(32, np.uint16)}
    # Neighbours write halves of one word, which is no race; one half is missing.
    finding = one(source, arrays)
    assert (finding.kind, finding.offset, finding.count) == ("uninitialised read", 10, 1)


def test_a_vector_load_of_which_one_part_was_not_written() -> None:
    source = """
extern "C" __global__ void k(const float4* x, float* y) {
    int t = threadIdx.x;
    y[4 * t] = y[4 * t + 1] = y[4 * t + 3] = x[t].x;
    float4 v = ((float4*)y)[t];
    y[128 + t] = v.x + v.y * v.z - v.w;
}
"""
    finding = one(source, {"X": X, "Y": np.zeros_like(X)}, unwritten="Y")
    assert (finding.kind, finding.target, finding.count) == ("uninitialised read", "buffer Y", 32)


def test_an_atomic_on_scratch_that_nobody_wrote() -> None:
    source = 'extern "C" __global__ void k(const float* x, float* y) { atomicAdd(y, x[threadIdx.x]); }'
    finding = one(source, {"X": X, "Y": np.zeros(1, np.float32)}, unwritten="Y")
    assert (finding.kind, finding.count) == ("uninitialised read", 1)
    assert "atomic of 4 bytes" in finding.message


def test_shared_memory_does_not_outlive_its_block() -> None:
    source = """
extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[32];
    int t = threadIdx.x;
    if (blockIdx.x == 0) s[t] = x[t];
    __syncwarp();
    y[t + 32 * blockIdx.x] = s[t];
}
"""
    finding = one(source, {"X": X, "Y": np.zeros_like(X)}, grid=(2, 1, 1))
    assert (finding.kind, finding.place.block) == ("uninitialised read", (1, 0, 0))


LAST_BLOCK = """
extern "C" __global__ void k(const float* x, float* partial, unsigned* count, float* out) {
    __shared__ bool last;
    int t = threadIdx.x;
    partial[t + 64 * blockIdx.x] = x[t + 64 * blockIdx.x];  // first
    FENCE
    __syncthreads();
    if (t == 0) last = atomicAdd(count, 1u) == gridDim.x - 1;
    LATE
    __syncthreads();
    if (last)
        for (int b = 0; b < gridDim.x; ++b) out[t] += partial[t + 64 * b];  // second
}
"""


def last_block(fence: str, late: str = "") -> tuple[Any, ...]:
    source = LAST_BLOCK.replace("FENCE", fence).replace("LATE", late)
    arrays = {"x": X, "partial": np.zeros_like(X), "count": np.zeros(1, np.uint32), "out": np.zeros(64, np.float32)}
    return find(source, arrays, tuple(arrays), unwritten="partial", grid=(4, 1, 1), block=(64, 1, 1))


def test_the_last_block_may_read_what_others_fenced_before_they_counted() -> None:
    # The fence of the thread that counts; and of all threads, as they are cumulative.
    assert last_block("__threadfence();") == ()
    assert last_block("__syncthreads(); if (t == 0) __threadfence();") == ()


@pytest.mark.parametrize("fence", ["", "__threadfence_block();"])
def test_without_a_fence_for_the_gpu_the_count_orders_nothing(fence: str) -> None:
    (finding,) = last_block(fence)
    assert lines(finding) == ("RAW race", 11, 4)


def test_what_is_written_after_the_count_is_a_race() -> None:
    (finding,) = last_block("__threadfence();", "partial[t + 64 * blockIdx.x] = 7.f;")
    assert lines(finding) == ("RAW race", 11, 8)


def test_the_same_findings_on_any_number_of_cores() -> None:
    planted = PLANTED["blocks_overlap"]
    arrays = {"X": np.arange(4096, dtype=np.float32), "Y": np.zeros(4096, np.float32)}
    found = [find(planted.cuda, arrays, ("X", "Y"), grid=(200, 1, 1), threads=n) for n in (1, 2, 5)]
    assert found[0] == found[1] == found[2]
    assert found[0][0].count == 199 * 16


EVERY_THREAD_READS_ALL = """
extern "C" __global__ void k(const float* x, float* y) {
    int t = threadIdx.x;
    __shared__ float s[64];
    float total = 0;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
        s[t] = x[t + 64 * i];
        __syncthreads();
        for (int j = 0; j < 64; ++j) total += s[j];
    }
    y[t] = total;
}
"""


def test_of_several_races_of_two_lines_one_between_warps_is_shown():
    """The first one that is found is of two lanes of one warp, which run in lockstep and look harmless."""
    found = find(EVERY_THREAD_READS_ALL, {"x": X, "y": np.zeros(64, np.float32)}, ("x", "y"), block=(64, 1, 1))
    races = [finding for finding in found if finding.kind == "WAR race"]
    assert races
    for race in races:
        assert race.place.thread[0] // 32 != race.other.thread[0] // 32, race.message
