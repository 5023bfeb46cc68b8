"""Programs of `cuda.core`, in one process, which has one driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = r"""
import numpy as np
from harness.device.driver.process import install
install()
from cuda.core import Device, LaunchConfig, ObjectCode, Program, ProgramOptions, launch
device = Device()
device.set_current()
stream = device.create_stream()
code = 'extern "C" __global__ void scale(float* x, int n, float by)' \
    '{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= by; }'
compiled = Program(code, code_type="c++", options=ProgramOptions(arch=f"sm_{device.arch}")).compile("ptx")
buffer, here = device.allocate(400, stream=stream), np.ones(100, np.float32)
from cuda.bindings import driver as cu
def back():
    cu.cuMemcpyDtoH(here, int(buffer.handle), 400)
    return set(here.tolist())
cu.cuMemcpyHtoD(int(buffer.handle), here, 400)
config = LaunchConfig(grid=4, block=32)
for kernel in (compiled.get_kernel("scale"), ObjectCode.from_ptx(compiled.code).get_kernel("scale")):
    launch(stream, config, kernel, buffer, np.int32(100), np.float32(3))
stream.sync()
assert back() == {9}
builder = device.create_graph_builder()
builder.begin_building()
for _ in range(2):
    launch(builder, config, kernel, buffer, np.int32(100), np.float32(2))
graph = builder.end_building().complete()
assert back() == {9}
graph.launch(stream)
graph.launch(stream)
assert back() == {144}
stream.record().sync()
buffer.close(stream)
import warnings
warnings.simplefilter("ignore", RuntimeWarning)  # that there is no nvJitLink
from cuda.core import Linker, LinkerOptions
from cuda.core._utils.cuda_utils import CUDAError
try:
    Linker(ObjectCode.from_ptx(compiled.code.replace(b"ret;", b"frob;")), options=LinkerOptions(arch="sm_90"))
except CUDAError as error:
    assert "CUDA_ERROR_INVALID_PTX" in str(error) and "'frob' is not an instruction of PTX" in str(error)
"""


@pytest.mark.compiles
def test_programs_streams_buffers_launches_graphs_and_linkers() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    line, *others = done.stderr.splitlines()
    assert (done.returncode, others) == (0, []), done.stderr
    assert line.startswith("emulated GPU: PTX line") and line.endswith("'frob' is not an instruction of PTX.")


def test_the_page_has_the_row() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "emulate.md").read_text()
    assert "| `cuda.core` | programs from CUDA C++ and PTX, streams, buffers, launches, graphs |" in page
