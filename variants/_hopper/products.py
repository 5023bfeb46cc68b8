"""The text of `wgmma` for a tile's sizes: how many registers an instruction names depends on its columns."""

from __future__ import annotations


def products(keys: int, head_dim: int) -> str:
    """The CUDA functions of S = Q K^T over 16 elements, for so many keys, and of O += P V over 16 keys.

    `multiply(S, Q, K, false)` begins a sum, `multiply(S, Q, K, true)` adds to it; `multiply_add(O, P, V)` adds to O.
    Of 64 rows, warp w has those from 16 w on. A lane has, with g = t / 4 and q = t % 4, sums 4 j and 4 j + 1 of row g,
    columns 8 j + 2 q and the next; 4 j + 2 and 4 j + 3 are row g + 8's.
    """
    S, s = keys // 2, _numbers(0, keys // 2)
    O, o = head_dim // 2, _numbers(0, head_dim // 2)
    return f"""
// S = A B or S += A B, over 16 elements: A is 64 rows, B as many columns as there are keys, both in shared memory.
__device__ __forceinline__ void multiply(float (&S)[{S}], u64 a, u64 b, bool adds)
{{
    asm volatile("{{\\n"
                 ".reg .pred adds;\\n"
                 "setp.ne.b32 adds, %{S + 2}, 0;\\n"
                 "wgmma.mma_async.sync.aligned.m64n{keys}k16.f32." MMA_TYPE "." MMA_TYPE " "
                 "{{{s}}}, %{S}, %{S + 1}, adds, 1, 1, 0, 0;\\n"
                 "}}\\n"
                 : {_outputs("S", S)}
                 : "l"(a), "l"(b), "r"((int)adds));
}}

// O += A B, over 16 keys: A is in registers, 64 rows in the layout of S, B is transposed.
__device__ __forceinline__ void multiply_add(float (&O)[{O}], const unsigned *a, u64 b)
{{
    asm volatile("wgmma.mma_async.sync.aligned.m64n{head_dim}k16.f32." MMA_TYPE "." MMA_TYPE " "
                 "{{{o}}}, {{{_numbers(O, 4)}}}, %{O + 4}, 1, 1, 1, 1;\\n"
                 : {_outputs("O", O)}
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}}
"""


def _numbers(first: int, count: int) -> str:
    return ", ".join(f"%{first + i}" for i in range(count))


def _outputs(name: str, count: int) -> str:
    return ", ".join(f'"+f"({name}[{i}])' for i in range(count))
