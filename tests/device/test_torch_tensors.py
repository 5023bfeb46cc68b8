"""PyTorch tensors in the memory of a device, and functions of CuTe DSL and FlashAttention-4 called with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness import Device, UsageError
from variants import _cute

pytestmark = pytest.mark.needs_cute


def rows(values: Any) -> Any:
    """(batch, length, heads, head_dim) as float64 of (batch, heads, length, head_dim)."""
    return np.asarray(values, np.float64).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("turn", ["first", "second"])  # on another device of the same process
def test_flash_attention_is_called_as_on_a_gpu(turn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _cute.recorder()  # sets the environment of CuTe
    monkeypatch.setenv("FLASH_ATTENTION_ARCH", "sm_90")
    monkeypatch.setenv("FLASH_ATTENTION_NUM_SMS", "132")
    from flash_attn.cute import flash_attn_func

    device = Device()
    values = np.random.default_rng(0).standard_normal((3, 1, 130, 2, 64)).astype(np.float16)
    wide = device.array(np.concatenate(values, axis=-1), name="wide")  # q, k and v beside one another
    with device.torch_tensors() as tensors:
        q, k, v = tensors.tensor(wide).chunk(3, dim=-1)
        out, _ = flash_attn_func(q, k, v)
        result = tensors.array(out).numpy()
    scores = rows(values[0]) @ rows(values[1]).swapaxes(-1, -2) / 8
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights @ rows(values[2]) / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(rows(result), expected, atol=2e-3)
    (launch,) = tensors.results
    assert launch.by_buffer("requested")["wide"].read > 0


def test_tensors_and_arrays_are_the_same_memory() -> None:
    import torch

    device = Device()
    x = device.array(np.arange(24, dtype=np.int32).reshape(4, 6))
    with device.torch_tensors() as tensors:
        part = tensors.tensor(x).narrow(0, 1, 3).narrow(1, 2, 4).t()
        tensors.array(part)[0, 0] = 99
        np.testing.assert_array_equal(tensors.array(part).numpy(), x.numpy()[1:, 2:].T)
        assert x[1, 2] == 99 and tensors.tensor(x.T).stride() == (1, 6)
        assert tensors.array(torch.empty(3, 0, device="cuda")).shape == (3, 0)
        with pytest.raises(UsageError, match="PyTorch has no type"):
            tensors.tensor(device.empty(2, [("a", "f4")]))


@pytest.mark.parametrize("compute", ["add", "zero_", "cpu"])
def test_what_pytorch_computes_is_refused(compute: str) -> None:
    device = Device()
    with device.torch_tensors() as tensors:
        x = tensors.tensor(device.zeros(4))
        with pytest.raises(UsageError, match="does not run on the emulated GPU"):
            getattr(x, compute)(*([x] if compute == "add" else []))
