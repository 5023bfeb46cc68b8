"""Functions of kernels that call themselves."""

from __future__ import annotations

import cupy
import numpy as np
import pytest

from harness import Device, KernelFault

pytestmark = pytest.mark.compiles

SOURCE = r"""
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n)
{
    if (m == 0) return n + 1;
    return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

__device__ int odd(int n, double* sum);
__device__ __noinline__ int even(int n, double* sum)
{
    if (n == 0) return 1;
    *sum += n;
    int below = odd(n - 1, sum);
    *sum += 0.5 * n * below;
    return below;
}
__device__ __noinline__ int odd(int n, double* sum)
{
    if (n == 0) return 0;
    int below = even(n - 1, sum);
    return below + 2 * (n % 3 == 0);
}

struct Pair { long long low; float high; char tag; };
__device__ __noinline__ Pair both(Pair p, int depth)
{
    if (depth == 0) return p;
    Pair left = both(Pair{p.low + 1, p.high * 2, (char)(p.tag + 1)}, depth - 1);
    Pair right = both(Pair{p.low * 3, p.high + 1, p.tag}, depth - 1);
    return Pair{left.low - right.low, left.high + right.high, (char)(left.tag ^ right.tag)};
}

__device__ __noinline__ int steps(int n) { return n == 0 ? 0 : 1 + (steps(n - 1) ^ fib(n % 4)); }

extern "C" __global__ void fibs(int* y) { y[threadIdx.x] = fib(threadIdx.x % 13); }
extern "C" __global__ void ackermanns(unsigned* y) { y[threadIdx.x] = ackermann(threadIdx.x % 3, threadIdx.x / 8); }
extern "C" __global__ void parities(int* y, double* sums)
{
    sums[threadIdx.x] = 0;
    int n = threadIdx.x;
    y[n] = n % 4 == 3 ? odd(n, sums + n) : even(n, sums + n);
}
extern "C" __global__ void pairs(long long* low, float* high, int* tag)
{
    Pair p = both(Pair{(long long)threadIdx.x, 0.5f, 3}, threadIdx.x % 6);
    low[threadIdx.x] = p.low, high[threadIdx.x] = p.high, tag[threadIdx.x] = p.tag;
}
extern "C" __global__ void nested(int* y) { y[threadIdx.x] = steps(threadIdx.x); }
extern "C" __global__ void deep(int* y, int n) { y[0] = steps(n); }
"""


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def ackermann(m: int, n: int) -> int:
    return n + 1 if m == 0 else ackermann(m - 1, 1 if n == 0 else ackermann(m, n - 1))


def even(n: int, total: float) -> tuple[int, float]:
    if n == 0:
        return 1, total
    below, total = odd(n - 1, total + n)
    return below, total + 0.5 * n * below


def odd(n: int, total: float) -> tuple[int, float]:
    if n == 0:
        return 0, total
    below, total = even(n - 1, total)
    return below + 2 * (n % 3 == 0), total


def both(low: int, high: float, tag: int, depth: int) -> tuple[int, float, int]:
    if depth == 0:
        return low, high, tag
    left, right = both(low + 1, high * 2, tag + 1, depth - 1), both(low * 3, high + 1, tag, depth - 1)
    return left[0] - right[0], left[1] + right[1], left[2] ^ right[2]


def steps(n: int) -> int:
    return 0 if n == 0 else 1 + (steps(n - 1) ^ fib(n % 4))


@pytest.fixture(scope="module")
def device() -> Device:
    return Device()


def kernel(name: str) -> cupy.RawKernel:
    return cupy.RawKernel(SOURCE, name)


def test_a_function_that_calls_itself_twice(device: Device) -> None:
    y = device.empty(64, np.int32)
    device.launch(kernel("fibs"), 1, 64, (y,))
    assert y.numpy().tolist() == [fib(n % 13) for n in range(64)]


def test_the_sanitizer_finds_nothing_in_what_calls_push() -> None:
    device = Device(sanitize=True)
    y = device.empty(32, np.int32)
    assert not device.launch(kernel("nested"), 1, 32, (y,)).findings
    assert y.numpy().tolist() == [steps(n) for n in range(32)]


def test_a_call_in_an_argument(device: Device) -> None:
    y = device.empty(32, np.uint32)
    device.launch(kernel("ackermanns"), 1, 32, (y,))
    assert y.numpy().tolist() == [ackermann(n % 3, n // 8) for n in range(32)]


def test_functions_that_call_each_other(device: Device) -> None:
    y, sums = device.empty(32, np.int32), device.empty(32, np.float64)
    device.launch(kernel("parities"), 1, 32, (y, sums))
    expected = [(odd if n % 4 == 3 else even)(n, 0.0) for n in range(32)]
    assert list(zip(y.numpy().tolist(), sums.numpy().tolist())) == expected


def test_structures_by_value(device: Device) -> None:
    low, high, tag = (device.empty(32, kind) for kind in (np.int64, np.float32, np.int32))
    device.launch(kernel("pairs"), 1, 32, (low, high, tag))
    expected = [both(n, 0.5, 3, n % 6) for n in range(32)]
    assert list(zip(low.numpy().tolist(), high.numpy().tolist(), tag.numpy().tolist())) == expected


def test_a_recursive_function_in_another_one(device: Device) -> None:
    y = device.empty(40, np.int32)
    device.launch(kernel("nested"), 1, 40, (y,))
    assert y.numpy().tolist() == [steps(n) for n in range(40)]


def test_a_full_stack_is_a_fault(device: Device) -> None:
    y = device.empty(1, np.int32)
    device.launch(kernel("deep"), 1, 1, (y, np.int32(100)))
    with pytest.raises(KernelFault, match="recursive calls need more than the 32 KiB of a thread's stack") as caught:
        device.launch(kernel("deep"), 1, 1, (y, np.int32(100_000)))
    assert caught.value.kind == "stack overflow"


def test_each_call_has_its_own_variables_in_local_memory(device: Device) -> None:
    source = r"""
__device__ __noinline__ int find(int* outer, int n)
{
    int own[8];
    for (int i = 0; i < 8; ++i) own[i] = outer[(i + n) % 8] + i;
    if (n == 0) { outer[3] += 1000; return own[outer[0] & 7]; }
    int below = find(own, n - 1);
    return below + own[n & 7] + own[3];
}
extern "C" __global__ void k(int* y, int* x)
{
    int first[8];
    for (int i = 0; i < 8; ++i) first[i] = x[i] + threadIdx.x;
    y[threadIdx.x] = find(first, threadIdx.x % 5);
}
"""

    def find(outer: list[int], n: int) -> int:
        own = [outer[(i + n) % 8] + i for i in range(8)]
        if n == 0:
            outer[3] += 1000
            return own[outer[0] & 7]
        return find(own, n - 1) + own[n & 7] + own[3]

    x = np.arange(8, dtype=np.int32) * 7 % 5
    y = device.empty(32, np.int32)
    device.launch(cupy.RawKernel(source, "k"), 1, 32, (y, device.array(x)))
    assert y.numpy().tolist() == [find([int(each) + n for each in x], n % 5) for n in range(32)]
