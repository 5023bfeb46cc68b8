"""The sanitizer on cluster launch control: responses race with accesses that no wait and no barrier orders."""

from __future__ import annotations

import numpy as np
import pytest

from harness.model.finding import Finding
from harness.support.errors import KernelFault
from tests.emulator.launch_control_kernels import PERSISTENT
from tests.emulator.sanitized_kernel import lines
from tests.emulator.tcgen05.blackwell_kernel import find_blackwell

REQUEST, READ = 8, 12
"""Lines of the kernel: the request for the next tile, and the load of its response."""


def findings(*changes: tuple[str, str], blocks: int = 1, seed: int = 0) -> tuple[Finding, ...]:
    """In the persistent kernel after these changes, with two warps, for ten tiles and three places."""
    source = PERSISTENT
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    arrays = {"x": np.ones(12, np.int32), "times": np.zeros(12, np.int32), "worker": np.zeros(12, np.int32)}
    shape = {"grid": (12, 1, 1), "block": (64, 1, 1), "cluster": None if blocks == 1 else (blocks, 1, 1)}
    args = ("x", "times", "worker")
    try:
        return find_blackwell(source, arrays, args, seed=seed, shuffle=seed > 0, resident=lambda: 3, **shape)
    except KernelFault as fault:
        return fault.findings


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_persistent_kernel_has_no_findings(seed: int, blocks: int) -> None:
    assert findings(seed=seed, blocks=blocks) == ()


def test_a_response_is_read_before_the_wait() -> None:
    """Such a load gives no response, which is a fault where it is decoded."""
    found = findings(("    wait(&bar, parity);", ""))
    assert ("RAW race", READ, REQUEST) in set(map(lines, found))
    assert (
        "load of 16 bytes at byte offset 0 of shared memory response at line 12 races with the response at line 8"
        in (found[0].message)
    )
    assert "still in flight: whoever uses it has to wait first at its mbarrier" in found[0].message


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_next_response_is_requested_while_warps_read_the_last(blocks: int) -> None:
    """The barrier is ahead of the load instead of behind it."""
    wait = "    wait(&bar, parity);"
    found = findings(
        (f"{wait}", f"{wait} MEET();"), ("    TO_ASYNC();\n    MEET();\n  }", "  }"), blocks=blocks, seed=1
    )
    assert {("WAR race", REQUEST, READ), ("RAW race", READ, REQUEST)} & set(map(lines, found)), found
    assert {kind for kind, *_ in map(lines, found)} <= {"WAR race", "RAW race"}


ISA_RELEASE = 'asm volatile("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;" ::: "memory");'
ISA_ACQUIRE = 'asm volatile("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");'
RELAXED = 'asm volatile("barrier.cluster.arrive.relaxed; barrier.cluster.wait;" ::: "memory");'


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_fences_of_the_isa_s_example_order_a_relaxed_barrier(blocks: int) -> None:
    """PTX ISA 9.7.13.17: one before the barrier releases the load of the response, one behind it acquires that."""
    given = "    TO_ASYNC();\n    MEET();\n  }"
    ordered = (given, f"    {ISA_RELEASE} {RELAXED} {ISA_ACQUIRE}\n  }}")
    assert [findings(ordered, blocks=blocks, seed=seed) for seed in range(3)] == [()] * 3
    bare = findings((given, f"    {RELAXED}\n  }}"), blocks=blocks, seed=1)
    assert ("WAR race", REQUEST, READ) in set(map(lines, bare))
