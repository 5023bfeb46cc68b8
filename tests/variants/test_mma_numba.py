"""Tensor cores from Numba: the functions that are one instruction each, loops that are surely unrolled, and the kernel
that is built of them, beside its CUDA twin."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_kernel import run
from emulators import emulator
from lanes import exhaustive_unless
from numba import cuda, float32, uint8, uint32, uint64

from harness.compilers import CompiledKernel, DevicePointer, compile_kernel
from harness.compilers.numba.function_identity import function_identity
from harness.compilers.ptxas import find_ptxas, resources
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.operations.attention.problem import Problem
from variants._features import in_numba
from variants._mma.numba_mma import (
    commit_copies,
    copy_async,
    global_address,
    lane_index,
    load_global,
    load_shared,
    numba_mma,
    shared_address,
    store_global,
    store_shared,
    thread_index,
    wait_for_copies,
)
from variants._mma.numba_unrolled import unrolled
from variants.attention.fa2_mma import default_tile
from variants.attention.fa2_mma.numba_kernel import fa2_mma_kernel

VARIANTS = {variant.name: variant for variant in discover().registry}
STORED = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def compiled(kernel: Any, *args: Any) -> CompiledKernel:
    return compile_kernel(kernel, args, "sm_90")


# --- Instructions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("BYTES", [2, 4, 8, 16])
def test_units_of_every_size_go_through_shared_memory(BYTES: int):
    get, put, get_shared, put_shared = (f(BYTES) for f in (load_global, store_global, load_shared, store_shared))

    @cuda.jit
    def reverse(x, y):
        t = thread_index()
        tile = shared_address(cuda.shared.array(32 * 16, uint8, alignment=16))
        put_shared(tile + t * BYTES, get(global_address(x) + uint64(t * BYTES)))
        cuda.syncwarp()
        put(global_address(y) + uint64(t * BYTES), get_shared(tile + (31 - t) * BYTES))

    x = np.random.default_rng(1).integers(0, 255, (32, BYTES), dtype=np.uint8)
    after, _ = run(reverse, {"x": x, "y": np.zeros_like(x)}, ("x", "y"))
    np.testing.assert_array_equal(after["y"], x[::-1])


@pytest.mark.parametrize("BYTES", [4, 8, 16])
def test_copies_bring_units_or_zeros(BYTES: int):
    copy, wait, get_shared, put = copy_async(BYTES), wait_for_copies(0), load_shared(BYTES), store_global(BYTES)

    @cuda.jit
    def every_third(x, y):
        t = thread_index()
        at = shared_address(cuda.shared.array(32 * 16, uint8, alignment=16)) + t * BYTES
        copy(at, global_address(x) + uint64(t * BYTES), t % 3 == 0)
        commit_copies()
        wait()
        put(global_address(y) + uint64(t * BYTES), get_shared(at))

    x = np.random.default_rng(2).integers(1, 255, (32, BYTES), dtype=np.uint8)
    after, _ = run(every_third, {"x": x, "y": np.ones_like(x)}, ("x", "y"))
    np.testing.assert_array_equal(after["y"], np.where(np.arange(32)[:, None] % 3 == 0, x, 0))


def test_only_as_many_groups_are_waited_for_as_is_asked():
    copy, wait = copy_async(4), wait_for_copies(1)
    get_shared, put = load_shared(4), store_global(4)

    @cuda.jit
    def two_groups(x, y):
        t = thread_index()
        at = shared_address(cuda.shared.array(64, uint32)) + t * 4
        for group in range(2):
            copy(at + group * 128, global_address(x) + uint64(t * 4 + group * 128), True)
            commit_copies()
        wait()
        for group in range(2):
            put(global_address(y) + uint64(t * 4 + group * 128), get_shared(at + group * 128))

    x = np.arange(64, dtype=np.int32)
    after, _ = run(two_groups, {"x": x, "y": np.zeros_like(x)}, ("x", "y"))
    np.testing.assert_array_equal(after["y"][:32], x[:32])
    assert not np.any(after["y"][32:] == x[32:])  # still under way: the emulator shows NaN there


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_pairs_of_elements(dtype: str):
    mma, put = numba_mma(dtype), store_global(4)
    unpacked, packed, not_finite, finite_or_zero = mma.unpacked, mma.packed, mma.not_finite, mma.finite_or_zero

    @cuda.jit
    def pairs(x, floats, again, flags, finite):
        t = thread_index()
        both = uint32(x[t])
        low, high = unpacked(both)
        floats[2 * t], floats[2 * t + 1] = low, high
        put(global_address(again) + uint64(4 * t), packed(low, high))
        flags[t] = not_finite(both)
        finite[t] = finite_or_zero(both)

    # Every exponent and sign, with some fractions: subnormal numbers, infinities and NaNs are among them.
    bits = np.random.default_rng(3).integers(0, 2**16, 1024, dtype=np.uint16)
    bits[:4] = np.array([np.inf, -np.inf, 0.0, -0.0], dtype=STORED[dtype]).view(np.uint16)
    x, values = bits.view(np.int32), bits.view(STORED[dtype]).astype(np.float32)
    zeros = np.zeros_like(x)
    arrays = {"x": x, "floats": np.zeros(1024, np.float32), "again": zeros, "flags": zeros, "finite": zeros}
    after, _ = run(pairs, arrays, tuple(arrays), block=(512, 1, 1))

    is_finite = np.isfinite(values)
    np.testing.assert_array_equal(after["floats"], values)
    same = after["again"].view(np.uint16) == bits
    assert same[~np.isnan(values)].all()
    np.testing.assert_array_equal(after["flags"], ~is_finite.reshape(-1, 2).all(axis=1))
    np.testing.assert_array_equal(after["finite"].view(np.uint16), np.where(is_finite, bits, 0))
    assert 0 < after["flags"].sum() < len(x)


def test_the_threads_index_is_read_wherever_it_is_asked_for():
    @cuda.jit
    def twice(x):
        x[thread_index()] = lane_index()

    after, _ = run(twice, {"x": np.zeros(64, np.int32)}, ("x",), block=(64, 1, 1))
    np.testing.assert_array_equal(after["x"], np.arange(64) % 32)
    ptx = compiled(twice, DevicePointer(0, (64,), "int32")).ptx
    assert ptx.count("%tid.x") == 2


# --- Loops -----------------------------------------------------------------------------------------------------------

LONG = 32


def test_what_is_unrolled_runs_in_order():
    @cuda.jit(device=True, forceinline=True)
    def append(i, y, factor):
        y[0] = factor * y[0] + i

    in_turn = unrolled(5, append)

    @cuda.jit
    def count(y):
        in_turn(y, float32(10))

    after, _ = run(count, {"y": np.zeros(1, np.float32)}, ("y",), block=(1, 1, 1))
    assert after["y"][0] == 1234


def test_unrolled_loops_keep_an_array_in_registers():
    @cuda.jit(device=True, forceinline=True)
    def step(i, a, x, y):
        for k in range(64):
            a[i] = a[i] * x[i + k] + x[k]
            y[k] = a[i]

    all_steps = unrolled(LONG, step)

    @cuda.jit
    def in_registers(x, y):
        a = cuda.local.array(LONG, float32)
        for i in range(LONG):
            a[i] = 0
        all_steps(a, x, y)

    @cuda.jit
    def plain(x, y):
        a = cuda.local.array(LONG, float32)
        for i in range(LONG):
            a[i] = 0
        for i in range(LONG):
            step(i, a, x, y)

    pointer = DevicePointer(0, (512,), "float32")
    assert ".local" not in compiled(in_registers, pointer, pointer).ptx
    assert ".local" in compiled(plain, pointer, pointer).ptx


# --- The kernel ------------------------------------------------------------------------------------------------------


def test_the_kernel_can_be_cached():
    tile = default_tile(64)
    chosen = in_numba(Problem(head_dim=64), tile.Br, tile.Bc, threads=32 * tile.warps)
    identity = function_identity(fa2_mma_kernel(64, 64, tile, "float16", False, (), chosen, True))
    assert identity is not None
    assert identity != function_identity(fa2_mma_kernel(64, 64, tile, "bfloat16", False, (), chosen, True))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fields", "regime"),
    exhaustive_unless(
        lambda case: case[0].get("mask") == "causal" and case[0]["head_dim"] == 48,
        [
            ({"head_dim": 48, "dtype": "float16", "mask": "causal"}, "normal"),
            ({"head_dim": 48, "dtype": "float16", "mask": "causal"}, "non-finite"),
            ({"head_dim": 48, "dtype": "float16", "scale": -0.25}, "rising"),
            ({"head_dim": 48, "dtype": "float16", "mask": "window:30,11"}, "rising"),
            ({"head_dim": 48, "dtype": "float16", "mask": "causal+window:70"}, "non-finite"),
            ({"head_dim": 33, "dtype": "bfloat16", "mask": "causal"}, "hot"),
        ],
    ),
)
def test_both_backends_give_the_same_bits(fields: dict[str, Any], regime: str):
    # Same tiles, same instructions, same order of everything; only subnormal numbers are flushed by CuPy's compiler
    # and not by Numba's.
    problem = Problem(heads=4, kv_heads=2, q_len=150, kv_len=200, **fields)
    inputs = draw_inputs(problem, regime, seed=1)
    executor = emulator()
    cupy, numba = (
        executor.run(problem, VARIANTS[f"fa2-mma-{backend}"].plan(problem), inputs) for backend in ("cupy", "numba")
    )
    for name in ("O", "lse"):
        assert cupy.outputs[name].tobytes() == numba.outputs[name].tobytes()


# Each number of steps in which Q K^T is summed once, among them rows of which a thread copies 16, 8, 4 and 2 bytes at
# once. A compilation takes some five seconds: the default lane has one that other tests need, too.
@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    exhaustive_unless(
        lambda build: build == (33, "bfloat16"),
        [
            (1, "float16"),
            (20, "bfloat16"),
            (33, "float16"),
            (33, "bfloat16"),
            (64, "float16"),
            (64, "bfloat16"),
            (66, "float16"),
            (96, "bfloat16"),
            (100, "float16"),
            (128, "float16"),
            (128, "bfloat16"),
            (130, "bfloat16"),
            (160, "float16"),
            (176, "bfloat16"),
            (200, "float16"),
            (224, "bfloat16"),
            (255, "bfloat16"),
            (256, "float16"),
        ],
    ),
)
def test_nothing_spills(head_dim: int, dtype: str):
    if find_ptxas() is None:
        pytest.skip("ptxas is not installed")
    problem = Problem(heads=2, q_len=64, kv_len=64, head_dim=head_dim, dtype=dtype)
    plan = VARIANTS["fa2-mma-numba"].plan(problem)
    (launch,), buffers = plan.launches, plan.all_buffers(problem)
    args = (DevicePointer(0, buffers[a].shape, buffers[a].dtype) if isinstance(a, str) else a for a in launch.args)
    kernel = compiled(launch.kernel, *args)
    assert ".local" not in kernel.ptx
    assert ".f64" not in kernel.ptx  # what Numba makes of uint64 + int64
    found = resources(kernel.ptx, "sm_90", kernel.entry)
    assert found is not None
    assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes, found.shared_bytes) == (0, 0, 0, 0)
    blocks = default_tile(head_dim).blocks_per_sm
    assert found.registers * launch.block[0] * blocks <= 65_536  # registers of a multiprocessor
    assert (launch.shared_bytes + 1024) * blocks <= 228 * 1024  # its shared memory, 1 KiB of a block is CUDA's
