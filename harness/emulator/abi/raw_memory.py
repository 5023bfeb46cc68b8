"""Loads and stores at plain integer addresses, for the parts of the emulator that Numba compiles."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _loader(bits: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(types.int64), codegen

    return load


def _storer(bits: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            value = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
            builder.store(value, pointer)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return store


load8, load16, load32, load64 = (_loader(bits) for bits in (8, 16, 32, 64))
store8, store16, store32, store64 = (_storer(bits) for bits in (8, 16, 32, 64))


@intrinsic  # type: ignore[untyped-decorator]
def fill_ones(typingctx: Any, address: Any, count: Any) -> Any:
    """Set `count` bytes to 0xFF, which is NaN in every floating-point type."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        cgutils.memset(builder, pointer, args[1], 0xFF)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen
