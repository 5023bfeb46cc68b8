"""Fills a buffer with zeros, where FlashAttention-4's interface uses `torch.zeros`."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from harness import CuteFunction

THREADS = 256
NAME = "zero"


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


def zero_function(key: tuple[str, ...]) -> CuteFunction:
    """The compiled function, which takes a float32 tensor of one dimension."""
    kept = CuteFunction.kept(NAME, key)
    if kept is None:
        x = make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),))
        stream = make_fake_stream(use_tvm_ffi_env_stream=True)
        kept = CuteFunction.of(cute.compile(zero, x, stream, options="--enable-tvm-ffi"), NAME)
        kept.keep(key)
    return kept
