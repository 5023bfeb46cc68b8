"""Triton kernels on a device: counts by line, clusters, tensor descriptors from the host and from the kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from harness import Device, TritonKernel, UsageError
from harness.device.array import DeviceArray
from tests.compilers.triton.triton_samples import doubled_by_own_tiles, doubled_by_tiles

pytestmark = pytest.mark.compiles


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i, i < n, 0.0)  # read here
    tl.store(out + tl.program_id(0), tl.sum(values, 0))


def line_of(text: str) -> int:
    return 1 + next(i for i, line in enumerate(Path(__file__).read_text().splitlines()) if text in line)


@pytest.mark.parametrize(("arch", "options"), [("sm_80", {}), ("sm_90", {"num_ctas": 2})])
def test_bytes_are_counted_by_line_and_by_the_names_of_parameters(arch: str, options: dict[str, Any]) -> None:
    device = Device(arch, sanitize=True)
    x, out = device.array(np.arange(1000, dtype=np.float32)), device.empty(2)
    kernel = TritonKernel(total, {"BLOCK": 512}, options=options)
    result = device.kernel(kernel)[2, kernel.block](x, out, 1000)
    assert np.array_equal(out.numpy(), [np.arange(512).sum(), np.arange(512, 1000).sum()])
    assert {buffer: (moved.read, moved.written) for buffer, moved in result.by_buffer("requested").items()} == {
        "x": (4000, 0), "out": (0, 8)
    }  # fmt: skip
    assert result.by_line("requested")[__file__, line_of("# read here")].read == 4000
    assert result.findings == ()
    assert result.cluster == ((2,) if options else None)


def descriptor(array: DeviceArray) -> tuple[Any, ...]:
    sizes = (*map(np.int32, array.shape), *map(np.int64, (array.shape[1], 1)))
    return (array.device.tensor_map(array, (64, 16), swizzle=128), *sizes)


def test_tensor_descriptors_of_the_host() -> None:
    device = Device()
    x, out = device.array(np.arange(2048, dtype=np.float16).reshape(32, 64)), device.empty((32, 64), np.float16)
    types = dict.fromkeys(("x_desc", "out_desc"), "tensordesc<fp16[16, 64]>")
    kernel = TritonKernel(doubled_by_tiles, {"ROWS": 16}, types=types)
    device.launch(kernel, 2, kernel.block, (descriptor(x), descriptor(out)))
    assert np.array_equal(out.numpy(), 2 * x.numpy())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_tensor_descriptors_of_the_kernel(arch: str) -> None:
    device = Device(arch)
    x, out = device.array(np.arange(2048, dtype=np.float16).reshape(32, 64)), device.empty((32, 64), np.float16)
    kernel = TritonKernel(doubled_by_own_tiles, {"ROWS": 16})
    scratch = device.empty(2 * 256, np.uint8)
    device.launch(kernel, 2, kernel.block, (x, out, scratch))
    assert np.array_equal(out.numpy(), 2 * x.numpy())


def test_a_launch_that_does_not_fit() -> None:
    device = Device()
    x = device.zeros(512)
    with pytest.raises(UsageError, match=r"kernel total is compiled for 128 threads, and its block is \(64,\)"):
        device.launch(total, 1, 64, (x, x, 512, 512))
    with pytest.raises(UsageError, match="takes 4 arguments"):
        device.launch(total, 1, 128, (x, x))
