"""Programmatic dependent launch: what a launch may do before, and after, it has waited for those that it may overlap.

Each rule has launches that are right and some that are not (PTX ISA, griddepcontrol; CUDA C++ Programming Guide,
"Programmatic Dependent Launch and Synchronization").
"""

from __future__ import annotations

from pathlib import Path

import cupy
import numpy as np
import pytest

from harness import Device
from harness.device.module import Module
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.run_settings import RunSettings
from harness.model.discovery import discover
from harness.model.finding import Finding
from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem

SOURCE = r"""
__device__ float total;
__device__ void wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ void signal() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ void await(unsigned* flag) { while (!atomicAdd(flag, 0u)) __nanosleep(1); __threadfence(); }

extern "C" __global__ void copies(const float* from, float* to, int waits, int step) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  if (waits == 1 || (waits == 2 && threadIdx.x == 0) || (waits == 3 && blockIdx.x == 0)) wait();
  if (waits == 2) __syncthreads();
  signal();
  to[i] = from[i * step];
  if (waits == 4) wait();
}
extern "C" __global__ void sends(float* to, unsigned* flag) {
  to[threadIdx.x] = 1.f;
  __syncthreads();
  if (threadIdx.x == 0) { __threadfence(); atomicExch(flag, 1u); }
}
extern "C" __global__ void receives(const float* from, float* to, unsigned* flag, int waits, int relays) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  if (relays && blockIdx.x == 0) {
    if (waits) wait();
    __syncthreads();
    if (threadIdx.x == 0) { __threadfence(); atomicExch(flag, 1u); }
  } else {
    if (threadIdx.x == 0) await(flag);
    __syncthreads();
  }
  to[i] = from[i];
}
extern "C" __global__ void adds() { atomicAdd(&total, 1.f); }
extern "C" __global__ void tells(float* to) { *to = total; }
extern "C" __global__ void copies_bytes(const char* from, char* to) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  to[i] = from[i];
}
extern "C" __global__ void fetches(const float* from) {
  __shared__ __align__(16) float s[64];
  unsigned to = (unsigned)__cvta_generic_to_shared(s + threadIdx.x);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from + threadIdx.x) : "memory");
}
extern "C" __global__ void stores_in_bulk(float* to) {
  __shared__ __align__(16) float s[64];
  s[threadIdx.x] = 2.f;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256; cp.async.bulk.commit_group;"
      "cp.async.bulk.wait_group.read 0;" ::"l"(to), "r"((unsigned)__cvta_generic_to_shared(s)) : "memory");
}
"""
NEVER, ALL_WAIT, ONE_THREAD_WAITS, ONE_BLOCK_WAITS, TOO_LATE = range(5)
BLOCKS, THREADS = 4, 64
N = BLOCKS * THREADS


class Arrays:
    """Arrays a to e on a device that sanitizes, and what launches of a module do to them."""

    def __init__(self, module: Module, values: dict[str, np.ndarray], flag: np.ndarray) -> None:
        self.module, self.device = module, module.device
        self.by_name = {name: self.device.array(array, name=name) for name, array in values.items()}
        self.flag = self.device.array(flag, name="flag")

    def launch(self, kernel: str, *args: object, overlaps: bool = True, grid: int = BLOCKS) -> tuple[Finding, ...]:
        given = [self.by_name.get(each, each) if isinstance(each, str) else each for each in args]
        found = self.device.launch(self.module[kernel], grid, THREADS, given, overlaps_previous=overlaps).findings
        assert found is not None
        return found

    def copy(self, names: str, waits: int = NEVER, step: int = 1, overlaps: bool = True) -> set[tuple[str, str]]:
        """Copy the array of the first name to that of the second. Returns the kinds and targets of findings."""
        found = self.launch("copies", *names, np.int32(waits), np.int32(step), overlaps=overlaps)
        return kinds(found)


def kinds(found: tuple[Finding, ...]) -> set[tuple[str, str]]:
    return {(each.kind, str(each.target).rpartition(" ")[2]) for each in found}


@pytest.fixture(scope="module", params=[0, 3], ids=["in order", "shuffled"])
def module(request: pytest.FixtureRequest) -> Module:
    return Device(sanitize=True, seed=request.param).module(cupy.RawModule(code=SOURCE))


@pytest.fixture
def arrays(module: Module) -> Arrays:
    values = {name: np.full(N, number, np.float32) for number, name in enumerate("abcde")}
    return Arrays(module, values, np.zeros(1, np.uint32))


SECOND = {"bc": ("RAW race", "b"), "ca": ("WAR race", "a"), "cb": ("WAW race", "b")}
"""The second copy, and its race with a copy from a to b before it."""


@pytest.mark.parametrize("names", SECOND)
def test_accesses_of_a_launch_that_may_overlap_are_ordered_by_its_wait_alone(arrays: Arrays, names: str) -> None:
    def after(waits: int, overlaps: bool = True) -> set[tuple[str, str]]:
        assert arrays.copy("ab", overlaps=False) == set()
        return arrays.copy(names, waits, overlaps=overlaps)

    assert after(NEVER, overlaps=False) == set()
    assert after(NEVER) == after(TOO_LATE) == after(ONE_BLOCK_WAITS) == {SECOND[names]}
    assert after(ALL_WAIT) == after(ONE_THREAD_WAITS) == set()


def test_the_finding_names_both_kernels_and_lines(arrays: Arrays) -> None:
    arrays.launch("stores_in_bulk", "b", overlaps=False, grid=1)
    # What a bulk copy writes has landed by the end of its launch, not before.
    (found,) = arrays.launch("copies_bytes", "b", "c")
    assert (found.kind, found.kernel, found.target, found.count) == (*SECOND["bc"][:1], "copies_bytes", "buffer b", 256)
    assert found.place is not None and found.other is not None and found.other.line > found.place.line
    assert "of kernel stores_in_bulk, an earlier launch that may not have ended" in found.message
    assert "to[i] = from[i];" in found.message and "cp.async.bulk.wait_group.read 0;" in found.message
    assert "a griddepcontrol.wait has to come first" in found.message


def test_a_wait_covers_earlier_launches_if_those_between_waited(arrays: Arrays) -> None:
    for between, third in ((ALL_WAIT, ALL_WAIT), (ONE_BLOCK_WAITS, ONE_THREAD_WAITS)):
        arrays.copy("ab", overlaps=False)
        assert arrays.copy("cd", between) == set()
        assert arrays.copy("be", third) == set()
    arrays.copy("ab", overlaps=False)
    assert arrays.copy("cd", NEVER) == set()
    (found,) = arrays.launch("copies", *"be", np.int32(ALL_WAIT), np.int32(1))
    assert (found.kind, found.target) == ("RAW race", "buffer b")
    assert "waits only for the launches since copies, which has no such wait" in found.message
    # A launch that cannot overlap ends the chain.
    assert arrays.copy("bc", overlaps=False) == set()
    # The signal of a launch that has waited makes nothing visible to the next one.
    arrays.copy("ab", overlaps=False)
    arrays.copy("cd", ALL_WAIT)
    assert arrays.copy("be") == {("RAW race", "b")}


def test_the_first_of_several_launches_that_read_the_same_is_remembered(arrays: Arrays) -> None:
    def overwritten_after(*waits: int) -> set[tuple[str, str]]:
        arrays.copy("ab", step=0, overlaps=False)
        for name, each in zip("cd", waits):
            assert arrays.copy(f"a{name}", each, step=0) == set()
        return arrays.copy("ea", ALL_WAIT)

    assert overwritten_after(NEVER) == overwritten_after(NEVER, ALL_WAIT) == {("WAR race", "a")}
    assert overwritten_after(ALL_WAIT) == overwritten_after(ALL_WAIT, ALL_WAIT) == set()


def test_a_copy_that_its_launch_has_not_awaited_reads_until_that_ends(arrays: Arrays) -> None:
    for waits, expected in ((NEVER, {("WAR race", "a")}), (ALL_WAIT, set())):
        arrays.launch("fetches", "a", overlaps=False, grid=1)
        assert arrays.copy("ea", waits) == expected


def test_memory_that_the_host_touches_in_between_lets_the_launch_end(arrays: Arrays) -> None:
    arrays.copy("ab", overlaps=False)
    arrays.by_name["e"].numpy()
    assert arrays.copy("bc") == set()


def test_flags_order_launches_too(arrays: Arrays) -> None:
    arrays.launch("sends", "b", arrays.flag, overlaps=False, grid=1)
    args = ("b", "c", arrays.flag)
    assert arrays.launch("receives", *args, np.int32(0), np.int32(0)) == ()
    # A block that has waited passes that on; one that has not cannot.
    for waits, expected in ((1, set()), (0, {("RAW race", "b")})):
        arrays.flag[...] = 0
        arrays.copy("ab", overlaps=False)
        assert kinds(arrays.launch("receives", *args, np.int32(waits), np.int32(1))) == expected


def test_atomics_of_two_launches_do_not_race_and_a_plain_read_does(arrays: Arrays) -> None:
    arrays.launch("adds", overlaps=False)
    assert arrays.launch("adds") == ()
    assert kinds(arrays.launch("tells", "c", grid=1)) == {("RAW race", "total")}


def test_cells_of_another_size_keep_their_accesses(arrays: Arrays) -> None:
    arrays.launch("copies_bytes", "a", "b", overlaps=False, grid=4 * BLOCKS)
    assert arrays.copy("bc") == {("RAW race", "b")}
    assert kinds(arrays.launch("copies_bytes", "c", "d", grid=4 * BLOCKS)) == {("RAW race", "c")}
    assert arrays.copy("bc", ALL_WAIT) == {("RAW race", "b")}  # the two before did not wait


def test_launches_of_many_blocks(module: Module) -> None:
    blocks = 2049  # two launches have more than have a word each in a grid clock
    large = {name: np.full(THREADS * blocks, number, np.float32) for number, name in enumerate("abc")}
    arrays = Arrays(module, large, np.zeros(1, np.uint32))
    for waits, expected in ((ALL_WAIT, set()), (NEVER, {("RAW race", "b")})):
        args = np.int32(NEVER), np.int32(1)
        arrays.launch("copies", *"ab", *args, overlaps=False, grid=blocks)
        found = arrays.launch("copies", *"bc", np.int32(waits), np.int32(1), grid=blocks)
        assert kinds(found) == expected


def test_a_plan_says_which_launches_overlap_and_none_does_before_hopper() -> None:
    registry = discover([Path(__file__).parents[2] / "plugins" / "overlapping_launches.py"]).registry
    problem = Problem(heads=1, q_len=8, kv_len=40, head_dim=16)
    inputs = draw_inputs(problem, "normal", 0)

    def found(name: str, arch: str) -> set[tuple[str, str]]:
        variant = registry.get(name)
        sanitizer = EmulatorSanitizer(RunSettings(arch=arch), shuffled_runs=1)
        return kinds(sanitizer.check(variant, problem, variant.plan(problem), inputs))

    assert found("forgets-to-wait", "sm_90") == {("RAW race", "S")}
    assert found("begins-early", "sm_90") == found("begins-early", "sm_80") == set()
