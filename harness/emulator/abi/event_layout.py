"""What the runtime records of a block besides its requests, where somebody wants to know, and in which words.

An entry of the record is two words of 64 bits: a moment (see `memory/trace.py`), and what happened then. Of a request
that second word is, from the highest bit down, its instruction plus 1 (28 bits), line (29), kind (3) and sectors of the
line (4), which are never 0. Of everything else these are 0, and above them are what happened (4 bits) and a value (28).
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
"""A warp returns; arrives at a barrier (value: its number) without waiting; waits there; goes on; the same at an
mbarrier (value: its place) and at the barrier of its cluster; asks that all but the latest groups of copies (value: so
many) have landed; issues a copy (value: its number in the warp's queue), which lands; issues a bulk copy (value: its
number in the cluster's ring), which lands. The block as a whole gets on: all of its warps leave a barrier, or bulk
copies land."""

CLOCK_BYTES = 8
"""Of the latest arrival: at the barrier of the cluster; at each of the barriers of its blocks, `BARRIER_SLOTS` each; at
each 8 bytes of its shared memory, where there may be an mbarrier."""
