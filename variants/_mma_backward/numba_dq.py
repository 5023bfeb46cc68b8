"""dQ where blocks sum it in memory, in float32, in fragments of C: 16 rows and 8 columns are 128 floats, of which a
warp adds all at once.

The CUDA twin is dq_fragments.cuh. Where a request has up to 16 bytes of a lane (sm_90), its four floats lie side by
side; else c0 of all lanes, then c1, c2 and c3.
"""

from __future__ import annotations

from numba import cuda, int32, uint32, uint64
from numba.cuda import libdevice, types
from numba.cuda.extending import intrinsic

from variants._mma.numba_assembly import F32, I32, U64, assembly, capability
from variants._mma.numba_mma import C_FRAGMENT, load_global

FRAGMENT = 128
FLOAT_BYTES = 4
LINE_BYTES = 128  # of the floats of a lane, where they do not lie side by side
load_number, load_numbers = load_global(4), load_global(16)


# How many floats of a lane lie side by side: 4 or 1.
@intrinsic
def floats_together(typing_context):
    def emit(context, builder, signature, arguments):
        return context.get_constant(I32, 4 if capability() >= 90 else 1)

    return I32(), emit


# Atomically, and what was there is not asked for (PTX ISA: red; .v4 of sm_90).
@intrinsic
def add_together(typing_context, to, c):
    return assembly("red.global.add.v4.f32 [$0], {$1, $2, $3, $4};", types.void(U64, C_FRAGMENT), ordered=True)


@intrinsic
def add_one(typing_context, to, addend):
    return assembly("red.global.add.f32 [$0], $1;", types.void(U64, F32), ordered=True)


# From a fragment to the lane's first float.
@cuda.jit(device=True, forceinline=True)
def to_lane(lane):
    return uint64(uint32(uint32(lane) * uint32(floats_together()) * uint32(FLOAT_BYTES)))


# dQ += C, of one fragment; `to` is the lane's first float.
@cuda.jit(device=True, forceinline=True)
def add_fragment(to, c):
    if floats_together() == 4:
        add_together(to, c)
    else:
        add_one(to, c[0])
        add_one(to + uint64(LINE_BYTES), c[1])
        add_one(to + uint64(2 * LINE_BYTES), c[2])
        add_one(to + uint64(3 * LINE_BYTES), c[3])


@cuda.jit(device=True, forceinline=True)
def as_float(word):
    return libdevice.int_as_float(int32(word))


# C of a fragment; `at` is the lane's first float.
@cuda.jit(device=True, forceinline=True)
def load_fragment(at):
    if floats_together() == 4:
        c0, c1, c2, c3 = load_numbers(at)
    else:
        c0, c1 = load_number(at), load_number(at + uint64(LINE_BYTES))
        c2, c3 = load_number(at + uint64(2 * LINE_BYTES)), load_number(at + uint64(3 * LINE_BYTES))
    return as_float(c0), as_float(c1), as_float(c2), as_float(c3)
