"""Format of the events that the runtime records besides memory requests, if a listener is attached.

An entry consists of two 64-bit words: a moment (see `memory/trace.py`) and a description. For a memory request, the
description is, from the highest bit down: instruction + 1 (28 bits), line (29), kind (3) and mask of sectors (4), none
of which is 0. For all other events these are 0, and the bits above contain the event (4 bits) and a value (28).
"""

from __future__ import annotations

SITE_AT = 36
VALUE_AT = 8
VALUE_BITS = 28
CODE_AT = 4
CODE_BITS = 4

(
    ENDS,
    ARRIVES,
    WAITS_AT_BARRIER,
    LEAVES_BARRIER,
    WAITS_AT_MBARRIER,
    LEAVES_MBARRIER,
    WAITS_FOR_CLUSTER,
    LEAVES_CLUSTER_BARRIER,
    WAITS_FOR_COPIES,
    ISSUES_COPY,
    COPY_LANDS,
    ISSUES_BULK_COPY,
    BULK_COPY_LANDS,
    STEP,
) = range(14)
"""Events of a warp, with their value: returns; arrives at a barrier (its number) without waiting; waits there; resumes;
the same at an mbarrier (its place) and at the cluster barrier; waits for all but the latest groups of copies (their
number); issues a copy (its number in the warp's queue), which lands; issues a bulk copy (its number in the cluster's
ring), which lands. Event of the whole block: it advances, because all of its warps leave a barrier or bulk copies
land."""

CLOCK_BYTES = 8
"""Size of a clock, which holds the time of the latest arrival. There is one for the cluster barrier, one for each of
the blocks' barriers (`BARRIER_SLOTS` per block), and one for each 8 bytes of shared memory, where there may be an
mbarrier."""
