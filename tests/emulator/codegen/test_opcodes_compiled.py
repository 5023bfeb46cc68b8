"""What real compilers make of CUDA C and Numba: halves, atomics, cooperative groups, mathematics, switches, arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_kernel import run
from operands import Array

from harness.support.errors import KernelFault

RNG = np.random.default_rng(23)


def cuda(parameters: str, body: str, before: str = "") -> str:
    return f'{before}\nextern "C" __global__ void k({parameters}) {{\n{body}\n}}'


def launched(kernel: Any, arrays: dict[str, Array], threads: int = 128, blocks: int = 1) -> dict[str, Array]:
    after, _ = run(kernel, arrays, tuple(arrays), (blocks, 1, 1), (threads, 1, 1))
    return after


@pytest.mark.parametrize(
    ("dtype", "scalar", "pair", "header"),
    [
        (np.float16, "half", "half2", "cuda_fp16.h"),
        (ml_dtypes.bfloat16, "bfloat16", "bfloat162", "cuda_bf16.h"),
    ],
    ids=["half", "bfloat16"],
)
def test_halves_and_their_pairs(dtype: Any, scalar: str, pair: str, header: str):
    x, y = (RNG.normal(0, 4, 256).astype(dtype) for _ in range(2))
    body = f"""
    int i = threadIdx.x;
    T2 a = x[i], b = y[i];
    out[0 * 128 + i] = __hadd2(a, b);
    out[1 * 128 + i] = __hmul2(a, b);
    out[2 * 128 + i] = __hfma2(a, b, a);
    out[3 * 128 + i] = __hmax2(a, b);
    out[4 * 128 + i] = __hneg2(__hsub2(a, b));
    out[5 * 128 + i] = __habs2(a);
    out[6 * 128 + i] = __hgt2(a, b);
    out[7 * 128 + i] = __lows2{pair}(a, b);
    float2 wide = __{pair}2float2(a);
    out[8 * 128 + i] = __floats2{pair}_rn(wide.y * 1.001f, wide.x / 3.0f);
    T low = __low2{scalar}(a), high = __high2{scalar}(b);
    out[9 * 128 + i] = T2(low > high ? low : high, __hmin(low, high));
    out[10 * 128 + i] = T2(hexp(__hmul(low, (T)0.25f)), hrcp(high));
    """
    underscores = "__" if scalar == "half" else "__nv_"
    types = f"typedef {underscores}{scalar} T; typedef {underscores}{pair} T2;"
    source = cuda("const T2* x, const T2* y, T2* out", body, f"#include <{header}>\n{types}")
    bits = {"x": x.view(np.uint16), "y": y.view(np.uint16), "out": np.zeros((11, 256), np.uint16)}
    out = launched(source, bits)["out"].view(dtype).astype(np.float64)
    a, b = x.astype(np.float64), y.astype(np.float64)

    def rounded(exact: Array) -> Array:
        # float64 holds products and sums of these exactly enough that one rounding is right.
        return exact.astype(np.float32 if dtype is np.float16 else np.float64).astype(dtype).astype(np.float64)

    for row, exact in enumerate((a + b, a * b, a * b + a, np.maximum(a, b), b - a, np.abs(a), a > b)):
        np.testing.assert_array_equal(out[row], rounded(np.asarray(exact, np.float64)), err_msg=str(row))
    low, high = a[0::2], b[1::2]
    np.testing.assert_array_equal(out[7, 0::2], low)
    np.testing.assert_array_equal(out[7, 1::2], b[0::2])
    np.testing.assert_array_equal(out[8, 0::2], (a[1::2].astype(np.float32) * np.float32(1.001)).astype(dtype))
    third = (low.astype(np.float32) / np.float32(3)).astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(out[8, 1::2], third)
    np.testing.assert_array_equal(out[9, 0::2], np.maximum(low, high))
    np.testing.assert_array_equal(out[9, 1::2], np.minimum(low, high))
    ulp = 2.0**-10 if dtype is np.float16 else 2.0**-7
    np.testing.assert_allclose(out[10, 0::2], np.exp(rounded(low * 0.25)), rtol=ulp)
    np.testing.assert_allclose(out[10, 1::2], 1 / high, rtol=ulp)


# Maximum errors in ulps, as CUDA's programming guide gives them, and one for NumPy's own.
FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "sin": (np.sin, 2, 2),
    "cos": (np.cos, 2, 2),
    "tanh": (np.tanh, 2, 2),
    "exp": (np.exp, 2, 1),
    "log": (np.log, 1, 1),
    "erf": (np.vectorize(math.erf), 2, 2),
    "cbrt": (np.cbrt, 1, 1),
    "tgamma": (np.vectorize(math.gamma), 5, 10),
    "atan": (np.arctan, 2, 2),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mathematical_functions(dtype: Any):
    """Large arguments, too: sinf reduces them with a table in local memory."""
    ctype, suffix, column = ("float", "f", 1) if dtype is np.float32 else ("double", "", 2)
    x = np.concatenate([RNG.uniform(0.01, 20, 118), [1e4, 2e5, 1e7, 123456789.0, 3e15, 0.5, 1, 2, 30, 1e-3]]).astype(
        dtype
    )
    y = RNG.uniform(-3, 3, 128).astype(dtype)
    lines = [f"out[{row} * 128 + i] = {name}{suffix}(x[i]);" for row, name in enumerate(FUNCTIONS)]
    lines += [f"out[{len(FUNCTIONS)} * 128 + i] = pow{suffix}(x[i], y[i]);"]
    lines += [f"out[{len(FUNCTIONS) + 1} * 128 + i] = fmod{suffix}(x[i], y[i]);"]
    source = cuda(f"const {ctype}* x, const {ctype}* y, {ctype}* out", "int i = threadIdx.x;\n" + "\n".join(lines))
    out = launched(source, {"x": x, "y": y, "out": np.zeros((len(FUNCTIONS) + 2, 128), dtype)})["out"]
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        for row, (name, entry) in enumerate(FUNCTIONS.items()):
            exact = np.array([np.inf if name == "tgamma" and v > 171 else entry[0](v) for v in wide])
            ulps = (np.abs(out[row] - exact) / np.spacing(np.abs(exact.astype(dtype))))[
                np.isfinite(exact.astype(dtype))
            ]
            assert ulps.max() <= entry[column] + 1, name
        power = np.power(wide, y.astype(np.float64))
        assert np.nanmax(np.abs(out[-2] - power) / np.spacing(power.astype(dtype))) <= 4 + 1
    np.testing.assert_array_equal(out[-1], np.fmod(x, y))


def test_atomics_of_every_kind():
    x = RNG.integers(-1000, 1000, 512).astype(np.int32)
    source = cuda(
        "const int* x, int* ints, float* floats, double* doubles, unsigned long long* longs, __half2* halves",
        """
        __shared__ int bins[16]; __shared__ float most;
        int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
        if (threadIdx.x < 16) bins[threadIdx.x] = 0;
        if (threadIdx.x == 0) most = -1e30f;
        __syncthreads();
        atomicAdd(&bins[v & 15], 1);
        // A maximum of floats through their bits, as everyone writes it.
        int* bits = (int*)&most; int old = *bits, seen;
        do { seen = old; if (__int_as_float(seen) >= (float)v) break;
             old = atomicCAS(bits, seen, __float_as_int((float)v)); } while (old != seen);
        __syncthreads();
        if (threadIdx.x < 16) atomicAdd(&ints[threadIdx.x], bins[threadIdx.x]);
        if (threadIdx.x == 0) floats[1 + blockIdx.x] = most;
        atomicMin(&ints[16], v); atomicMax(&ints[17], v); atomicAnd(&ints[18], v); atomicOr(&ints[19], v);
        atomicXor(&ints[20], v); atomicSub(&ints[21], v); atomicInc((unsigned*)&ints[22], 99u);
        atomicAdd(&floats[0], (float)v); atomicAdd(&doubles[0], v * 0.5);
        atomicAdd(&longs[0], 1ull << 33); atomicMax(&longs[1], (unsigned long long)(v + 1000) << 32);
        atomicAdd(halves, __floats2half2_rn(1.0f, v > 0 ? 0.5f : -0.5f));
        """,
        "#include <cuda_fp16.h>",
    )
    arrays = {
        "x": x,
        "ints": np.array([0] * 18 + [-1] + [0] * 4, np.int32),
        "floats": np.zeros(5, np.float32),
        "doubles": np.zeros(1),
        "longs": np.zeros(2, np.uint64),
        "halves": np.zeros(2, np.uint16),
    }
    after = launched(source, arrays, 128, 4)
    ints = after["ints"]
    assert ints[:16].tolist() == np.bincount(x & 15, minlength=16).tolist()
    assert ints[16:22].tolist() == [
        min(0, x.min()),
        max(0, x.max()),
        np.bitwise_and.reduce(x),
        np.bitwise_or.reduce(x),
        np.bitwise_xor.reduce(x),
        -x.sum(),
    ]
    assert ints[22] == 512 % 100
    assert after["floats"].tolist() == [x.sum(), *x.reshape(4, 128).max(axis=1)]
    assert after["doubles"][0] == x.sum() * 0.5
    assert after["longs"].tolist() == [512 << 33, int(x.max() + 1000) << 32]
    assert after["halves"].view(np.float16).tolist() == [512, (np.where(x > 0, 0.5, -0.5)).sum()]


def test_cooperative_groups():
    """Tiles of a warp that reduce, scan and vote side by side; coalesced groups in divergent code."""
    x = RNG.integers(0, 1000, 128).astype(np.int32)
    source = cuda(
        "const int* x, int* out",
        """
        namespace cg = cooperative_groups;
        int i = threadIdx.x, v = x[i];
        auto block = cg::this_thread_block();
        auto warp = cg::tiled_partition<32>(block);
        auto tile = cg::tiled_partition<8>(warp);
        int sum = v;
        for (int d = tile.size() / 2; d > 0; d /= 2) sum += tile.shfl_xor(sum, d);
        out[i] = sum;
        out[128 + i] = tile.ballot(v % 2 == 0);
        out[256 + i] = cg::reduce(tile, v, cg::greater<int>());
        out[384 + i] = tile.any(v > 900) * 2 + tile.all(v > 50);
        int scan = v;
        for (int d = 1; d < 32; d *= 2) { int up = warp.shfl_up(scan, d); if (warp.thread_rank() >= d) scan += up; }
        out[512 + i] = scan;
        if (v % 3 == 0) {
            auto some = cg::coalesced_threads();
            out[640 + i] = some.size() * 1000 + some.thread_rank();
        }
        block.sync();
        out[768 + i] = __reduce_max_sync(__match_any_sync(0xffffffff, v % 4), v);
        """,
        "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>",
    )
    out = launched(source, {"x": x, "out": np.zeros((7, 128), np.int32)})["out"]
    tiles, warps = x.reshape(-1, 8), x.reshape(-1, 32)
    np.testing.assert_array_equal(out[0], np.repeat(tiles.sum(axis=1), 8))
    np.testing.assert_array_equal(out[1], np.repeat(((tiles % 2 == 0) << np.arange(8)).sum(axis=1), 8))
    np.testing.assert_array_equal(out[2], np.repeat(tiles.max(axis=1), 8))
    np.testing.assert_array_equal(out[3], np.repeat((tiles > 900).any(axis=1) * 2 + (tiles > 50).all(axis=1), 8))
    np.testing.assert_array_equal(out[4], warps.cumsum(axis=1).reshape(-1))
    thirds = warps % 3 == 0
    ranks = thirds.sum(axis=1, keepdims=True) * 1000 + thirds.cumsum(axis=1) - 1
    np.testing.assert_array_equal(out[5], np.where(thirds, ranks, 0).reshape(-1))
    largest = [[max(w for w in warp if w % 4 == v % 4) for v in warp] for warp in warps.tolist()]
    np.testing.assert_array_equal(out[6], np.array(largest).reshape(-1))


def test_switches_divisions_and_arrays():
    """A dense switch (a branch table), 64-bit division, an array with indices that only a lane knows, a struct."""
    x = RNG.integers(-(1 << 62), 1 << 62, 128)
    source = cuda(
        "const long long* x, long long* out",
        """
        int i = threadIdx.x; long long v = x[i], r;
        switch ((unsigned)i % 9) {
            case 0: r = v / 7; break;
            case 1: r = v % 1000003; break;
            case 2: r = (unsigned long long)v / 12345; break;
            case 3: r = v / (i - 64); break;
            case 4: r = v * i;
            case 5: r = v ^ i; break;
            case 6: r = __mul64hi(v, v); break;
            case 7: r = __clzll(v) + 100 * __popcll(v) + 10000 * __ffsll(v); break;
            default: r = -1;
        }
        out[i] = r;
        int order[32];
        for (int j = 0; j < 32; ++j) order[(j * 5 + i) & 31] = j * j;
        int total = 0;
        for (int j = 0; j <= i % 32; ++j) total += order[(int)((unsigned long long)v >> 3) + j & 31];
        out[128 + i] = total;
        Triple t = turned(Triple{i, v, (char)(i + 5)}, i % 3);
        out[256 + i] = t.a * 1000 + (t.b & 255) + t.c;
        """,
        """
        struct Triple { int a; long long b; char c; };
        __device__ __noinline__ Triple turned(Triple t, int n) {
            for (int j = 0; j < n; ++j) t = Triple{(int)t.b & 63, t.a, (char)(t.c + 1)};
            return t;
        }
        """,
    )
    out = launched(source, {"x": x, "out": np.zeros((3, 128), np.int64)})["out"]

    def truncated(a: int, b: int) -> int:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    for i, v in enumerate(x.tolist()):
        unsigned = v % (1 << 64)
        cases = [
            lambda v=v: truncated(v, 7),
            lambda v=v: v - 1000003 * truncated(v, 1000003),
            lambda u=unsigned: u // 12345,
            lambda v=v, i=i: truncated(v, i - 64) if i != 64 else None,
            lambda v=v, i=i: v ^ i,
            lambda v=v, i=i: v ^ i,
            lambda v=v: v * v >> 64,
            lambda u=unsigned: 64 - u.bit_length() + 100 * u.bit_count() + 10000 * ((u & -u).bit_length()),
            lambda: -1,
        ]
        wanted = cases[i % 9]()
        assert wanted is None or int(out[0, i]) % (1 << 64) == wanted % (1 << 64), (i, i % 9)
        order = {(j * 5 + i) & 31: j * j for j in range(32)}
        assert out[1, i] == sum(order[((unsigned >> 3) + j) & 31] for j in range(i % 32 + 1))
        a, b, c = i, v, np.int8((i + 5) % 256 - (256 if (i + 5) % 256 > 127 else 0)).item()
        for _ in range(i % 3):
            a, b, c = b & 63, a, c + 1
        assert out[2, i] == a * 1000 + (b & 255) + (c + 128) % 256 - 128, i


def test_loops_that_lanes_leave_one_by_one():
    x = RNG.integers(1, 500, 128).astype(np.int32)
    source = cuda(
        "const int* x, int* out",
        """
        int i = threadIdx.x, n = x[i], steps = 0;
        while (n != 1) {
            if (n % 2 == 0) { n /= 2; if (n % 16 == 0) continue; }
            else n = 3 * n + 1;
            if (++steps > 60) break;
        }
        out[i] = steps;
        int all = steps;
        for (int d = 16; d > 0; d /= 2) all += __shfl_xor_sync(0xffffffff, all, d);
        out[128 + i] = all;
        out[256 + i] = __ballot_sync(0xffffffff, steps > 20);
        if (i % 5 == 0) return;
        out[384 + i] = __activemask();
        """,
    )
    out = launched(source, {"x": x, "out": np.zeros((4, 128), np.int32)})["out"]

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            if n % 2 == 0:
                n //= 2
                if n % 16 == 0:
                    continue
            else:
                n = 3 * n + 1
            count += 1
            if count > 60:
                break
        return count

    wanted = np.array([steps(int(n)) for n in x])
    np.testing.assert_array_equal(out[0], wanted)
    warps = wanted.reshape(4, 32)
    np.testing.assert_array_equal(out[1], np.repeat(warps.sum(axis=1), 32))
    ballots = ((warps > 20) << np.arange(32, dtype=np.int64)).sum(axis=1)
    np.testing.assert_array_equal(out[2].view(np.uint32), np.repeat(ballots, 32))
    left = (np.arange(128) % 5 != 0).reshape(4, 32)
    masks = np.repeat((left << np.arange(32, dtype=np.int64)).sum(axis=1), 32)
    np.testing.assert_array_equal(out[3].view(np.uint32), np.where(left.reshape(-1), masks, 0))


def test_printf_and_assert(capsys: pytest.CaptureFixture[str]):
    source = cuda("int* out", 'if (out[0] == 1) printf("%d", out[0]);')
    launched(source, {"out": np.zeros(1, np.int32)})
    assert capsys.readouterr().out == ""
    launched(source, {"out": np.ones(1, np.int32)})
    assert set(capsys.readouterr().out) == {"1"}
    source = cuda("int* out", "assert(out[threadIdx.x] != 0);")
    launched(source, {"out": np.ones(64, np.int32)}, threads=64)
    with pytest.raises(KernelFault, match=r"thread \(7, 0, 0\): .*Assertion `out\[threadIdx.x\] != 0` failed"):
        launched(source, {"out": np.array([1] * 7 + [0] + [1] * 56, np.int32)}, threads=64)


def test_numba_kernels():
    """Mathematics, shared and local arrays, atomics, warp operations and half precision, from Numba's compiler."""
    from numba import cuda as numba_cuda
    from numba import float32, int32

    @numba_cuda.jit
    def kernel(x, h, out, counts, total):
        i = numba_cuda.grid(1)
        t = numba_cuda.threadIdx.x
        tile = numba_cuda.shared.array(64, float32)
        mine = numba_cuda.local.array(8, int32)
        v = x[i]
        out[0, i] = math.sin(v) + math.exp(-abs(v)) * math.tanh(v)
        out[1, i] = math.log(abs(v) + 1) ** 1.5 + math.erf(v) + math.atan2(v, 2.0)
        for j in range(8):
            mine[(j * 3 + i) % 8] = j * i
        picked = 0
        for j in range(i % 8 + 1):
            picked += mine[(j + int(abs(v) * 100)) % 8]
        out[2, i] = picked
        tile[t] = v
        numba_cuda.syncthreads()
        out[3, i] = tile[63 - t] - tile[(t + 5) % 64]
        lane = t % 32
        s = v
        offset = 16
        while offset > 0:
            s += numba_cuda.shfl_down_sync(0xFFFFFFFF, s, offset)
            offset //= 2
        if lane == 0:
            numba_cuda.atomic.add(total, 0, s)
        numba_cuda.atomic.add(counts, int(abs(v)) % 4, 1)
        numba_cuda.atomic.max(counts, 4, i * (v > 0))
        out[4, i] = numba_cuda.popc(numba_cuda.ballot_sync(0xFFFFFFFF, v > 0))
        out[5, i] = float32(h[i]) * 3

    x = RNG.normal(0, 3, 128)
    h = RNG.normal(0, 2, 128).astype(np.float16)
    arrays = {"x": x, "h": h, "out": np.zeros((6, 128)), "counts": np.zeros(5, np.int32), "total": np.zeros(1)}
    after, _ = run(kernel, arrays, tuple(arrays), (2, 1, 1), (64, 1, 1))
    out = after["out"]
    np.testing.assert_allclose(out[0], np.sin(x) + np.exp(-np.abs(x)) * np.tanh(x), rtol=1e-13, atol=1e-15)
    erf = np.vectorize(math.erf)
    np.testing.assert_allclose(out[1], np.log(np.abs(x) + 1) ** 1.5 + erf(x) + np.arctan2(x, 2), rtol=1e-13, atol=1e-15)
    for i, v in enumerate(x):
        mine = {(j * 3 + i) % 8: j * i for j in range(8)}
        assert out[2, i] == sum(mine[(j + int(abs(v) * 100)) % 8] for j in range(i % 8 + 1))
    tile = x.astype(np.float32).reshape(2, 64)
    np.testing.assert_array_equal(out[3], (tile[:, ::-1] - np.roll(tile, -5, axis=1)).reshape(-1))
    np.testing.assert_allclose(after["total"][0], x.sum(), rtol=1e-12)
    assert after["counts"][:4].tolist() == np.bincount(np.abs(x).astype(int) % 4, minlength=4).tolist()
    assert after["counts"][4] == max(i for i in range(128) if x[i] > 0)
    np.testing.assert_array_equal(out[4], np.repeat((x.reshape(4, 32) > 0).sum(axis=1), 32))
    np.testing.assert_array_equal(out[5], h.astype(np.float64) * 3)
