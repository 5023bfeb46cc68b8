"""Races with asynchronous copies: each kind is found with both lines, and a pipeline that waits and meets has none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.emulator.async_copies import COPIES
from tests.emulator.sanitized_kernel import find, lines

X = np.arange(1024, dtype=np.float32)


def kernel(body: str) -> str:
    head = 'extern "C" __global__ void k(float* x, float* y) { __shared__ __align__(16) float s[256];'
    return f"{COPIES}{head} int t = threadIdx.x;\n{body}\n}}"


def line_of(source: str, mark: str) -> int:
    (found,) = (
        n for n, line in enumerate(source.removeprefix("\n").splitlines(), 1) if mark in line.partition("//")[2]
    )
    return found


def run(body: str, **launch: Any) -> Any:
    return find(kernel(body), {"X": X, "Y": np.zeros(1024, np.float32)}, ("X", "Y"), **launch)


@dataclass(frozen=True)
class Race:
    """One mistake; `first` and `second` mark the two accesses, in the order in which they ran."""

    kind: str
    body: str
    words: str
    """In the message: what it is about, and what would mend it."""
    launch: dict[str, Any] = field(default_factory=dict)


TWO_WARPS = {"block": (64, 1, 1)}
IN_FLIGHT = "in flight: its thread has to wait for it first"
NO_BARRIER = "is missing between "
RACES = {
    "its own thread reads before it waits": Race(
        "RAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    y[t] = s[t];  // second
    WAIT(0);""",
        IN_FLIGHT,
    ),
    "a barrier and no wait": Race(
        "RAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    __syncthreads();
    y[t] = s[63 - t];  // second""",
        IN_FLIGHT,
        TWO_WARPS,
    ),
    "a wait that leaves the group in flight": Race(
        "RAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    WAIT(1);
    __syncthreads();
    y[t] = s[63 - t];  // second""",
        IN_FLIGHT,
        TWO_WARPS,
    ),
    "a copy that was never committed": Race(
        "RAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    WAIT(0);
    y[t] = s[t];  // second""",
        IN_FLIGHT,
    ),
    "a wait and no barrier": Race(
        "RAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    WAIT(0);
    y[t] = s[63 - t];  // second""",
        NO_BARRIER,
        TWO_WARPS,
    ),
    "a wait and no __syncwarp": Race(
        "RAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    WAIT(0);
    y[t] = s[31 - t];  // second""",
        NO_BARRIER,
    ),
    "a wait behind the barrier": Race(
        "RAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    __syncthreads();
    WAIT(0);
    if (t > 31) y[t] = s[63 - t];  // second""",
        "no barrier, __syncwarp or atomic orders the load after it",
        TWO_WARPS,
    ),
    "a store to what is in flight": Race(
        "WAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    s[t] = 0.f;  // second
    WAIT(0);
    y[t] = s[t];""",
        IN_FLIGHT,
    ),
    "a store of what is there to what is in flight": Race(
        "WAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    ((unsigned*)s)[t] = 0xFFFFFFFFu;  // second
    WAIT(0);
    y[t] = s[t];""",
        IN_FLIGHT,
    ),
    "an atomic on what is in flight": Race(
        "WAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    atomicAdd(s + t, 1.f);  // second
    WAIT(0);""",
        IN_FLIGHT,
    ),
    "two copies to one place": Race(
        "WAW race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COPY(4, "ca", s + t, x + t + 32);  // second
    COMMIT();
    WAIT(0);
    y[t] = s[t];""",
        IN_FLIGHT,
    ),
    "two lanes copy to one place": Race(
        "WAW race",
        """
    COPY(4, "ca", s + t / 2, x + t);  // first second
    COMMIT();
    WAIT(0);""",
        IN_FLIGHT,
    ),
    "the place is still read by others": Race(
        "WAR race",
        """
    s[t] = x[t];
    __syncthreads();
    y[t] = s[63 - t];  // first
    COPY(4, "ca", s + t, x + 64 + t);  // second
    COMMIT();
    WAIT(0);
    __syncthreads();""",
        NO_BARRIER,
        TWO_WARPS,
    ),
    "a ring without a barrier before its stage is used again": Race(
        "WAR race",
        """
    float total = 0;
    COPY(4, "ca", s + t, x + t);
    COMMIT();
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
        COPY(4, "ca", s + (i + 1) % 2 * 64 + t, x + 64 * (i + 1) + t);  // second
        COMMIT();
        WAIT(1);
        __syncthreads();
        total += s[i % 2 * 64 + 63 - t];  // first
    }
    WAIT(0);
    y[t] = total;""",
        NO_BARRIER,
        TWO_WARPS,
    ),
    "the place was written by another": Race(
        "WAW race",
        """
    s[t] = x[t];  // first
    COPY(4, "ca", s + 63 - t, x + t);  // second
    COMMIT();
    WAIT(0);""",
        NO_BARRIER,
        TWO_WARPS,
    ),
    "its own thread overwrites the source": Race(
        "WAR race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    x[t] = 1.f;  // second
    WAIT(0);""",
        IN_FLIGHT,
    ),
    "another thread overwrites the source behind a barrier": Race(
        "WAR race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    float before = y[t + 64] + x[63 - t];
    __syncthreads();
    x[63 - t] = 1.f;  // second
    WAIT(0);
    y[t] = before;""",
        IN_FLIGHT,
        TWO_WARPS,
    ),
    "the source is overwritten after the wait, without a barrier": Race(
        "WAR race",
        """
    COPY(4, "ca", s + t, x + t);  // first
    COMMIT();
    WAIT(0);
    x[63 - t] = 1.f;  // second""",
        NO_BARRIER,
        TWO_WARPS,
    ),
    "the source was written by another": Race(
        "RAW race",
        """
    x[t] = 1.f;  // first
    COPY(4, "ca", s + t, x + 63 - t);  // second
    COMMIT();
    WAIT(0);""",
        NO_BARRIER,
        TWO_WARPS,
    ),
}


@pytest.mark.parametrize("mistake", RACES)
def test_a_race_is_found_with_both_lines(mistake: str) -> None:
    race = RACES[mistake]
    source = kernel(race.body)
    found = {lines(finding): finding.message for finding in run(race.body, **race.launch)}
    # The warp that runs first meets less than the other one; both meet nothing but these two lines.
    assert {line for _, *both in found for line in both} <= {line_of(source, "first"), line_of(source, "second"), None}
    message = found[race.kind, line_of(source, "second"), line_of(source, "first")]
    assert race.words in message and "asynchronous copy" in message


CLEAN = {
    "a thread waits for itself": ("WAIT(0); y[t] = s[t]; s[t] = 2.f;", {}),
    "a warp waits and meets": ("WAIT(0); __syncwarp(); y[t] = s[31 - t];", {}),
    "a block waits and meets": ("WAIT(0); __syncthreads(); y[t] = s[63 - t]; __syncthreads(); s[t] = 0.f;", TWO_WARPS),
    "the source is free after wait and barrier": ("WAIT(0); __syncthreads(); x[63 - t] = 0.f;", TWO_WARPS),
    "its own source is free after the wait": ("WAIT(0); x[t] = 0.f;", TWO_WARPS),
    "a source that all read": ('COPY(4, "ca", s + 64 + t, x); float a = x[t]; WAIT(0); y[t] = a;', TWO_WARPS),
}


@pytest.mark.parametrize("case", CLEAN)
def test_what_is_ordered_is_no_race(case: str) -> None:
    body, launch = CLEAN[case]
    assert run(f'COPY(4, "ca", s + t, x + t); COMMIT(); {body}', grid=(1, 1, 1), **launch) == ()


PIPELINE = """
    float total = 0;
    COPY(16, "cg", s + 4 * t, x + 4 * t);
    COMMIT();
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
        if (i < 7) COPY(16, "cg", s + (i + 1) % 2 * 128 + 4 * t, x + 128 * ((i + 1) & 7) + 4 * t);
        COMMIT();
        WAIT(1);
        __syncthreads();
        for (int j = 0; j < 4; ++j) total += s[i % 2 * 128 + (4 * t + j + 60) % 128];
        __syncthreads();
    }
    y[blockIdx.x * 32 + t] = total;"""


NARROW = PIPELINE.replace("4 * t", "2 * t").replace('16, "cg"', '8, "ca"').replace("j < 4", "j < 2")
"""The same for twice as many threads."""


@pytest.mark.parametrize("seed", range(4))
def test_a_double_buffered_pipeline_is_clean_in_any_order(seed: int) -> None:
    for shuffle in (False, True):
        assert run(NARROW, block=(64, 1, 1), seed=seed, shuffle=shuffle) == ()
        assert run(PIPELINE, grid=(3, 1, 1), seed=seed, shuffle=shuffle) == ()


def test_the_pipeline_without_its_second_barrier_is_not() -> None:
    body = NARROW.replace("        __syncthreads();\n    }", "    }")
    assert body != NARROW
    assert "WAR race" in {finding.kind for finding in run(body, block=(64, 1, 1))}


def test_a_block_that_leaves_copies_behind_does_not_race_with_the_next() -> None:
    body = 'y[32 * blockIdx.x + t] = s[t] = 1.f; COPY(4, "ca", s + t, x + t); COMMIT();'
    assert run(body, grid=(3, 1, 1)) == ()
    again = run('if (blockIdx.x) y[t] = s[t]; else COPY(4, "ca", s + t, x + t);', grid=(2, 1, 1))
    assert [finding.kind for finding in again] == ["uninitialised read"]


def test_memory_that_nobody_wrote() -> None:
    """A copy writes its destination, zeros included, and reads its source but for the zeros."""
    body = "FILL(8, s + 2 * t, x + 2 * t, {}); COMMIT(); WAIT(0); y[t] = s[2 * t + 1];"
    arrays, args = {"X": X, "Y": X.copy()}, ("X", "Y")
    assert find(kernel(body.format("0")), arrays, args, "X") == ()
    (found,) = find(kernel(body.format("4")), arrays, args, "X")
    assert found.kind == "uninitialised read" and "asynchronous copy of 4 bytes at byte offset 0" in found.message
    assert found.count == 32
