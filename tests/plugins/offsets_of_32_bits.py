"""Right kernels but for offsets of 32 bits: of a head in CUDA and in Numba, of a page, and one that has none of these.

Each works for the sizes of any test that allocates its tensors.
"""

from __future__ import annotations

import cupy
import numpy as np
from numba import cuda, int32, uint32
from numba.cuda import libdevice

from harness import Launch, PagedProblem, Plan, Problem, Variant

ROW = r"""
__device__ void attend_row(const float* q, const float* k, const float* v, float* o, int keys, float tau)
{
    float m = __int_as_float(0xff800000), l = 0.0f;
    for (int c = 0; c < D; ++c) o[c] = 0.0f;
    for (int j = 0; j < keys; ++j, k += D, v += D) {
        float s = 0.0f;
        for (int c = 0; c < D; ++c) s += q[c] * k[c];
        float m_new = fmaxf(m, tau * s), alpha = expf(m - m_new), p = expf(tau * s - m_new);
        l = alpha * l + p;
        for (int c = 0; c < D; ++c) o[c] = alpha * o[c] + p * v[c];
        m = m_new;
    }
    for (int c = 0; c < D; ++c) o[c] /= l;
}
"""

HEADS = r"""
extern "C" __global__ void rows_of_heads(const float* Q, const float* K, const float* V, float* O,
                                         int q_len, int kv_len, int group, float tau)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= q_len) return;
    const OFFSET head = blockIdx.y, first_row = (head * q_len + row) * D, first_key = head / group * kv_len * D;
    attend_row(Q + first_row, K + first_key, V + first_key, O + first_row, kv_len, tau);
}
"""

PAGES = r"""
extern "C" __global__ void rows_of_pages(const float* Q, const float* K, const float* V, const int* table,
                                         const int* lengths, float* O, int heads, int kv_heads, int places, float tau)
{
    const int sequence = blockIdx.x, head = threadIdx.x, kv_head = head / (heads / kv_heads);
    const float* q = Q + (sequence * heads + head) * D;
    float* o = O + (sequence * heads + head) * D;
    float m = __int_as_float(0xff800000), l = 0.0f;
    for (int c = 0; c < D; ++c) o[c] = 0.0f;
    for (int j = 0; j < lengths[sequence]; ++j) {
        const OFFSET page = table[sequence * places + j / PAGE];
        const OFFSET key = ((page * kv_heads + kv_head) * PAGE + j % PAGE) * D;
        float s = 0.0f;
        for (int c = 0; c < D; ++c) s += q[c] * K[key + c];
        float m_new = fmaxf(m, tau * s), alpha = expf(m - m_new), p = expf(tau * s - m_new);
        l = alpha * l + p;
        for (int c = 0; c < D; ++c) o[c] = alpha * o[c] + p * V[key + c];
        m = m_new;
    }
    for (int c = 0; c < D; ++c) o[c] = l == 0.0f ? 0.0f : o[c] / l;
}
"""


def cuda_kernel(text: str, name: str, offset: str, **sizes: int) -> cupy.RawKernel:
    defined = {**sizes, "OFFSET": offset}
    return cupy.RawKernel("".join(f"#define {n} {value}\n" for n, value in defined.items()) + text, name)


def of_heads(kernel, problem: Problem) -> Plan:
    sizes = (np.int32(problem.q_len), np.int32(problem.kv_len), np.int32(problem.group), np.float32(problem.tau))
    grid = (-(-problem.q_len // 64), problem.batch * problem.heads)
    return Plan((Launch(kernel, grid, (64,), ("Q", "K", "V", "O", *sizes)),))


def in_cuda(offset: str):
    return lambda problem: of_heads(cuda_kernel(ROW + HEADS, "rows_of_heads", offset, D=problem.head_dim), problem)


@cuda.jit
def rows_of_heads_numba(Q, K, V, O, q_len, kv_len, group, tau):
    D = int32(Q.shape[3])
    row = int32(cuda.grid(1))
    if row >= q_len:
        return
    head = uint32(cuda.blockIdx.y)
    # Numba does not check bounds: from the first row on, elements are counted through the whole array.
    flat_Q, flat_K, flat_V, flat_O = Q[0, 0, 0], K[0, 0, 0], V[0, 0, 0], O[0, 0, 0]
    # Numba widens products of 32 bits unless each is made one again.
    first_row = uint32(uint32(head * uint32(q_len) + uint32(row)) * uint32(D))
    first_key = uint32(uint32(head // uint32(group)) * uint32(uint32(kv_len) * uint32(D)))
    top = np.float32(-np.inf)
    total = np.float32(0)
    for c in range(D):
        flat_O[first_row + c] = 0
    for j in range(kv_len):
        s = np.float32(0)
        for c in range(D):
            s += flat_Q[first_row + c] * flat_K[first_key + j * D + c]
        s *= tau
        new_top = max(top, s)
        alpha, p = libdevice.expf(top - new_top), libdevice.expf(s - new_top)
        total = alpha * total + p
        for c in range(D):
            flat_O[first_row + c] = alpha * flat_O[first_row + c] + p * flat_V[first_key + j * D + c]
        top = new_top
    for c in range(D):
        flat_O[first_row + c] /= total


def of_pages(offset: str):
    def plan(problem: PagedProblem) -> Plan:
        kernel = cuda_kernel(PAGES, "rows_of_pages", offset, D=problem.head_dim, PAGE=problem.page_size)
        sizes = (problem.heads, problem.kv_heads, problem.table_shape[1])
        args = ("Q", "K", "V", "table", "lengths", "O", *map(np.int32, sizes), np.float32(problem.tau))
        return Plan((Launch(kernel, (problem.sequences,), (problem.heads,), args),))

    return plan


def plain(problem: Problem) -> str | None:
    if problem.dtype != "float32" or problem.causal:
        return "it is written for float32 and all keys"
    if problem.batch * problem.heads > 65535:
        return f"{problem.batch * problem.heads} heads in all; a grid has at most 65,535 blocks along y"
    return None


def plain_pages(problem: PagedProblem) -> str | None:
    return "it is written for float32 and a row" if problem.dtype != "float32" or problem.q_len > 1 else None


def register(registry):
    for name, plan in (
        ("signed-heads", in_cuda("int")),
        ("unsigned-heads", in_cuda("unsigned")),
        ("heads-of-64-bits", in_cuda("long long")),
        ("unsigned-heads-numba", lambda problem: of_heads(rows_of_heads_numba, problem)),
    ):
        backend = "numba" if name.endswith("numba") else "cupy"
        registry.add(Variant(name=name, plan=plan, supports=plain, backend=backend, idea="one thread per query row"))
    for name, plan in (("signed-pages", of_pages("int")), ("pages-of-64-bits", of_pages("long long"))):
        registry.add(
            Variant(
                name=name,
                operation="paged-attention",
                plan=plan,
                supports=plain_pages,
                idea="one thread per query head",
            )
        )
