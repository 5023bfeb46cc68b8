"""The text of `wgmma` for a tile's sizes: how many registers an instruction names depends on its columns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

KINDS = {"float16": "f16", "bfloat16": "bf16"}
"""Names of element types in instructions."""


def products(keys: int, head_dim: int, dtype: str, begins: str) -> str:
    """The CUDA functions of S = Q K^T over 16 elements, for so many keys, and of O += P V over 16 keys.

    `multiply(S, Q, K)` begins a sum, `multiply_add(S, Q, K)` adds to it; `multiply_add(O, P, V)` adds to O. `begins`:
    see `_products`.
    Of 64 rows, warp w has those from 16 w on. A lane has, with g = t / 4 and q = t % 4, sums 4 j and 4 j + 1 of row g,
    columns 8 j + 2 q and the next; 4 j + 2 and 4 j + 3 are row g + 8's.
    """
    # V lies as it is, so it is transposed by the product.
    return _products(keys, head_dim, 16, KINDS[dtype], along=", 0, 0", across=", 1", begins=begins)


def products_of_e4m3(keys: int, head_dim: int) -> str:
    """The CUDA functions of `products` in e4m3, over 32 elements and 32 keys; V is stored transposed."""
    return _products(keys, head_dim, 32, "e4m3", along="", across="", begins="+f")


def _products(keys: int, head_dim: int, depth: int, kind: str, along: str, across: str, begins: str) -> str:
    """Return the text.

    `along` and `across`: operands that say whether factors are transposed, which only products of 16 bits have.
    `begins`: constraint of S where a sum begins. S is only written, but with "+f" ptxas orders the softmax after it
    otherwise than with "=f": it releases K and V early in it, not late. Some kernels spill with either.
    """
    S, s = keys // 2, _numbers(0, keys // 2)
    O, o = head_dim // 2, _numbers(0, head_dim // 2)
    return f"""{_line(_products)}
// S = A B, over {depth} elements: A is 64 rows, B as many columns as there are keys, both in shared memory.
__device__ __forceinline__ void multiply(float (&S)[{S}], u64 a, u64 b)
{{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{keys}k{depth}.f32.{kind}.{kind} "
                 "{{{s}}}, %{S}, %{S + 1}, 0, 1, 1{along};\\n"
                 : {_outputs("S", S, begins)}
                 : "l"(a), "l"(b));
}}

// S += A B.
__device__ __forceinline__ void multiply_add(float (&S)[{S}], u64 a, u64 b)
{{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{keys}k{depth}.f32.{kind}.{kind} "
                 "{{{s}}}, %{S}, %{S + 1}, 1, 1, 1{along};\\n"
                 : {_outputs("S", S)}
                 : "l"(a), "l"(b));
}}

// O += A B, over {depth} keys: A is in registers, 64 rows in the layout of S.
__device__ __forceinline__ void multiply_add(float (&O)[{O}], const unsigned *a, u64 b)
{{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{head_dim}k{depth}.f32.{kind}.{kind} "
                 "{{{o}}}, {{{_numbers(O, 4)}}}, %{O + 4}, 1, 1, 1{across};\\n"
                 : {_outputs("O", O)}
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}}
"""


def products_across(columns: int, dtype: str) -> str:
    """The CUDA functions of X = A B over 16 rows of each of two tiles, in shared memory, with so many columns of B.

    `multiply_across(X, A, B)` begins a sum, `multiply_add_across(X, A, B)` adds to it.
    """
    X, x, kind = columns // 2, _numbers(0, columns // 2), KINDS[dtype]

    def function(name: str, adds: int, constraint: str) -> str:
        return f"""
__device__ __forceinline__ void {name}(float (&X)[{X}], u64 a, u64 b)
{{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
                 "{{{x}}}, %{X}, %{X + 1}, {adds}, 1, 1, 1, 1;\\n"
                 : {_outputs("X", X, constraint)}
                 : "l"(a), "l"(b));
}}
"""

    return f"""{_line(products_across)}
// X = A B and X += A B, over 16 rows of tiles in shared memory: of both, columns are transposed by the product.
{function("multiply_across", 0, "=f")}{function("multiply_add_across", 1, "+f")}"""


def products_of_registers(columns: int, dtype: str) -> str:
    """The CUDA functions of X = A B over 16 elements, with A in registers and so many rows of B, its columns.

    `multiply_kept(X, A, B)` begins a sum, `multiply_add_kept(X, A, B)` adds to it.
    """
    X, x, kind = columns // 2, _numbers(0, columns // 2), KINDS[dtype]

    def function(name: str, adds: int, constraint: str) -> str:
        return f"""
__device__ __forceinline__ void {name}(float (&X)[{X}], const unsigned *a, u64 b)
{{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
                 "{{{x}}}, {{{_numbers(X, 4)}}}, %{X + 4}, {adds}, 1, 1, 0;\\n"
                 : {_outputs("X", X, constraint)}
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}}
"""

    return f"""{_line(products_of_registers)}
// X = A B and X += A B, over 16 elements: A is in registers, 64 rows in the layout of S, B in shared memory.
{function("multiply_kept", 0, "=f")}{function("multiply_add_kept", 1, "+f")}"""


@functools.cache
def _line(function: Callable[..., str]) -> str:
    """The `#line` of a function's text, which so has a place, and the same one in whatever folder one works."""
    lines, first = inspect.getsourcelines(function)
    begins = next(number for number, line in enumerate(lines) if line.endswith(f'"""{{_line({function.__name__})}}\n'))
    return f'#line {first + begins + 1} "variants/_hopper/products.py"'


def _numbers(first: int, count: int) -> str:
    return ", ".join(f"%{first + i}" for i in range(count))


def _outputs(name: str, count: int, constraint: str = "+f") -> str:
    return ", ".join(f'"{constraint}"({name}[{i}])' for i in range(count))
