"""Fills buffers: with zeros, where FlashAttention-4's interface uses `torch.zeros`, and with integers of the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from harness import CuteFunction, CuteTensor

THREADS = 256
PER_LAUNCH = 32
"""Integers that one launch stores."""


@cute.kernel
def zero_kernel(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < cute.size(x):
        x[i] = cutlass.Float32(0.0)


@cute.jit
def zero(x: cute.Tensor, stream):
    blocks = (cute.size(x) + THREADS - 1) // THREADS
    zero_kernel(x).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream)


@cute.kernel
def integers_kernel(x: cute.Tensor, values: tuple):
    thread, _, _ = cute.arch.thread_idx()
    for i in cutlass.range_constexpr(PER_LAUNCH):
        if thread == i and i < cute.size(x):
            x[i] = values[i]


@cute.jit
def integers(x: cute.Tensor, values: tuple, stream):
    integers_kernel(x, values).launch(grid=(1, 1, 1), block=(PER_LAUNCH, 1, 1), stream=stream)


def zeros(buffer: str, count: int, key: tuple[str, ...]) -> tuple[Any, ...]:
    """Launches that fill a float32 buffer with zeros."""
    return _function("zero", key, zero, cutlass.Float32).launches(CuteTensor(buffer, (count,), (1,), "float32"))


def store_integers(buffer: str, values: tuple[int, ...], key: tuple[str, ...]) -> tuple[Any, ...]:
    """Launches that store integers into an int32 buffer."""
    function = _function("integers", key, integers, cutlass.Int32, (cutlass.Int32(0),) * PER_LAUNCH)
    launches: tuple[Any, ...] = ()
    for first in range(0, len(values), PER_LAUNCH):
        now = values[first : first + PER_LAUNCH]
        x = CuteTensor(buffer, (len(now),), (1,), "int32", first)
        launches += function.launches(x, now + (0,) * (PER_LAUNCH - len(now)))
    return launches


def _function(name: str, key: tuple[str, ...], function: Callable[..., None], dtype: Any, *others: Any) -> CuteFunction:
    """The compiled function, whose first argument is a tensor of one dimension."""
    kept = CuteFunction.kept(name, key)
    if kept is None:
        x = make_fake_compact_tensor(dtype, (cute.sym_int(),))
        stream = make_fake_stream(use_tvm_ffi_env_stream=True)
        kept = CuteFunction.of(cute.compile(function, x, *others, stream, options="--enable-tvm-ffi"), name)
        kept.keep(key)
    return kept
