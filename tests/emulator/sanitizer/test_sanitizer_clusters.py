"""The sanitizer between the blocks of a cluster: what orders them, what does not, and how long a block is there."""

from __future__ import annotations

import re

import cupy
import numpy as np
import pytest

from harness.emulator.abi import layout as at
from harness.emulator.launch.tensor_maps import encode
from harness.model.finding import Finding
from harness.support.errors import KernelFault
from tests.emulator.cluster_kernels import MATRIX, MEETING, PRODUCT, TILE, product_arguments
from tests.emulator.hopper_kernel import HEAD
from tests.emulator.sanitized_kernel import find


def meeting(body: str, seed: int = 0, blocks: int = 2) -> tuple[Finding, ...]:
    """The findings in a kernel of 64 threads a block, two clusters; its body begins at planted.cu:7."""
    source = MEETING.replace("volatile ", "").replace("BODY", body)
    kernel = cupy.RawKernel(HEAD + source, "k", options=("-arch=sm_90a",))
    y = {"Y": np.zeros(2 * blocks * 64, np.int32)}
    shape = {"grid": (2 * blocks, 1, 1), "block": (64, 1, 1), "cluster": (blocks, 1, 1)}
    return find(kernel, y, ("Y",), seed=seed, shuffle=seed > 0, **shape)


RELAXED = 'asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); wait();'
FENCE = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "body",
    [
        "s[t] = t; met(); y[i] = s_of(1 - r)[t]; met();",
        "s[t] = 0; met(); s_of(1 - r)[t] = t; met(); y[i] = s[t];",
        # What a warp learns at the cluster's barrier, its block learns at its own.
        "s[t] = 0; met(); s_of(1 - r)[t] = t; arrive(); wait(); __syncthreads(); y[i] = s[63 - t];",
        f"s[t] = 0; met(); s_of(1 - r)[t] = t; {FENCE} {RELAXED} y[i] = s[t];",
        "s[t] = 0; met(); atomicAdd((int*)s_of(1 - r), t); met(); y[i] = s[0];",
        # Blocks meet without having done anything to each other, and only then look.
        f"{RELAXED} s_of(1 - r)[t] = t; met(); y[i] = s[t];",
    ],
)
def test_what_a_barrier_of_the_cluster_orders_is_no_race(body: str, seed: int) -> None:
    assert not meeting(body, seed)


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    ("body", "kinds", "told"),
    [
        (
            "s[t] = 0; met();\ns_of(1 - r)[t] = t;\n__syncthreads();\ny[i] = s[t]; met();",
            {"RAW race"},
            r"load of 4 bytes at byte offset 0 of shared memory s at line 10 races with the store at line 8;",
        ),
        (
            "s[t] = 0; met();\ny[i] = s_of(1 - r)[t];\ns[t] = 5;\nmet();",
            {"RAW race", "WAR race"},
            r"of shared memory s of block \(\d, 0, 0\) at line 8 races with the store at line 9; "
            "blocks of a cluster are ordered by its barrier",
        ),
        (
            f"s[t] = 0; met(); s_of(1 - r)[t] = t; {RELAXED} y[i] = s[t]; met();",
            {"RAW race"},
            "blocks of a cluster are ordered by its barrier",
        ),
        (
            "met(); y[i] = s_of(1 - r)[t]; met();",
            {"uninitialised read"},
            r"shared memory s of block \(\d, 0, 0\), to which noth",
        ),
    ],
)
def test_races_between_blocks(body: str, kinds: set[str], told: str, seed: int) -> None:
    findings = meeting(body, seed)
    assert {finding.kind for finding in findings} == kinds
    assert any(re.search(told, finding.message) for finding in findings), findings[0].message


@pytest.mark.parametrize("seed", [0, 5])
def test_who_reaches_for_a_block_has_to_know_that_it_has_started(seed: int) -> None:
    findings = meeting("y[i] = 0;\natomicExch((int*)s_of(1 - r) + t, t);\nmet();", seed)
    (early,) = [finding for finding in findings if finding.kind == "block not started"]
    assert "planted.cu:8 " in early.message and "which may not have started yet" in early.message


LAST_READER = "s[t] = t; met();\nif (r == 0) y[i] = s_of(1)[t];\nif (LATER) arrive(); if (r == 1) wait();\n"


def test_a_block_stays_until_nobody_needs_its_shared_memory() -> None:
    """The first block runs first, so that it finds the second one there; on a GPU that may be gone by then."""
    (found, *others) = meeting(LAST_READER.replace("if (LATER) arrive(); if (r == 1) wait();", ""))
    assert not others and found.kind == "early exit" and found.place is not None and found.place.line == 8
    assert "shared memory s of block (1, 0, 0), which may have ended by then at " in found.message
    assert found.other is not None and found.other.line == 11 and found.other.block == (1, 0, 0)
    # Who arrives need not wait; who is read from has to.
    assert not meeting(LAST_READER.replace("LATER", "true"))


COPIED = """__shared__ u64 bar; __shared__ __align__(16) int d[64];
if (t == 0) { init(&bar, 1); expect(&bar, 256); } s[t] = t; FENCE met();
if (t == 0) copy_to_block(d, s, 256, &bar, 1 - r);
EARLY wait_cluster(&bar, 0);
y[i] = d[t]; met(); s[t] = 1;"""
PROXY_FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'


@pytest.mark.parametrize(
    ("fence", "early", "kinds", "told"),
    [
        (PROXY_FENCE, "", set(), ""),
        ("", "", {"missing proxy fence"}, "planted.cu:9 .*has not seen the store at .*planted.cu:8 "),
        (
            PROXY_FENCE,
            "y[i] = d[t];",
            {"RAW race"},
            "at line 10 .*that is still in flight: whoever uses it has to wait",
        ),
        (PROXY_FENCE, "s[t] = 5;", {"WAR race"}, "at line 10 .*that is still in flight"),
    ],
)
def test_a_copy_to_another_block(fence: str, early: str, kinds: set[str], told: str) -> None:
    """It reads by the asynchronous proxy, and is under way until the phase of its mbarrier is over."""
    findings = meeting(COPIED.replace("FENCE", fence).replace("EARLY", early))
    found = {finding.kind for finding in findings}
    assert kinds <= found and bool(kinds) == bool(found)
    assert not kinds or any(re.search(told, finding.message) for finding in findings), findings[0].message


SENT = """__shared__ u64 bar; __shared__ int d[64];
if (t == 0) { init(&bar, 1); expect(&bar, 256); } d[t] = 1; met();
asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
  :: "r"(place_in(d + t, 1 - r)), "r"(t), "r"(place_in(&bar, 1 - r)) : "memory");
WAIT_HERE y[i] = d[63 - t]; met();"""


def test_a_value_that_is_sent() -> None:
    assert not meeting(SENT.replace("WAIT_HERE", "wait_cluster(&bar, 0);"))
    assert {finding.kind for finding in meeting(SENT.replace("WAIT_HERE", ""))} == {
        "RAW race",
        "WAR race",
        "early exit",
    }


FLAGGED = """__shared__ u64 bar; if (t == 0) init(&bar, COUNT); s[t] = 0; met();
if (t < 32) {
s_of(1 - r)[t] = t; MEET if (t % 32 < COUNT) arrive_at(&bar, 1 - r);
wait_cluster(&bar, 0); y[i] = s[t];
} met();"""


@pytest.mark.parametrize(
    ("count", "meet", "kinds"), [("1", "", {"RAW race"}), ("1", "__syncwarp();", set()), ("32", "", set())]
)
def test_a_lane_that_arrives_at_another_block_speaks_for_lanes_that_it_has_met(
    count: str, meet: str, kinds: set[str]
) -> None:
    findings = meeting(FLAGGED.replace("COUNT", count).replace("MEET", meet))
    assert {finding.kind for finding in findings} == kinds


def product(*changes: tuple[str, str], seed: int = 0) -> set[str]:
    """Kinds of what is found in the product of matrices, with some of its text exchanged."""
    source = PRODUCT
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    arrays, maps, _ = product_arguments()
    args = tuple(encode(each, at.buffer_address(list(arrays).index(each.buffer))) for each in maps)
    kernel = cupy.RawKernel(HEAD + source, "k", options=("-arch=sm_90a",))
    shape = {"grid": (MATRIX // TILE,) * 2 + (1,), "block": (TILE * TILE, 1, 1), "cluster": (2, 2, 1)}
    findings = find(kernel, arrays, (*args, "C"), "C", seed=seed, shuffle=seed > 0, **shape)
    return {finding.kind for finding in findings}


@pytest.mark.parametrize("seed", [0, 2])
def test_a_pipeline_of_multicasts_is_clean(seed: int) -> None:
    assert product(seed=seed) == set()


MEET = "ARRIVE(); WAIT();\n  // Blocks of my row"


def test_mistakes_in_a_pipeline_of_multicasts() -> None:
    """Others still read what a tile is written over; nobody knows that the mbarriers of others are initialised."""
    assert "WAR race" in product(("if (i > 1) wait_cluster(empty + s, phase ^ 1);", ""))
    relaxed = (MEET, MEET.replace("ARRIVE();", 'asm volatile("barrier.cluster.arrive.relaxed.aligned;");'))
    assert product(relaxed) == set()
    fence = ('asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");', "")
    assert "RAW race" in product(relaxed, fence)


def test_the_last_arrivals_come_to_blocks_that_have_ended() -> None:
    with pytest.raises(
        KernelFault, match=r"atomic at byte offset 4,120 of shared memory of block .*, which has ended at"
    ):
        product(("= sum;\n  ARRIVE(); WAIT();", "= sum;"))
