"""Wrong calls through `cuda.bindings`: each returns the driver's status, and a line on standard error explains it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.device.driver.test_driver_functions import BEGIN
from tests.device.programs import many_values_ptx

KERNEL = '''
ptx = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry k() { ret; }
"""
kernel = do(cu.cuModuleGetFunction(do(cu.cuModuleLoadData(ptx)), b"k"))
def in_clusters(grid, cluster):
    config, attribute = cu.CUlaunchConfig(), cu.CUlaunchAttribute()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    dimensions = attribute.value.clusterDim
    dimensions.x, dimensions.y, dimensions.z = cluster, 1, 1
    config.attrs, config.numAttrs = [attribute], 1
    return cu.cuLaunchKernelEx(config, kernel, 0, 0)
assert in_clusters(8, 8)[0] == 0
dynamic = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
here = np.zeros(1024, np.uint8)
'''

MANY_REGISTERS = f"""
wide = do(cu.cuModuleGetFunction(do(cu.cuModuleLoadData({many_values_ptx(100).encode()!r})), b"many_values"))
"""

CALLS = [
    ("cu.cuDeviceGet(7)", 101, "there is no device 7"),
    ("cu.cuMemAlloc(1 << 45)", 2, "0 of 85,899,345,920 bytes are allocated"),
    ("cu.cuMemcpyHtoD(do(cu.cuMemAlloc(64)), 0, 16)", 1, "a copy from or to a null pointer"),
    ("cu.cuModuleGetFunction(0, b'k')", 400, "there is no loaded module with the handle 0x0"),
    ("cu.cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)", 400, "there is no function with the handle 0x0"),
    ("cu.cuFuncSetAttribute(kernel, dynamic, 300_000)", 1, "this GPU has 232448"),
    ("cu.cuEventElapsedTime(*(do(cu.cuEventCreate(0)) for _ in range(2)))", 400, "between two recorded events"),
    ("(do(cu.cuMemHostRegister(here, 1024, 2)), cu.cuMemHostRegister(here, 1024, 2))[1]", 712, "registered already"),
    ("cu.cuMemHostUnregister(here.ctypes.data + 8)", 713, "no pinned, registered or managed memory begins"),
    ("cu.cuLaunchKernel(wide, 1, 1, 1, 1024, 1, 1, 0, 0, ((0,), (ctypes.c_void_p,)), 0)", 701, "smaller blocks"),
    ("in_clusters(4, 3)", 1, "the grid has to be a multiple of it"),
    ("in_clusters(32, 16)", 912, "its cluster is (16, 1, 1): 16 blocks; at most 8 are supported"),
]


@pytest.mark.compiles
def test_wrong_calls_are_explained() -> None:
    program = BEGIN + KERNEL + MANY_REGISTERS + "import sys\n"
    for call, _, _ in CALLS:
        program += f"print(int({call}[0]), flush=True); print('--', file=sys.stderr, flush=True)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [int(line) for line in done.stdout.split()] == [status for _, status, _ in CALLS]
    for (call, _, said), lines in zip(CALLS, done.stderr.split("--\n"), strict=False):
        assert said in lines and lines.count("emulated GPU: ") == 1, (call, lines)
