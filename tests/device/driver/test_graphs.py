"""Graphs of explicit nodes through `cuda.bindings`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.device.driver.graph import COPY, EMPTY, Graph, Node

pytestmark = pytest.mark.compiles

BEGIN = r'''
import ctypes
import numpy as np
from harness.device.driver.process import install
driver = install()
from cuda.bindings import driver as cu

def do(result):
    assert result[0] == 0, result
    return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]

do(cu.cuInit(0))
do(cu.cuCtxSetCurrent(do(cu.cuDevicePrimaryCtxRetain(0))))
ptx = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry scale(.param .u64 target, .param .u32 factor)
{
  .reg .u64 %rd<4>; .reg .u32 %r<4>;
  ld.param.u64 %rd1, [target];
  ld.param.u32 %r1, [factor];
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd3, %rd1, %rd2;
  ld.global.u32 %r3, [%rd3];
  mul.lo.u32 %r3, %r3, %r1;
  st.global.u32 [%rd3], %r3;
  ret;
}
"""
scale = do(cu.cuModuleGetFunction(do(cu.cuModuleLoadData(ptx)), b"scale"))
KEPT = []

def launch(target, factor):
    made = cu.CUDA_KERNEL_NODE_PARAMS()
    made.func, made.gridDimX, made.gridDimY, made.gridDimZ = scale, 1, 1, 1
    made.blockDimX, made.blockDimY, made.blockDimZ = 16, 1, 1
    made.kernelParams = ((int(target), factor), (ctypes.c_uint64, ctypes.c_uint32))
    KEPT.append(made)
    return made

def copy(target, source, size):
    made = cu.CUDA_MEMCPY3D()
    made.srcMemoryType = made.dstMemoryType = cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    made.dstDevice, made.srcDevice = target, source
    made.WidthInBytes, made.Height, made.Depth = size, 1, 1
    return made

def fill(target, value, count):
    made = cu.CUDA_MEMSET_NODE_PARAMS()
    made.dst, made.value, made.elementSize, made.width, made.height = target, value, 4, count, 1
    return made

def read(memory):
    there = np.zeros(16, np.int32)
    do(cu.cuMemcpyDtoH(there, memory, 64))
    return there

a, b = (do(cu.cuMemAlloc(64)) for _ in range(2))
context = do(cu.cuCtxGetCurrent())
graph = do(cu.cuGraphCreate(0))
'''

PROGRAMS = {
    "graphs of explicit nodes, in topological order": r"""
# Created in the wrong order: the kernel first, and then what it depends on.
kernel = do(cu.cuGraphAddKernelNode(graph, None, 0, launch(a, 3)))
filled = do(cu.cuGraphAddMemsetNode(graph, None, 0, fill(a, 7, 16), context))
copied = do(cu.cuGraphAddMemcpyNode(graph, [kernel], 1, copy(b, a, 64), context))
join = do(cu.cuGraphAddEmptyNode(graph, [copied], 1))
called = []
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append((data, read(b)[0])))
host = cu.CUDA_HOST_NODE_PARAMS()
host.fn = cu.CUhostFn(_ptr=ctypes.addressof(ctypes.c_void_p.from_buffer(function)))
host.userData = 5
last = do(cu.cuGraphAddHostNode(graph, [join], 1, host))
do(cu.cuGraphAddDependencies(graph, [filled], [kernel], 1))
assert cu.cuGraphAddDependencies(graph, [filled], [kernel], 1)[0] == 1
nodes, count = do(cu.cuGraphGetNodes(graph, 9)); assert count == 5
assert [int(do(cu.cuGraphNodeGetType(node))) for node in nodes[:5]] == [0, 2, 1, 5, 3]
assert do(cu.cuGraphGetNodes(graph))[1] == 5
roots, count = do(cu.cuGraphGetRootNodes(graph, 5)); assert count == 1 and int(roots[0]) == int(filled)
sources, targets, count = do(cu.cuGraphGetEdges(graph, 9))
edges = {(int(source), int(target)) for source, target in zip(sources[:count], targets)}
chain = [int(each) for each in (filled, kernel, copied, join, last)]
assert edges == set(zip(chain, chain[1:]))
found, count = do(cu.cuGraphNodeGetDependencies(kernel, 1)); assert count == 1 and int(found[0]) == int(filled)
found, count = do(cu.cuGraphNodeGetDependentNodes(kernel, 1)); assert count == 1 and int(found[0]) == int(copied)
runs = do(cu.cuGraphInstantiate(graph, 0))
do(cu.cuMemsetD32(a, 1, 16)); do(cu.cuMemsetD32(b, 1, 16)); do(cu.cuGraphLaunch(runs, 0))
assert (read(a) == 21).all() and (read(b) == 21).all() and called == [(5, 21)]
# The instantiated graph changes on its own.
do(cu.cuGraphExecKernelNodeSetParams(runs, kernel, launch(a, 5))); do(cu.cuGraphLaunch(runs, 0))
assert (read(b) == 35).all()
do(cu.cuGraphExecMemsetNodeSetParams(runs, filled, fill(a, 2, 16), context)); do(cu.cuGraphLaunch(runs, 0))
assert (read(b) == 10).all()
assert cu.cuGraphExecKernelNodeSetParams(runs, filled, launch(a, 5))[0] == 1
again = do(cu.cuGraphInstantiate(graph, 0)); do(cu.cuGraphLaunch(again, 0)); assert (read(b) == 21).all()
""",
    "graphs that are copied or contain other graphs; graphs with cycles are refused": r"""
child = do(cu.cuGraphCreate(0))
first = do(cu.cuGraphAddMemsetNode(child, None, 0, fill(a, 4, 16), context))
second = do(cu.cuGraphAddKernelNode(child, [first], 1, launch(a, 2)))
node = do(cu.cuGraphAddChildGraphNode(graph, None, 0, child))
do(cu.cuGraphAddMemcpyNode(graph, [node], 1, copy(b, a, 64), context))
do(cu.cuGraphKernelNodeSetParams(second, launch(a, 9)))  # of the child, which was copied
inside = do(cu.cuGraphChildGraphNodeGetGraph(node)); assert do(cu.cuGraphGetNodes(inside))[1] == 2
do(cu.cuGraphLaunch(do(cu.cuGraphInstantiate(graph, 0)), 0)); assert (read(b) == 8).all()
clone = do(cu.cuGraphClone(child)); twin = do(cu.cuGraphNodeFindInClone(second, clone))
do(cu.cuGraphKernelNodeSetParams(twin, launch(a, 5)))
do(cu.cuGraphLaunch(do(cu.cuGraphInstantiate(clone, 0)), 0)); assert (read(a) == 20).all()
do(cu.cuGraphDestroyNode(twin)); assert do(cu.cuGraphGetNodes(clone))[1] == 1
do(cu.cuGraphLaunch(do(cu.cuGraphInstantiate(clone, 0)), 0)); assert (read(a) == 4).all()
do(cu.cuGraphAddDependencies(child, [second], [first], 1)); assert cu.cuGraphInstantiate(child, 0)[0] == 1
do(cu.cuGraphRemoveDependencies(child, [second], [first], 1)); do(cu.cuGraphInstantiate(child, 0))
assert cu.cuGraphAddEmptyNode(graph, [first], 1)[0] == 1  # a node of another graph
""",
    "recorded graphs that allocate and free memory": r"""
stream = do(cu.cuStreamCreate(1))
do(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
used = driver.device.memory.used_bytes
temporary = do(cu.cuMemAllocAsync(64, stream))
do(cu.cuMemsetD32Async(temporary, 6, 16, stream))
do(cu.cuLaunchKernel(scale, 1, 1, 1, 16, 1, 1, 0, stream, ((int(temporary), 7), (ctypes.c_uint64, ctypes.c_uint32)), 0))
do(cu.cuMemcpyDtoDAsync(b, temporary, 64, stream))
do(cu.cuMemFreeAsync(temporary, stream))
recorded = do(cu.cuStreamEndCapture(stream))
nodes, count = do(cu.cuGraphGetNodes(recorded, 3))
assert [int(do(cu.cuGraphNodeGetType(each))) for each in nodes] == [2, 0, 1]
runs = do(cu.cuGraphInstantiate(recorded, 0))
for _ in range(2):
    do(cu.cuMemsetD32(b, 0, 16)); do(cu.cuGraphLaunch(runs, stream)); assert (read(b) == 42).all()
do(cu.cuGraphDestroy(recorded)); assert driver.device.memory.used_bytes == used + 64
do(cu.cuGraphExecDestroy(runs)); assert driver.device.memory.used_bytes == used
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_graphs(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + PROGRAMS[name]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_order_of_nodes() -> None:
    """Each node follows its dependencies; others keep the order of their creation."""
    last, first, other = Node(COPY), Node(COPY), Node(EMPTY)
    last.dependencies = [first]
    assert Graph([last, first, other]).in_order() == [first, last, other]
    first.dependencies = [last]
    assert Graph([last, first, other]).in_order() is None
    chain = Graph()
    for _ in range(2000):
        chain.append(Node(COPY))
    assert chain.in_order() == chain.nodes
