"""Memory through `cuda.bindings`, in one process, which has one driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.driver.test_graphs import PROGRAMS as GRAPHS
from tests.device.driver.test_textures import PROGRAMS as TEXTURES

BEGIN = """
import ctypes
import numpy as np
from harness.device.driver.process import install
install()
from cuda.bindings import driver as cu
def do(result):
    assert result[0] == 0, result
    return result[1] if len(result) == 2 else result[1:]
do(cu.cuInit(0))
do(cu.cuCtxSetCurrent(do(cu.cuDevicePrimaryCtxRetain(0))))
"""

PROGRAMS = {
    "copies between host and device, and within the device": """
a, b = (do(cu.cuMemAlloc(64)) for _ in range(2))
here = np.arange(16, dtype=np.int32)
there = np.zeros_like(here)
do(cu.cuMemcpyHtoD(a, here, 64)); do(cu.cuMemcpyDtoD(b, a, 64)); do(cu.cuMemsetD32(a, 7, 16))
do(cu.cuMemcpyDtoH(there, b, 64)); assert (there == here).all()
do(cu.cuMemcpyDtoHAsync(there, int(a) + 32, 32, 0)); assert (there[:8] == 7).all() and (there[8:] == here[8:]).all()
""",
    "host pointers, and ranges beyond an allocation, are refused": """
a = do(cu.cuMemAlloc(64)); here = np.zeros(32, np.int32)
assert cu.cuMemcpyHtoD(here.ctypes.data, here, 64)[0] == 1
assert cu.cuMemcpyHtoD(a, here, 65)[0] == 1
do(cu.cuMemFree(a)); assert cu.cuMemcpyHtoD(a, here, 64)[0] == 1 and cu.cuMemFree(a)[0] == 1
assert cu.cuMemAlloc(1 << 45)[0] == 2
""",
    "pinned and managed memory, with one address on host and device": """
for address in (do(cu.cuMemHostAlloc(4096, 2)), do(cu.cuMemAllocManaged(4096, 1))):
    address = int(address)
    own = np.frombuffer((ctypes.c_uint8 * 4096).from_address(address), np.uint8)
    do(cu.cuMemsetD8(address, 5, 4096)); assert (own == 5).all()
    number = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER
    assert int(do(cu.cuPointerGetAttribute(number, address))) == address
""",
    "registered memory": """
here = np.zeros(1024, np.uint8)
do(cu.cuMemHostRegister(here, 1024, 2)); assert cu.cuMemHostRegister(here, 1024, 2)[0] == 712
there = do(cu.cuMemHostGetDevicePointer(here, 0)); do(cu.cuMemsetD8(there, 9, 1024)); assert (here == 9).all()
do(cu.cuMemHostUnregister(here)); assert cu.cuMemHostUnregister(here)[0] == 713
""",
    "events and streams": """
stream = do(cu.cuStreamCreate(0)); first, last = (do(cu.cuEventCreate(0)) for _ in range(2))
do(cu.cuEventRecord(first, stream)); do(cu.cuEventRecord(last, stream)); do(cu.cuEventSynchronize(last))
assert do(cu.cuEventElapsedTime(first, last)) >= 0
do(cu.cuStreamDestroy(stream)); assert cu.cuStreamSynchronize(stream)[0] == 400
""",
    "graphs of copies and fills, recorded from several streams": """
one, other = (do(cu.cuStreamCreate(1)) for _ in range(2)); event = do(cu.cuEventCreate(0))
a, b = (do(cu.cuMemAlloc(64)) for _ in range(2)); there = np.zeros(16, np.int32); do(cu.cuMemsetD32(b, 1, 16))
mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
do(cu.cuStreamBeginCapture(one, mode)); assert cu.cuStreamSynchronize(one)[0] == 900
assert int(do(cu.cuStreamIsCapturing(one))) == 2 and cu.cuMemsetD32Async(a, 7, 16, one)[0] == 901
assert cu.cuStreamEndCapture(one)[0] == 901 and cu.cuStreamEndCapture(one)[0] == 401
do(cu.cuStreamBeginCapture(one, mode))
do(cu.cuEventRecord(event, one)); do(cu.cuStreamWaitEvent(other, event, 0)); do(cu.cuMemsetD32Async(a, 7, 16, other))
assert cu.cuStreamEndCapture(one)[0] == 904 and do(cu.cuStreamIsCapturing(other)) == 0
do(cu.cuStreamBeginCapture(one, mode)); do(cu.cuEventRecord(event, one)); do(cu.cuStreamWaitEvent(other, event, 0))
assert cu.cuStreamEndCapture(other)[0] == 903 and cu.cuStreamEndCapture(one)[0] == 901
do(cu.cuStreamBeginCapture(one, mode))
do(cu.cuMemsetD32Async(a, 7, 16, one)); do(cu.cuEventRecord(event, one)); do(cu.cuStreamWaitEvent(other, event, 0))
do(cu.cuMemcpyDtoDAsync(b, a, 64, other)); do(cu.cuEventRecord(event, other)); do(cu.cuStreamWaitEvent(one, event, 0))
graph = do(cu.cuStreamEndCapture(one)); assert do(cu.cuStreamIsCapturing(other)) == 0
do(cu.cuMemcpyDtoH(there, b, 64)); assert (there == 1).all()
runs = do(cu.cuGraphInstantiate(graph, 0)); do(cu.cuGraphDestroy(graph)); do(cu.cuGraphLaunch(runs, one))
do(cu.cuMemcpyDtoH(there, b, 64)); assert (there == 7).all()
do(cu.cuGraphExecDestroy(runs)); assert cu.cuGraphLaunch(runs, one)[0] == 400
""",
    "memory pools": """
pool = do(cu.cuDeviceGetDefaultMemPool(0)); assert int(do(cu.cuDeviceGetMemPool(0))) == int(pool)
number = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
do(cu.cuMemPoolSetAttribute(pool, number, cu.cuuint64_t(1 << 20)))
assert int(do(cu.cuMemPoolGetAttribute(pool, number))) == 1 << 20
a, b = do(cu.cuMemAllocFromPoolAsync(64, pool, 0)), do(cu.cuMemAllocAsync(64, 0))
used = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
assert int(do(cu.cuMemPoolGetAttribute(pool, used))) == 128
do(cu.cuMemFreeAsync(a, 0)); do(cu.cuMemFreeAsync(b, 0)); assert int(do(cu.cuMemPoolGetAttribute(pool, used))) == 0
most = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_HIGH
reserved = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
assert int(do(cu.cuMemPoolGetAttribute(pool, most))) == 128
assert int(do(cu.cuMemPoolGetAttribute(pool, reserved))) == 32 << 20
do(cu.cuMemPoolTrimTo(pool, 0)); assert int(do(cu.cuMemPoolGetAttribute(pool, reserved))) == 0
do(cu.cuMemAlloc(64)); assert int(do(cu.cuMemPoolGetAttribute(pool, used))) == 0
""",
    "PTX of a newer version or with unknown instructions is refused, with a line in the error log": """
ptx = ".version {}\\n.target sm_90\\n.address_size 64\\n.visible .entry k()\\n{{\\n{};\\nret;\\n}}\\n"
newer, unknown, known = ptx.format("99.0", "trap"), ptx.format("8.0", "frob.u32"), ptx.format("8.0", "trap")
log = [cu.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, cu.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
def logged(load):
    written = bytes(300); load(2, log, [written, 300])  # which the bindings fill in place
    return written.partition(b"\\0")[0].decode()
newest = "PTX line 1: '.version 99.0' is not supported; the newest version is 9.5"
for text, status, said in (newer, 222, newest), (unknown, 218, "PTX line 6: 'frob' is not an instruction of PTX"):
    text = text.encode()
    assert cu.cuModuleLoadData(text)[0] == status and cu.cuLibraryLoadData(text, [], [], 0, [], [], 0)[0] == status
    linker = do(cu.cuLinkCreate(0, [], [])); kind = cu.CUjitInputType.CU_JIT_INPUT_PTX
    assert cu.cuLinkAddData(linker, kind, text + b"\\0", len(text) + 1, b"k.ptx", 0, [], [])[0] == status
    assert logged(lambda *o: cu.cuModuleLoadDataEx(text, *o)).startswith(said)
    assert logged(lambda n, *o: cu.cuLibraryLoadData(text, *o, n, [], [], 0)).startswith(said)
assert logged(lambda *o: do(cu.cuModuleLoadDataEx(known.encode(), *o))) == ""
""",
    "modules from PTX: variables, launches, errors": '''
ptx = b""".version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .u32 factor = 3;
.visible .entry scale(.param .u64 target, .param .u32 value)
.maxntid 64, 1, 1
{
  .reg .u64 %rd<3>; .reg .u32 %r<4>;
  ld.param.u64 %rd1, [target];
  ld.param.u32 %r1, [value];
  ld.global.u32 %r2, [factor];
  mul.lo.u32 %r3, %r1, %r2;
  st.global.u32 [%rd1], %r3;
  ret;
}
"""
module = do(cu.cuModuleLoadData(ptx)); scale = do(cu.cuModuleGetFunction(module, b"scale"))
assert cu.cuModuleGetFunction(module, b"none")[0] == 500 and cu.cuModuleGetGlobal(module, b"none")[0] == 500
a = do(cu.cuMemAlloc(4)); there = np.zeros(1, np.uint32)
def launch(target, grid=1, block=1):
    arguments = (target, 14), (ctypes.c_void_p, ctypes.c_uint32)
    return cu.cuLaunchKernel(scale, grid, 1, 1, block, 1, 1, 0, 0, arguments, 0)[0]
assert launch(int(a)) == 0; do(cu.cuMemcpyDtoH(there, a, 4)); assert there[0] == 42
factor, size = do(cu.cuModuleGetGlobal(module, b"factor")); assert size == 4
do(cu.cuMemsetD32(factor, 5, 1)); assert launch(int(a)) == 0; do(cu.cuMemcpyDtoH(there, a, 4)); assert there[0] == 70
parameters = ((int(a), 14), (ctypes.c_void_p, ctypes.c_uint32))
assert cu.cuLaunchCooperativeKernel(scale, 132 * 32, 1, 1, 64, 1, 1, 0, 0, parameters)[0] == 0
assert cu.cuLaunchCooperativeKernel(scale, 132 * 32 + 1, 1, 1, 64, 1, 1, 0, 0, parameters)[0] == 720
number = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
assert do(cu.cuFuncGetAttribute(number, scale)) == 64
assert launch(int(a), block=2048) == 1 and launch(int(a), grid=0) == 1
assert cu.cuModuleLoadData(b"\\x7fELF0000")[0] == 209 and cu.cuModuleLoadData(b"no PTX")[0] == 200
assert launch(int(a) + 4) == 700
assert cu.cuMemAlloc(4)[0] == 700 and cu.cuCtxSynchronize()[0] == 700  # the error is sticky
''',
}


@pytest.mark.compiles
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_the_driver(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + PROGRAMS[name]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if "errors" in name:
        assert "module.ptx:13 (PTX line 13)" in done.stderr and "out-of-bounds store of 4 bytes" in done.stderr
        for said in (
            "no kernel none; it has scale",
            "no variable none; it has factor",
            "a block of 2048 threads, of which it may have 64",
        ):
            assert said in done.stderr


def test_the_page_lists_each_program() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "emulate.md").read_text()
    listed = [line.split("|")[2].strip() for line in page.splitlines() if line.startswith("| `cuda.bindings` |")]
    assert listed == [*PROGRAMS, *GRAPHS, *TEXTURES]
