"""Products of four warps for a tile's sizes (PTX ISA: wgmma). The CUDA twin is products.py: same names, same order."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba.cuda import types
from numba.cuda.extending import intrinsic

from variants._hopper.products import KINDS
from variants._mma.numba_assembly import U32, U64, assembly_in_place


@functools.cache
def numba_products(keys: int, head_dim: int, dtype: str) -> SimpleNamespace:
    """Products for so many keys and rows of `head_dim` elements."""
    KIND, SUMS_OF_KEYS, SUMS_OF_ROWS = KINDS[dtype], keys // 2, head_dim // 2

    # Of 64 rows, warp w has those from 16 w on. A lane has, with g = t / 4 and q = t % 4, sums 4 j and 4 j + 1 of row
    # g, columns 8 j + 2 q and the next; 4 j + 2 and 4 j + 3 are row g + 8's.

    def along(adds: int) -> str:
        return _of_tiles(keys, KIND, adds, "0, 0")

    # S = A B, over 16 elements: A is 64 rows, B as many columns as there are keys, both in shared memory.
    @intrinsic
    def multiply(typing_context, S, a, b):
        return assembly_in_place(along(0), SUMS_OF_KEYS, types.void(S, U64, U64), overwrites=True)

    # S += A B.
    @intrinsic
    def multiply_add_along(typing_context, S, a, b):
        return assembly_in_place(along(1), SUMS_OF_KEYS, types.void(S, U64, U64))

    # O += A B, over 16 keys: A is in registers, 64 rows in the layout of S, B is transposed.
    @intrinsic
    def multiply_add(typing_context, O, a, b):
        n = SUMS_OF_ROWS
        ptx = (
            f"wgmma.mma_async.sync.aligned.m64n{head_dim}k16.f32.{KIND}.{KIND} "
            f"{{{_numbers(0, n)}}}, {{{_numbers(n, 4)}}}, ${n + 4}, 1, 1, 1, 1;"
        )
        return assembly_in_place(ptx, n, types.void(O, types.UniTuple(U32, 4), U64))

    return SimpleNamespace(multiply=multiply, multiply_add_along=multiply_add_along, multiply_add=multiply_add)


@functools.cache
def numba_products_across(columns: int, dtype: str) -> SimpleNamespace:
    """Products over 16 rows of each of two tiles, in shared memory, with so many columns of the second."""
    KIND, SUMS = KINDS[dtype], columns // 2

    # Of both factors, columns are transposed by the product.
    def across(adds: int) -> str:
        return _of_tiles(columns, KIND, adds, "1, 1")

    # X = A B.
    @intrinsic
    def multiply_across(typing_context, X, a, b):
        return assembly_in_place(across(0), SUMS, types.void(X, U64, U64), overwrites=True)

    # X += A B.
    @intrinsic
    def multiply_add_across(typing_context, X, a, b):
        return assembly_in_place(across(1), SUMS, types.void(X, U64, U64))

    return SimpleNamespace(multiply_across=multiply_across, multiply_add_across=multiply_add_across)


def _of_tiles(columns: int, kind: str, adds: int, transposed: str) -> str:
    """The product of two tiles in shared memory over 16 elements, begun or added."""
    n = columns // 2
    product = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
    return f"""{{
    .reg .pred adds;
    setp.ne.b32 adds, {adds}, 0;
    {product} {{{_numbers(0, n)}}}, ${n}, ${n + 1}, adds, 1, 1, {transposed};
    }}"""


def _numbers(first: int, count: int) -> str:
    return ", ".join(f"${first + i}" for i in range(count))
