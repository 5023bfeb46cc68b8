"""What blocks are recorded to have done besides their requests: barriers, waits, copies, and when."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from recorded_events import RecordedEvents

from harness.emulator.launch.kernel_launch import LaunchEvents
from harness.execution.schedule.events import (
    BARRIER,
    BULK,
    CLUSTER,
    COPIES,
    CP_ASYNC,
    MBARRIER,
    BlockEvents,
    sectors_of,
)
from harness.support.errors import KernelFault
from tests.emulator.cluster_kernels import MEETING
from tests.emulator.cuda_kernel import cuda_source, run
from tests.emulator.hopper_kernel import run_hopper

N = 4096
ARRAYS = {"A": np.arange(N, dtype=np.float32), "B": np.zeros(N, dtype=np.float32)}
BUSY = "if (t >= 32) for (int i = 0; i < 1000; ++i) x = x * x + 1;"


def recorded(body: str, threads: int, blocks: int = 1, cores: int = 1) -> RecordedEvents:
    found = RecordedEvents()
    source = '#line 1 "planted.cu"\n' + cuda_source("const float* a, float* b", body)
    shape = {"grid": (blocks, 1, 1), "block": (threads, 1, 1)}
    run(source, ARRAYS, ("A", "B"), threads=cores, events=LaunchEvents(found, 0), **shape)
    return found


def only_block(found: RecordedEvents) -> BlockEvents:
    ((events,),) = (blocks.values() for blocks in found.blocks)
    return events


def test_who_waits_at_a_barrier_goes_on_with_the_last() -> None:
    events = only_block(recorded(f"int t = threadIdx.x; float x = a[t]; {BUSY} __syncthreads(); b[t] = x;", 64))
    assert events.waits["kind"].tolist() == [BARRIER, BARRIER]
    waits = {int(wait["warp"]): wait for wait in events.waits}
    late, early = waits[1], waits[0]
    assert early["end"] == late["end"] == late["begin"] == events.steps[0]
    assert early["begin"] < late["begin"] - 1000
    assert events.ends.tolist() == [events.end] * 2
    assert events.end > events.steps[0]


def test_requests_have_their_warp_buffer_line_and_kind() -> None:
    found = recorded("\n int t = threadIdx.x;\n if (t < 3) b[32 * t] = a[100 + 8 * t];", 32)
    load, *stores = only_block(found).accesses
    assert (load["warp"], load["buffer"], load["kind"], load["line"], load["mask"]) == (0, 0, 0, 3, 0b0111)
    assert [(s["buffer"], s["kind"], s["line"], s["mask"]) for s in stores] == [(1, 1, n, 1) for n in range(3)]
    sites = found.launches[0].sites
    assert [(sites[row["site"]].kind, sites[row["site"]].line) for row in (load, stores[0])] == [
        ("load", 3),
        ("store", 3),
    ]
    assert sectors_of(only_block(found).accesses).tolist() == [3, 1, 1, 1]


def test_variables_of_the_module_are_recorded_and_local_memory_is_not() -> None:
    found = RecordedEvents()
    body = """float x[9]; for (int i = 0; i < 9; ++i) x[i] = a[i];
    atomicAdd(&taken, 1); b[threadIdx.x] = x[threadIdx.x % 9];"""
    source = "__device__ int taken;\n" + cuda_source("const float* a, float* b", body)
    _, counts = run(source, ARRAYS, ("A", "B"), events=LaunchEvents(found, 0))
    counted = {(site.buffer, site.kind): site.sectors for site in counts.sites if site.buffer != "local"}
    assert found.sectors()["variable taken", "atomic"] == 1
    assert set(found.sectors()) == set(counted)
    assert any(site.buffer == "local" for site in counts.sites)


def test_a_named_barrier_at_which_some_only_arrive() -> None:
    body = """int t = threadIdx.x; float x = a[t];
    if (t < 32) for (int i = 0; i < 1000; ++i) x = x * x + 1;
    if (t < 32) asm volatile("bar.arrive 3, 64;"); else asm volatile("bar.sync 3, 64;");
    b[t] = x;"""
    events = only_block(recorded(body, 64))
    assert [(row["warp"], row["number"]) for row in events.arrivals] == [(0, 3)]
    assert [(row["warp"], row["number"]) for row in events.waits] == [(1, 3)]
    assert events.waits["end"][0] == events.arrivals["time"][0] > events.waits["begin"][0] + 1000
    assert not len(events.steps)  # not all of the block waited


def test_copies_are_in_flight_until_a_wait_covers_them() -> None:
    body = """__shared__ __align__(16) float s[256]; int t = threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(s + 4 * t);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(a + 4 * t) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to + 512), "l"(a + 4 * t) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    float x = 1;
    #pragma unroll 1
    for (int i = 0; i < 100; ++i) x = x * x + b[0];
    b[t] = s[t] + x;"""
    events = only_block(recorded(body, 32))
    assert events.copies["kind"].tolist() == [CP_ASYNC] * 2
    assert events.copies["sectors"].tolist() == [16, 16]
    first, second = events.copies
    assert first["issued"] <= first["landed"] < events.end
    assert second["landed"] == -1  # nobody waits for it
    assert [(row["kind"], row["number"]) for row in events.waits] == [(COPIES, 1)]


PIPELINE = """
extern "C" __global__ void k(const float* a, float* b) {
  __shared__ __align__(128) float s[2][128]; __shared__ u64 full[2], empty[2];
  int t = threadIdx.x;
  if (t == 0) { for (int i = 0; i < 2; ++i) { init(&full[i], 1); init(&empty[i], 32); } }
  __syncthreads();
  if (t < 32) {
    if (t == 0) for (int i = 0; i < 6; ++i) {
      if (i >= 2) wait(&empty[i % 2], (i / 2 + 1) % 2);
      expect(&full[i % 2], 512); load_bytes(s[i % 2], a + 128 * i, 512, &full[i % 2]);
    }
  } else {
    float x = 0;
    for (int i = 0; i < 6; ++i) {
      wait(&full[i % 2], i / 2 % 2);
      x += s[i % 2][t]; for (int n = 0; n < 500; ++n) x = x * 0.5f + 1;
      arrive(&empty[i % 2]);
    }
    b[t] = x;
  }
}"""


def pipelined(source: str = PIPELINE) -> RecordedEvents:
    found = RecordedEvents()
    run_hopper(source, ARRAYS, ("A", "B"), block=(64, 1, 1), events=LaunchEvents(found, 0))
    return found


def test_a_producer_runs_as_far_ahead_as_its_stages_let_it() -> None:
    found = pipelined()
    events = only_block(found)
    copies = events.copies
    assert copies["kind"].tolist() == [BULK] * 6
    assert copies["sectors"].tolist() == [16] * 6
    issued, landed = copies["issued"].tolist(), copies["landed"].tolist()
    assert issued == sorted(issued) and landed == sorted(landed)
    assert all(0 <= begin <= end for begin, end in zip(issued, landed))
    # Two stages: the third copy goes out when the consumer has given the first one back, 500 rounds later.
    assert issued[1] - issued[0] < 100
    assert all(later - earlier > 500 for earlier, later in pairwise(issued[1:]))
    waits = events.waits[events.waits["kind"] == MBARRIER]
    assert (waits["warp"] == 0).sum() == 4 and (waits["warp"] == 1).sum() == 6
    producer = waits[waits["warp"] == 0]
    assert (producer["end"] - producer["begin"] > 400).all()
    # What it executes while it looks in vain takes no time, and what follows comes after the wait.
    for end, begin in zip(producer["end"], [*producer["begin"][1:], events.ends[0]]):
        assert 0 <= begin - end < 100


def test_who_has_waited_goes_on_from_there() -> None:
    slow = "volatile int n = 0; while (n < 1000) n = n + 1;"
    events = only_block(pipelined(PIPELINE.replace("if (t < 32) {", f"if (t < 32) {{ {slow}")))
    first, second = events.waits[(events.waits["warp"] == 1) & (events.waits["kind"] == MBARRIER)][:2]
    assert first["end"] - first["begin"] > 3000
    assert second["begin"] - first["end"] > 500  # the work on what it waited for


def test_shared_memory_is_seen_whenever_the_block_gets_on() -> None:
    found = pipelined()
    events = only_block(found)
    seen = found.shared[0]
    assert len(seen) == len(events.steps) == 1 + 6  # the barrier at the start, and each copy that lands
    stages = [contents.view(np.float32)[:256].reshape(2, 128) for contents in (c[:1024].copy() for c in seen)]
    for number in range(6):
        assert np.array_equal(stages[1 + number][number % 2], ARRAYS["A"][128 * number : 128 * (number + 1)])


def test_the_barrier_of_a_cluster() -> None:
    found = RecordedEvents()
    body = MEETING.replace("BODY", "  for (int i = 0; i < 1000 * r; ++i) s[t] = i; met(); y[i] = s[0];")
    run_hopper(
        body, {"Y": np.zeros(64, np.int32)}, ("Y",), grid=(2, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1),
        events=LaunchEvents(found, 0),
    )  # fmt: skip
    early, late = found.blocks[0][0], found.blocks[0][1]
    (wait,) = early.waits[early.waits["kind"] == CLUSTER]
    assert wait["end"] - wait["begin"] > 1000
    assert abs(late.end - early.end) < 50
    assert sorted(found.blocks[0]) == [0, 1] and found.launches[0].cluster == (2, 1, 1)


def test_the_same_on_any_number_of_cores() -> None:
    body = "int t = threadIdx.x, i = 64 * blockIdx.x + t; float x = a[i]; __syncthreads(); b[i] = x;"
    one, three = (recorded(body, 64, blocks=20, cores=cores) for cores in (1, 3))
    for number in range(20):
        for name in ("accesses", "waits", "ends", "steps"):
            assert np.array_equal(getattr(one.blocks[0][number], name), getattr(three.blocks[0][number], name))


def test_a_fault_ends_the_launch_without_its_end() -> None:
    found = RecordedEvents()
    with pytest.raises(KernelFault):
        run(
            cuda_source("const float* a, float* b", "b[1 << 20] = 1;"),
            ARRAYS,
            ("A", "B"),
            events=LaunchEvents(found, 0),
        )
    assert found.ended == 0


def test_what_the_listener_raises_is_not_lost() -> None:
    class Careless(RecordedEvents):
        def shared_memory(self, *arguments: Any) -> None:
            raise ValueError("careless")

    source = cuda_source("const float* a, float* b", "__syncthreads(); b[0] = a[0];")
    with pytest.raises(ValueError, match="careless"):
        run(source, ARRAYS, ("A", "B"), events=LaunchEvents(Careless(), 0))
