"""printf, assert, malloc, function pointers and virtual functions in CUDA C++ and Numba."""

from __future__ import annotations

import cupy
import numpy as np
import pytest
from numba import cuda

from harness import Device, KernelFault

pytestmark = pytest.mark.compiles

MODULE = r"""
extern "C" __device__ int printf(const char*, ...);
extern "C" __global__ void says(int n, int* counts) {
    if (threadIdx.x < n)
        counts[threadIdx.x] = printf("block %d thread %-3u|%+06.2f|%s|%c%%|%llx|%5.1e|%*d\n", blockIdx.x, threadIdx.x,
                                     threadIdx.x * 1.5, n == 2 ? "two" : "many", 'x', 1ull << 40, 12345.678, 4, 7);
}
extern "C" __global__ void says_a_bad_text() { printf((const char*)64); }
extern "C" __global__ void asserts(int n) { assert(threadIdx.x + 1 < n); }

struct Shape { __device__ virtual float area(float x) const { return 0; } };
struct Square : Shape { __device__ float area(float x) const override { return x * x; } };
struct Circle : Shape { __device__ float area(float x) const override { return 3 * x * x; } };
extern "C" __global__ void areas(float* y) {
    Square square; Circle circle;
    const Shape* shape = threadIdx.x % 3 ? (const Shape*)&square : &circle;
    y[threadIdx.x] = shape->area(threadIdx.x);
}
typedef int (*Function)(int);
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int negated(int x) { return -x; }
__device__ Function table[] = {twice, negated};
__device__ Function chosen;
extern "C" __global__ void chooses(int i) { chosen = table[i]; }
extern "C" __global__ void calls(int* y) { y[threadIdx.x] = chosen(threadIdx.x); }

struct Node { int value; Node* next; };
__device__ Node* list;
extern "C" __global__ void pushes() {
    for (int turn = 0; turn < blockDim.x; ++turn) {
        if (turn == threadIdx.x) {
            Node* node = new Node; *node = {int(threadIdx.x + 100 * blockIdx.x), list}; list = node;
        }
        __syncthreads();
    }
}
extern "C" __global__ void pops(int* y, int n) {
    for (int i = 0; i < n; ++i) { Node* node = list; y[i] = node->value; list = node->next; delete node; }
}
extern "C" __global__ void fills(int rounds, int* failed) {
    for (int i = 0; i < rounds; ++i) {
        char* a = (char*)malloc(3000000); char* b = (char*)malloc(3000000); char* c = (char*)malloc(3000000);
        *failed += (a == nullptr) + (b == nullptr) + (c == nullptr);
        free(b); free(a); free(c);
    }
}
extern "C" __global__ void frees_twice() { void* p = malloc(8); free(p); free(p); }
extern "C" __global__ void overruns() {
    long* p = (long*)malloc(16); for (int i = 0; i < 8; ++i) p[i] = i; malloc(16);
}
"""


@pytest.fixture(scope="module")
def text() -> cupy.RawModule:
    return cupy.RawModule(code=MODULE)


@pytest.mark.parametrize("sanitize", [False, True])
def test_text_is_printed_in_order(text: cupy.RawModule, capsys: pytest.CaptureFixture[str], sanitize: bool) -> None:
    device = Device(sanitize=sanitize)
    counts = device.zeros(2, np.int32)
    device.launch(device.module(text)["says"], 3, 32, (2, counts))
    lines = [
        f"block {block} thread {thread:<3d}|{1.5 * thread:+06.2f}|two|x%|10000000000|1.2e+04|   7\n"
        for block in range(3)
        for thread in range(2)
    ]
    assert capsys.readouterr().out == "".join(lines)
    assert counts.numpy().tolist() == [9, 9]


def test_a_text_that_is_nowhere_is_a_fault(text: cupy.RawModule) -> None:
    device = Device()
    with pytest.raises(KernelFault, match="printf reads address 0x40") as caught:
        device.launch(device.module(text)["says_a_bad_text"], 1, 1)
    assert caught.value.kind == "bad text"


def test_a_failed_assertion_names_file_line_and_condition(text: cupy.RawModule) -> None:
    device = Device()
    module = device.module(text)
    device.launch(module["asserts"], 1, 32, (33,))
    with pytest.raises(
        KernelFault, match=r"thread \(19, 0, 0\): .*:\d+: .*asserts.*: Assertion `threadIdx.x \+ 1 < n`"
    ):
        device.launch(module["asserts"], 1, 32, (20,))


@cuda.jit
def numba_prints(n):
    i = cuda.grid(1)
    if i < n:
        print("thread", i, 0.5)


def test_numba_prints(capsys: pytest.CaptureFixture[str]) -> None:
    Device().launch(numba_prints, 1, 32, (np.int32(2),))
    assert capsys.readouterr().out == "thread 0 0.500000\nthread 1 0.500000\n"


def test_virtual_functions_and_pointers_that_last_from_launch_to_launch(text: cupy.RawModule) -> None:
    device = Device()
    module = device.module(text)
    y = device.empty(32)
    device.launch(module["areas"], 1, 32, (y,))
    x = np.arange(32, dtype=np.float32)
    np.testing.assert_array_equal(y, np.where(np.arange(32) % 3, 1, 3) * x * x)
    z = device.empty(32, np.int32)
    for number, factor in ((0, 2), (1, -1)):
        device.launch(module["chooses"], 1, 1, (number,))
        device.launch(module["calls"], 1, 32, (z,))
        np.testing.assert_array_equal(z, factor * np.arange(32))
    with pytest.raises(KernelFault, match="no function"):
        device.launch(device.module(text)["calls"], 1, 32, (z,))


def test_variables_that_the_host_sees_first_hold_the_same_addresses(text: cupy.RawModule) -> None:
    """Of functions, in a module that has a heap."""
    device = Device()
    module = device.module(text)
    module.variable("chosen", np.uint64)[...] = module.variable("table", np.uint64).numpy()[1:]
    z = device.empty(32, np.int32)
    device.launch(module["calls"], 1, 32, (z,))
    np.testing.assert_array_equal(z, -np.arange(32))


@pytest.mark.parametrize("sanitize", [False, True])
def test_allocations_outlive_their_kernel(text: cupy.RawModule, sanitize: bool) -> None:
    device = Device(sanitize=sanitize)
    module = device.module(text)
    pushed = device.launch(module["pushes"], 2, 64)
    y = device.empty(128, np.int32)
    popped = device.launch(module["pops"], 1, 1, (y, 128))
    assert y.numpy().tolist() == [*range(163, 99, -1), *range(63, -1, -1)]
    assert pushed.by_buffer("requested")["variable device heap"].written == 128 * 12
    assert popped.by_buffer("requested")["variable device heap"].read == 128 * 12
    with pytest.raises(KernelFault, match="null pointer"):
        device.launch(module["pops"], 1, 1, (y, 1))


def test_a_heap_that_is_full_gives_null_and_freed_memory_is_used_again(text: cupy.RawModule) -> None:
    device = Device()
    failed = device.zeros(1, np.int32)
    device.launch(device.module(text)["fills"], 1, 1, (20, failed))
    assert failed.numpy().tolist() == [20]


@pytest.mark.parametrize(("kernel", "kind"), [("frees_twice", "invalid free"), ("overruns", "heap overrun")])
def test_damage_of_the_heap_is_a_fault(text: cupy.RawModule, kernel: str, kind: str) -> None:
    device = Device()
    with pytest.raises(KernelFault) as caught:
        device.launch(device.module(text)[kernel], 1, 1)
    assert caught.value.kind == kind
