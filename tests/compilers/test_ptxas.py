"""Registers, spills and shared memory, as ptxas reports them."""

from __future__ import annotations

import re
import struct
import subprocess

import cupy
import pytest
from sample_kernels import ARCH, AXPY_ARGS, axpy, buffer

from harness.compilers import compile_kernel
from harness.compilers.ptxas import Resources, find_ptxas, resources, section_bytes
from harness.support.errors import CompileError


def test_ptxas_reports_resources() -> None:
    code = """
    extern "C" __global__ void heavy(volatile float* y, int n) {
        __shared__ float tile[100];
        float x[64];
        for (int i = 0; i < 64; ++i) x[i] = y[i * 7 + threadIdx.x];
        for (int k = 0; k < n; ++k) for (int i = 0; i < 64; ++i) x[i] = x[i] * x[(i + 1) % 64] + k;
        float s = 0; for (int i = 0; i < 64; ++i) s += x[i];
        tile[n] = s; __syncthreads(); y[0] = tile[n + 1];
    }
    extern "C" __global__ void light(float* y) { y[0] = 1; }
    """
    compiled = compile_kernel(cupy.RawKernel(code, "heavy"), (buffer(1), 1), ARCH)
    free = resources(compiled.ptx, ARCH, "heavy")
    light = resources(compiled.ptx, ARCH, "light")
    tight = resources(compiled.ptx, ARCH, "heavy", max_registers=32)
    if free is None or light is None or tight is None:
        pytest.skip("no ptxas is installed that reads this PTX")
    assert free.shared_bytes == 400
    assert light.shared_bytes == 0
    assert (free.spill_load_bytes, free.spill_store_bytes) == (0, 0)
    assert light.registers < 32 < free.registers
    assert tight.registers <= 32
    assert tight.spill_load_bytes > 0
    assert tight.stack_bytes > 0
    # Machine code comes in pieces of 128 bytes; each kernel has its own, though the module has both.
    assert light.code_bytes is not None and free.code_bytes is not None
    assert 128 <= light.code_bytes < 2048 < free.code_bytes
    assert light.code_bytes % 128 == free.code_bytes % 128 == 0


def test_ptxas_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ptx = compile_kernel(axpy(), AXPY_ARGS, ARCH).ptx
    first = resources(ptx, ARCH, "axpy")
    if first is None:
        pytest.skip("no ptxas is installed that reads this PTX")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("ran again")

    monkeypatch.setattr(subprocess, "run", never)
    assert resources(ptx, ARCH, "axpy") == first


def test_ptxas_rejection_is_shown() -> None:
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    with pytest.raises(CompileError, match=r"(?s)ptxas rejects.*kernel\.ptx.*Missing \.version"):
        resources("garbage", ARCH, "axpy")


def test_a_ptxas_that_is_older_than_the_ptx_knows_nothing() -> None:
    ptx = compile_kernel(axpy(), AXPY_ARGS, ARCH).ptx
    assert resources(re.sub(r"\.version \d+\.\d+", ".version 99.0", ptx), ARCH, "axpy") is None


def test_without_ptxas_resources_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.compilers import ptxas

    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    assert resources("anything", ARCH, "axpy") is None


def test_resources_are_read_from_older_reports() -> None:
    from harness.compilers.ptxas import _parse

    log = """ptxas info    : Compiling entry function 'other' for 'sm_80'
ptxas info    : Function properties for other
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 10 registers, 24 bytes cumulative stack size, 352 bytes cmem[0]
ptxas info    : Compiling entry function 'f' for 'sm_80'
ptxas info    : Function properties for f
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 400 bytes smem, 352 bytes cmem[0], 8 bytes cmem[2]
"""
    assert _parse(log, "f") == Resources(255, 12, 20, 400, 16, 360)
    assert _parse(log, "other") == Resources(10, 4, 4, 0, 24, 352)


PRODUCT = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) .maxntid 128 BLOCKS {
    .reg .f32 d<4>; .reg .b64 a, q; .reg .b32 t;
    ROLE
    mov.b64 a, 0; mov.f32 d0, 0f00000000; mov.f32 d1, d0; mov.f32 d2, d0; mov.f32 d3, d0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {d0, d1, d2, d3}, a, a, 1, 1, 1, 0, 0;
    EARLY
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    ld.param.u64 q, [out]; mov.u32 t, %tid.x; mad.wide.u32 q, t, 4, q; st.global.f32 [q], d0; ret;
}"""


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({}, None),
        ({"EARLY": "add.f32 d0, d0, d1;"}, "warpgroup.wait is injected"),
        ({"ROLE": "setmaxnreg.dec.sync.aligned.u32 24;"}, "'setmaxnreg' ignored; unable to determine register count"),
        ({"ROLE": "setmaxnreg.dec.sync.aligned.u32 64;", "BLOCKS": ".minnctapersm 1"}, None),
    ],
)
def test_ptxas_reports_what_costs_a_warpgroup_time(changes: dict[str, str], remark: str | None) -> None:
    text = PRODUCT
    for name in ("BLOCKS", "ROLE", "EARLY"):
        text = text.replace(name, changes.get(name, ""))
    found = resources(text, "sm_90a", "k")
    if found is None:
        pytest.skip("no ptxas is installed that reads this PTX")
    assert len(found.remarks) == (remark is not None)
    for each in found.remarks:
        assert remark is not None and remark in each and each.startswith("(C75")


def elf(*sections: tuple[str, int]) -> bytes:
    """An ELF file of 64 bits with empty space where sections would be, and their names at the end."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _ in (*sections, (".shstrtab", 0)))
    table = 64
    first_name = table + 64 * (len(sections) + 2)
    entries = [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name, size in (*sections, (".shstrtab", len(names))):
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        entries.append(struct.pack("<IIQQQQIIQQ", place, 1, 0, 0, first_name, size, 0, 0, 1, 0))
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF", 2, 190, 1, 0, 0, table, 0, 64, 0, 0, 64, len(entries), len(entries) - 1
    )
    return header + b"".join(entries) + names


def test_the_size_of_a_section_by_its_whole_name():
    cubin = elf((".text.kernel", 640), (".text.kernel2", 1280))
    assert section_bytes(cubin, ".text.kernel") == 640
    assert section_bytes(cubin, ".text.kernel2") == 1280
    assert section_bytes(cubin, ".text") is None
