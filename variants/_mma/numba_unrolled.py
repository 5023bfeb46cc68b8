"""Loops that are unrolled whatever their size: what #pragma unroll is to CUDA.

A local array stays in registers only while every index of it is a constant. libNVVM unrolls loops of constant length by
itself, but not beyond a size that it chooses; one loop left, and the arrays that it indexes are in memory.
"""

from __future__ import annotations

from typing import Any

from numba import cuda
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic


def unrolled(count: int, body: Any) -> Any:
    """A function of some arguments that calls body(0, *arguments) to body(count - 1, *arguments).

    `body` is a device function. Numba compiles it once; the calls are written into the LLVM IR.
    """

    @intrinsic
    def call_in_turn(typing_context, arguments):
        function = typing_context.resolve_value_type(body)
        call = function.get_call_type(typing_context, (types.int64, *arguments), {})

        def emit(context, builder, signature, values):
            callee = context.get_function(function, call)
            for step in range(count):
                callee(builder, [context.get_constant(types.int64, step), *cgutils.unpack_tuple(builder, values[0])])
            return context.get_dummy_value()

        return types.void(arguments), emit

    @cuda.jit(device=True, forceinline=True)
    def steps(*arguments):
        call_in_turn(arguments)

    return steps
