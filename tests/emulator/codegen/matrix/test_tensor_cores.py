"""Kernels with tensor cores as compilers make them; what their memory operations count as; their races."""

from __future__ import annotations

import cupy
import ml_dtypes
import numpy as np
import pytest
from counted_bodies import INPUTS, PROBLEM, counted, plan
from cuda_kernel import run
from lanes import exhaustive_unless
from sanitized_kernel import find, lines
from single_opcode import run_body

from harness.emulator.executor import EmulatorExecutor

RNG = np.random.default_rng(41)
WMMA = """#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void k(const {type}* a, const {type}* b, float* c) {{
    __shared__ __align__(32) {type} tile[16 * 24];
    for (int i = threadIdx.x; i < 256; i += 32) tile[i / 16 * 24 + i % 16] = b[i];
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, {type}, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, {type}, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 1.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, tile, 24);
    wmma::mma_sync(fc, fa, fb, fc);
    for (int i = 0; i < fc.num_elements; ++i) fc.x[i] *= 2.0f;
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}}"""


@pytest.mark.parametrize(("kind", "dtype"), [("half", np.float16), ("__nv_bfloat16", ml_dtypes.bfloat16)])
def test_nvcuda_wmma(kind: str, dtype: type):
    """Small integers, whose product is exact."""
    a, b = (RNG.integers(-8, 9, (16, 16)).astype(dtype) for _ in range(2))
    source = WMMA.format(type=kind)
    arrays = {"a": a.view(np.uint16), "b": b.view(np.uint16), "c": np.zeros((16, 16), np.float32)}
    after, _ = run(source, arrays, ("a", "b", "c"))
    np.testing.assert_array_equal(after["c"], 2 * (a.astype(np.float32) @ b.astype(np.float32).T + 1))


LDMATRIX = """
unsigned s = (unsigned)__cvta_generic_to_shared(t) + {address}, r0 = i, r1 = i, r2 = i, r3 = i;
asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%4];"
    : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(s));
o[i] = __uint_as_float(r0 + r1 + r2 + r3);"""
STMATRIX = """
unsigned s = (unsigned)__cvta_generic_to_shared(t) + {address};
asm volatile("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%0], {{{registers}}};"
    :: "r"(s), "r"(i), "r"(i), "r"(i), "r"(i) : "memory");"""
WAVEFRONTS = {
    "rows of 16 bytes": ("16 * i", 1),
    "rows of 32 bytes": ("32 * i", 2),
    "rows of 64 bytes": ("64 * i", 4),
    "rows of 128 bytes": ("128 * i", 8),
    "rows of 144 bytes": ("144 * i", 1),
    "rows of 128 bytes, swizzled": ("128 * (i % 8) + 16 * (i % 8)", 1),
    "one row": ("0", 1),
    "pairs of rows": ("128 * (i / 2)", 4),
}
"""Address of a lane's row, and wavefronts of one matrix: as an H200 counts them."""


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", exhaustive_unless(lambda count: count == 4, [1, 2, 4]))
@pytest.mark.parametrize("pattern", WAVEFRONTS)
def test_wavefronts_of_ldmatrix_and_stmatrix(pattern: str, count: int, trans: str):
    address, wavefronts = WAVEFRONTS[pattern]
    for source, kind, first in ((LDMATRIX, "load", 0), (STMATRIX, "store", 1)):
        registers = ", ".join(f"%{first + i}" for i in range(count))
        found = counted(source.format(address=address, count=count, trans=trans, registers=registers))
        assert found is not None
        (row,) = found
        numbers = (row.kind, row.requests, row.requested_bytes, row.wavefronts, row.ideal_wavefronts)
        assert numbers == (kind, 1, 128 * count, wavefronts * count, count)
        assert row.line in (5, 6)  # the asm statement


WMMA_LOAD = """
{declare} unsigned r[8], n = 64;
asm volatile("wmma.load.{operand}.sync.aligned.{order}.{form} {{%0, %1, %2, %3{more}}}, [%8], %9;" : "=r"(r[0]),
    "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]) : {address}, "r"(n));
o[i] = __uint_as_float(r[0] + r[1] + r[2] + r[3]);"""
IN_SHARED = {"declare": "unsigned s = (unsigned)__cvta_generic_to_shared(t);", "address": '"r"(s)'}
IN_GLOBAL = {"declare": "", "address": '"l"(q)'}


def wmma_load(operand: str, order: str, form: str, where: dict[str, str]) -> str:
    """A load of a fragment of four registers, or of eight, from rows of 64 elements."""
    few = form.endswith("tf32") or (operand == "c" and form.endswith("f16"))
    return WMMA_LOAD.format(operand=operand, order=order, form=form, more="" if few else ", %4, %5, %6, %7", **where)


@pytest.mark.parametrize(
    ("operand", "order", "form", "requests", "wavefronts"),
    [
        ("a", "row", "m16n16k16.shared.f16", 1, 32),
        ("b", "row", "m16n16k16.shared.f16", 1, 32),
        ("a", "col", "m32n8k16.shared.bf16", 2, 64),
        ("a", "row", "m16n16k8.shared.tf32", 4, 32),
        ("a", "col", "m16n16k8.shared.tf32", 4, 16),
        ("c", "row", "m16n16k16.shared.f32", 4, 32),
        ("c", "col", "m16n16k16.shared.f32", 8, 32),
        ("c", "col", "m16n16k16.shared.f16", 4, 32),
    ],
)
def test_wavefronts_of_wmma(operand: str, order: str, form: str, requests: int, wavefronts: int):
    """Requests and wavefronts are those of an H200."""
    found = counted(wmma_load(operand, order, form, IN_SHARED))
    assert found is not None
    (row,) = found
    assert (row.kind, row.requests, row.wavefronts) == ("load", requests, wavefronts)


@pytest.mark.parametrize(
    ("operand", "order", "form", "requests", "sectors"),
    [
        ("a", "row", "m16n16k16.global.f16", 4, 32),
        ("a", "col", "m32n8k16.global.bf16", 8, 64),
        ("a", "row", "m16n16k8.global.tf32", 4, 32),
        ("a", "col", "m16n16k8.global.tf32", 4, 16),
        ("c", "row", "m16n16k16.global.f32", 4, 32),
        ("c", "col", "m16n16k16.global.f32", 8, 32),
        ("c", "col", "m16n16k16.f16", 4, 32),
    ],
)
def test_sectors_of_wmma(operand: str, order: str, form: str, requests: int, sectors: int):
    """Requests and sectors are those of an H200."""
    body = wmma_load(operand, order, form, IN_GLOBAL)
    source = f'extern "C" __global__ void k(const float* q, float* o) {{ int i = threadIdx.x; {body} }}'
    traffic = EmulatorExecutor().run(PROBLEM, plan(cupy.RawKernel(source, "k"), 32), INPUTS).launches[0].traffic
    (row,) = (row for row in traffic if row.buffer == "Q")
    assert (row.kind, row.requests, row.sectors) == ("load", requests, sectors)


STAGE = """
__shared__ __align__(256) unsigned short tile[8 * 8 * {warps}];
unsigned i = threadIdx.x, r = 0, s = (unsigned)__cvta_generic_to_shared(tile) + 16 * (i % 8) + 128 * {matrix};
"""


def kernel(before: str, between: str, after: str, warps: int = 1, matrix: str = "(i / 32)") -> str:
    """Lines 4 to 6 of planted.cu."""
    stage = STAGE.format(warps=warps, matrix=matrix).strip().replace("\n", " ")
    return f'extern "C" __global__ void k(unsigned* o) {{\n{stage}\n\n{before}\n{between}\n{after}\no[i] = r; }}'


FILL = "((unsigned*)tile)[i] = i;"
LOAD = 'asm volatile("ldmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 {{%0}}, [%1];" : "=r"(r) : "r"(s) : "memory");'
STORE = 'asm volatile("stmatrix.sync.aligned.m8n8.x1{trans}.shared.b16 [%0], {{%1}};" :: "r"(s), "r"(i) : "memory");'


def findings(source: str, warps: int = 1) -> list[tuple[str, int, int | None]]:
    out = np.zeros(32 * warps, np.uint32)
    return [lines(f) for f in find(source, {"o": out}, ("o",), block=(32 * warps, 1, 1))]


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [(FILL, LOAD, "RAW race"), (LOAD, FILL, "WAR race"), (STORE, FILL, "WAW race"), (STORE, LOAD, "RAW race")],
    ids=["read too early", "written too early", "two writes", "read of a stored matrix"],
)
def test_a_missing_barrier(before: str, after: str, kind: str, trans: str):
    """Two warps, of which each uses the other's part of the tile."""
    before, after = (text.format(trans=trans) for text in (before, after))
    filled = "" if before == FILL else f"{FILL} __syncthreads(); "
    other = "s ^= 128; " + after.replace("[i]", "[i ^ 32]")
    assert findings(kernel(filled + before, "__syncthreads();", other, 2), 2) == []
    # The other way round is a race, too, where the second warp comes after the first has done both.
    assert (kind, 6, 4) in findings(kernel(filled + before, "", other, 2), 2)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_lanes_read_what_other_lanes_give_the_address_of(trans: str):
    """Within a warp, too: the row of a lane's own address is not what the lane reads."""
    load = LOAD.format(trans=trans)
    assert findings(kernel(FILL, "__syncwarp();", load)) == []
    assert findings(kernel("((uint4*)tile)[i % 8] = make_uint4(i % 8, 1, 2, 3);", "", load)) == [("RAW race", 6, 4)]


def test_a_matrix_that_nobody_wrote():
    half = "if (i < 28) ((unsigned*)tile)[i] = i;"
    assert findings(kernel(half, "__syncwarp();", LOAD.format(trans=""))) == [("uninitialised read", 6, None)]


def test_operands_where_the_compiler_has_constants():
    """The registers of a product may never have been written to memory before."""
    out = np.zeros(32, np.float32)
    run_body(
        "mov.b32 r0, 0x3c003c00; mov.b32 r1, 0x40004000; mov.b32 r2, 0x3f800000;\n"
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {r4, r5, r6, r7}, {r0, r0}, {r1}, {r2, r2, r2, r2};\n"
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {r4, r5, r6, r7}, {r0, r0}, {r1}, {r4, r5, r6, r7};\n"
        "mad.wide.u32 q0, tid, 4, out; st.global.u32 [q0], r6;",
        {"out": out},
    )
    assert (out == 1 + 2 * 8 * 2).all()
