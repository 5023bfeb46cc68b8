"""Programmatic dependent launches through `cuda.bindings`: which launch of a stream may overlap which."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.device.driver.test_graphs import BEGIN

PROGRAM = r"""
memory = do(cu.cuMemAlloc(64))
streams = [do(cu.cuStreamCreate(1)) for _ in range(2)]

def scaled(stream, early=True):
    config, attribute = cu.CUlaunchConfig(), cu.CUlaunchAttribute()
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.blockDimX, config.hStream = 16, stream
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = int(early)
    config.attrs, config.numAttrs = [attribute], 1
    do(cu.cuLaunchKernelEx(config, scale, ((int(memory), 3), (ctypes.c_uint64, ctypes.c_uint32)), 0))

def findings():
    return [finding.kind for kernel in driver.log.kernels for finding in kernel.findings]

do(cu.cuMemsetD32(memory, 1, 16))
event = do(cu.cuEventCreate(0))
called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
host_function = cu.CUhostFn(_ptr=ctypes.addressof(called))
for wait in (
    lambda: do(cu.cuMemsetD32Async(memory, 1, 16, streams[1])),
    lambda: do(cu.cuEventRecord(event, streams[1])),
    lambda: do(cu.cuEventSynchronize(event)),
    lambda: do(cu.cuLaunchHostFunc(streams[1], host_function, 0)),
    lambda: do(cu.cuStreamSynchronize(streams[1])),
    lambda: do(cu.cuCtxSynchronize()),
    lambda: scaled(streams[0]),  # on another stream
):
    scaled(streams[1], early=False)
    wait()
    scaled(streams[1])
    assert findings() == [], findings()
for early in (False, True):
    do(cu.cuStreamBeginCapture(streams[0], cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    scaled(streams[0]); scaled(streams[0], early)
    graph = do(cu.cuStreamEndCapture(streams[0]))
    do(cu.cuCtxSynchronize())
    do(cu.cuGraphLaunch(do(cu.cuGraphInstantiate(graph, 0)), streams[0]))
    assert ("RAW race" in findings()) == early, findings()
driver.log.kernels[0].findings.clear()
scaled(streams[0], early=False); scaled(streams[0])
assert "RAW race" in findings(), findings()
"""


@pytest.mark.compiles
def test_only_consecutive_launches_of_a_stream_overlap() -> None:
    program = BEGIN.replace("install()", "install(sanitize=True)") + PROGRAM
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
