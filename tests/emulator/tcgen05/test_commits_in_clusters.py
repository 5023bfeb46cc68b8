"""tcgen05.commit to the mbarriers of several blocks, and what a pair of blocks has to do together.

PTX ISA, sections 9.7.16.5, 9.7.16.7 and 9.7.16.12.
"""

from __future__ import annotations

import re

import numpy as np
from planted_kernel import SUM, fault_of, values_of

PAIR = "if (w == 0) ALLOC(2, &place, 64); ALL(); MEET();"
FREE = "ALL(); MEET(); if (w == 0) DEALLOC(2, base, 64);"
READY = "MEET();\n"


def test_a_commit_reaches_the_blocks_of_its_mask():
    """Blocks 1 and 3 wait for the commit of block 0, at the same offset of their own shared memory; 2 does not."""
    body = (
        READY
        + """if (t == 0 && b == 0) { PRODUCT(0); TRACK_IN(1, &bar, 0xb); }
if (b != 2) wait(&bar, 0); else wait(&bar, 1);
AFTER();
if (b == 0) READ(0) else out[128 * b + t] = __float_as_uint(look(&bar, 0) ? 1.f : 0.f);
MEET();"""
    )
    found = values_of(body, blocks=4, cluster=(4, 1, 1))
    assert np.array_equal(found[:, 0], [SUM, 1, 0, 1])


def test_a_commit_to_an_mbarrier_of_another_block():
    """By its address in the cluster; block 0 knows of its own commit only."""
    body = (
        READY
        + """if (t == 0 && b == 0) { PRODUCT(0); u32 far;
asm volatile("mapa.shared::cluster.u32 %0, %1, 1;" : "=r"(far) : "r"(place_of(&bar)));
asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(far) : "memory");
asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%0];" :: "l"(&bar) : "memory"); }
wait(&bar, 0); AFTER();
if (b == 0) READ(0) else out[128 * b + t] = __float_as_uint(2.f);
MEET();"""
    )
    assert np.array_equal(values_of(body, blocks=2, cluster=(2, 1, 1))[:, 5], [SUM, 2])


PAIRED = """if (t == 0 && b == 0) { MMA(2, f16, base, DESCRIBED(s), DESCRIBED(s + 1024), 0x10080010u, 0); COMMITTED }
wait(&bar, 0); AFTER();
READ(5);"""
"""M is 256, N is 32."""


def test_a_pair_multiplies():
    """One thread of the first block issues for both, and its commit reaches both."""
    body = PAIRED.replace("COMMITTED", "TRACK_IN(2, &bar, 3);")
    assert (values_of(body, PAIR, FREE, blocks=2, cluster=(2, 1, 1)) == SUM).all()


def test_two_pairs_of_a_cluster():
    """Blocks 2 and 3 are a pair, too; each pair has an mbarrier of its own."""
    body = PAIRED.replace("b == 0", "b % 2 == 0").replace("COMMITTED", "TRACK_IN(2, &bar, 3 << b);")
    found = values_of(body, PAIR, FREE, blocks=4, cluster=(4, 1, 1))
    assert (found == SUM).all()


def test_a_pair_of_which_one_is_not_told():
    """Without a multicast the second block waits for ever: its line is named."""
    body = PAIRED.replace("COMMITTED", "TRACK(2, &bar);")
    told = fault_of(body, start=PAIR, end=FREE, blocks=2, cluster=(2, 1, 1))
    assert "planted.cu:3" in told and "block (1, 0, 0)" in told, told


def test_a_pair_allocates_together():
    """One block alone waits for the other, which is at the barrier."""
    start = "if (w == 0 && b == 0) {\n#line 50\n ALLOC(2, &place, 64); } ALL(); MEET();"
    told = fault_of("READ(0);", start=start, end=FREE, blocks=2, cluster=(2, 1, 1))
    assert re.search("alloc", told) and "planted.cu:50" in told, told


def test_a_pair_needs_a_cluster():
    """A block without a peer cannot allocate for a pair."""
    told = fault_of(
        "READ(0);", start="if (w == 0) ALLOC(2, &place, 64); ALL();", end="if (w == 0) DEALLOC(2, base, 64);"
    )
    assert re.search("cluster|pair|peer", told), told
