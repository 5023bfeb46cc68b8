"""Tiles in the shared memory that a launch asks for, beyond what a kernel may declare: extern __shared__ in CUDA."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

from variants._mma.numba_assembly import SHARED

_NAME = "dynamic_shared_floats"
_BYTES = 4


@functools.cache
def shared_tile(first: int, rows: int, columns: int) -> Any:
    """A device function that gives rows x columns floats as an array, from float `first` of that memory on.

    What Numba gives itself, cuda.shared.array(0, ...), is one array of one dimension.
    """
    kind = types.Array(types.float32, 2, "C")

    @intrinsic
    def tile(typing_context):
        def emit(context, builder, signature, arguments):
            memory = builder.module.globals.get(_NAME)
            if memory is None:
                memory = cgutils.add_global_variable(builder.module, ir.ArrayType(ir.FloatType(), 0), _NAME, SHARED)
                memory.align, memory.linkage = 16, "external"
            floats = builder.addrspacecast(memory, ir.PointerType(ir.FloatType()), "generic")
            number = functools.partial(context.get_constant, types.intp)
            array = context.make_array(kind)(context, builder)
            context.populate_array(
                array,
                data=builder.gep(floats, [number(first)], inbounds=True),
                shape=[number(rows), number(columns)],
                strides=[number(columns * _BYTES), number(_BYTES)],
                itemsize=number(_BYTES),
                meminfo=None,
            )
            return array._getvalue()

        return kind(), emit

    return tile
