"""Variables of the module for Numba: what __device__ is to CUDA."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.cuda.extending import intrinsic

from variants._mma.numba_assembly import GLOBAL, U32, U64, assembly


# Where `count` uint32 lie in global memory that are 0 when the module is loaded, and stay what launches leave there. A
# kernel asks for them in one place.
@functools.cache
def module_variable(name: str, count: int = 1) -> Any:
    @intrinsic
    def variable_address(typing_context):
        def emit(context, builder, signature, arguments):
            kind = ir.ArrayType(ir.IntType(32), count)
            variable = ir.GlobalVariable(builder.module, kind, name, addrspace=GLOBAL)
            variable.initializer = ir.Constant(kind, None)
            variable.linkage = "internal"
            return builder.ptrtoint(variable, ir.IntType(64))

        return U64(), emit

    return variable_address


# What was there; it becomes one more, or 0 where it was `most` (PTX ISA: atom.inc).
@intrinsic
def atomic_increment(typing_context, at, most):
    return assembly("atom.global.inc.u32 $0, [$1], $2;", U32(U64, U32), ordered=True)
